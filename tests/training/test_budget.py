"""A budget of seconds: how many updates it is, and that the trial leaves no trace."""

import gc
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_seqmix.training import budget
from hf_seqmix.training.budget import updates_of, updates_within
from tests.training.folders.test_resumable import losses, trainer


@pytest.fixture(autouse=True)
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "TIMED", 4)


class Ticking:
    """A clock that moves by a known time at each look."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.now = iter(seconds), 0.0

    def __call__(self) -> float:
        self.now += next(self.seconds)
        return self.now


def test_the_median_of_the_updates_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow first updates and an interruption do not."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    looks = [9.0] * budget.WARM_UP + [0.5] * (budget.TIMED - 1) + [30.0]
    monkeypatch.setattr(budget, "training_clock", lambda: Ticking(looks))
    assert updates_within(trainer(tmp_path), 60) == 120
    monkeypatch.setattr(budget, "training_clock", lambda: Ticking(looks))
    assert updates_within(trainer(tmp_path), 1e-9) == 1


@pytest.mark.parametrize(
    ("trial", "run", "seconds", "said"),
    [
        (2.0, 0.1, 100, "An update takes 0.1 seconds, and took 2 in the trial"),
        (0.5, 2.0, 10, "the run will take about 40 seconds instead of 10"),
        (0.5, 0.6, 10, ""),
        (0.5, 0.4, 10, ""),
        (2.0, 0.1, 30, ""),
    ],
    ids=["faster", "slower", "a little slower", "a little faster", "nearly over"],
)
def test_a_run_on_a_cpu_says_early_that_its_trial_was_disturbed(
    trial: float,
    run: float,
    seconds: float,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Beside other work a trial took 1.94 seconds an update: the run made 147 of them in 19 of its 285 seconds."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    clocks = [Ticking([each] * (budget.WARM_UP + budget.TIMED + more)) for each, more in [(trial, 0), (run, 1)]]
    made = iter(clocks)
    monkeypatch.setattr(budget, "training_clock", lambda: next(made))
    one = trainer(tmp_path, max_steps=20)
    updates_within(one, seconds)
    one.train()
    assert said in caplog.text and ("in the trial" in caplog.text) == bool(said)
    assert next(clocks[1].seconds, None) is None


def on_accelerator(monkeypatch: pytest.MonkeyPatch, blocks: list[float], accelerator: bool = True) -> Ticking:
    """A clock by which the updates of each block take so long; a look too many fails."""
    clock = Ticking([9.0] * budget.WARM_UP + [seconds for seconds in blocks for _ in range(budget.TIMED)])
    monkeypatch.setattr(budget, "training_clock", lambda: clock)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    # Optimizers of torch 2.15 ask the accelerator, which need not be there, whether it captures a graph.
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    return clock


@pytest.mark.parametrize(
    ("accelerator", "seconds", "blocks", "updates"),
    [
        (False, 600, [4.0], 150),
        (True, 600, [4.0, 4.0], 150),
        pytest.param(True, 600, [4.0, 3.4], 176, marks=pytest.mark.slow),
        (True, 600, [4.0, 1.0, 0.5, 0.5], 1200),
        (True, 600, [4.0 * 0.75**block for block in range(budget.MOST)], 1124),
        pytest.param(True, 50, [4.0], 12, marks=pytest.mark.slow),
        (True, 54, [4.0, 1.0], 54),
    ],
)
def test_on_an_accelerator_updates_count_once_they_are_steady(
    accelerator: bool,
    seconds: float,
    blocks: list[float],
    updates: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels are compiled for new lengths until then; but a trial lasts no longer than the run."""
    run = trainer(tmp_path)
    clock = on_accelerator(monkeypatch, blocks, accelerator)
    assert updates_within(run, seconds) == updates
    assert next(clock.seconds, None) is None


def test_all_processes_end_the_trial_with_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one would go on after its first updates, and end after the next."""
    clock = on_accelerator(monkeypatch, [4.0, 4.0, 0.1])
    said = iter([[False], [False], [True], [77]])

    def broadcast(answer: list[Any]) -> None:
        answer[:] = next(said)

    monkeypatch.setattr(budget, "broadcast_object_list", broadcast)
    assert updates_within(trainer(tmp_path), 600) == 77
    assert next(clock.seconds, None) is next(said, None) is None


@pytest.mark.parametrize(
    ("threads", "processes", "accelerator", "clock"),
    [
        (1, None, False, time.process_time),
        (1, 1, False, time.process_time),
        (1, 2, False, time.perf_counter),
        (2, None, False, time.perf_counter),
        (1, None, True, time.perf_counter),
    ],
)
def test_cpu_time_counts_where_one_thread_does_all(
    threads: int, processes: int | None, accelerator: bool, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for another one takes no CPU time."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: processes is not None)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: processes)
    assert budget.training_clock() is clock


def test_a_trial_is_quiet_and_frees_its_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trainer(tmp_path, eval_on_start=True)
    gc.collect()
    gc.disable()
    try:
        updates_within(run, 1.0)
        assert [entry for entry in gc.get_objects() if type(entry) is type(run)] == [run]
    finally:
        gc.enable()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("on_divergence", ["stop", pytest.param("back-off", marks=pytest.mark.slow)])
def test_a_trial_that_diverges_says_nothing_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_divergence: str
) -> None:
    """The schedule of a trial warms up in a few updates, that of the run in many."""
    run = trainer(tmp_path, learning_rate=1e30, optim="sgd", max_grad_norm=0, warmup_steps=0.1)
    run.divergence.on_divergence = on_divergence
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(budget, "training_clock", lambda: Ticking([0.5] * (budget.WARM_UP + budget.TIMED)))
    assert updates_within(run, 60) == 120
    assert run.divergence.on_divergence == on_divergence and run.divergence.back_offs == []


def test_the_trial_leaves_no_trace(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    plain = trainer(tmp_path / "plain", **options)
    plain.train()
    run: Any = trainer(tmp_path / "run", **options)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    weights = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    updates_within(run, 1.0)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert all(torch.equal(weight, weights[name]) for name, weight in run.model.state_dict().items())
    assert run.args.max_steps == 6 and run.args.eval_strategy == "steps" and run.args.load_best_model_at_end
    assert run.state.global_step == 0 and not any(tmp_path.glob("run/*"))
    run.train()
    assert losses(run) == losses(plain)
    assert updates_of(str(tmp_path / "run" / "checkpoint-6")) == 6
