"""Runs that diverge: where they end or go back to, what is kept, and what a resumed run knows."""

import itertools
import json
import logging
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.training import fault_of
from hf_seqmix.training.divergence.error import DivergenceError
from hf_seqmix.training.divergence.response import DivergenceWatch
from hf_seqmix.training.folders import resumable
from hf_seqmix.training.folders.resumable import LAST, ResumableTrainer

ROWS = [{"input_ids": torch.arange(row, row + 8) % 20, "labels": torch.arange(row, row + 8) % 20} for row in range(12)]


class Trouble(ResumableTrainer):
    """Its losses or gradients are spoiled at some updates, while the learning rate is above a limit."""

    at: tuple[int, ...] = ()
    limit = 0.0
    what = "loss"
    seen: list[tuple[int, float]]

    def _spoils(self, what: str) -> bool:
        rate = self.optimizer.param_groups[0]["lr"]
        return (
            self.model.training and what == self.what and rate > self.limit and self.state.global_step + 1 in self.at
        )

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen.append((self.state.global_step + 1, int(inputs["input_ids"][0, 0])))
        return super().training_step(model, inputs, *args, **kwargs)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return loss * math.nan if self._spoils("loss") else loss

    def _clip_grad_norm(self, model: Any) -> Any:
        if self._spoils("gradient"):
            next(model.parameters()).grad[0] = math.inf
        return super()._clip_grad_norm(model)


class Poison(TrainerCallback):
    """A weight is infinite after an update whose loss and gradient were finite."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == self.step:
            with torch.no_grad():
                next(model.parameters())[0] = math.inf


class Counter(TrainerCallback, ExportableState):
    """Counts updates, as a part of what checkpoints hold."""

    updates = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.updates += 1

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"updates": self.updates}}


class Removal(TrainerCallback):
    """Somebody removes the second update's checkpoint, once, which that of the fourth calls the best."""

    left = 1

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 6 and self.left:
            self.left = 0
            shutil.rmtree(Path(args.output_dir) / "checkpoint-2")


def trainer(folder: Path, watch: DivergenceWatch, callbacks: Any = None, **options: Any) -> Any:
    torch.manual_seed(0)
    # Any model diverges: the library's takes half of the time.
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    steps: dict[str, Any] = {"max_steps": 8, "save_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 2}
    fixed = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
    fixed["lr_scheduler_type"] = "constant"
    own = {name: options.pop(name) for name in ("at", "limit", "what") if name in options}
    arguments = TrainingArguments(output_dir=str(folder), **{**steps, **fixed, "learning_rate": 0.01, **options})
    run = Trouble(
        model=model, args=arguments, train_dataset=ROWS, eval_dataset=ROWS, callbacks=callbacks, divergence=watch
    )
    vars(run).update(own, seen=[])
    return run


def losses(run: Any) -> list[tuple[int, float]]:
    return [(entry["step"], entry["loss"]) for entry in run.state.log_history if "loss" in entry]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_wrong_options_are_refused() -> None:
    for options, message in (
        ({"on_divergence": "back_off"}, "--on-divergence is 'back_off'; it must be one of stop, back-off, ignore"),
        ({"factor": 1.0}, r"--back-off-factor is 1\.0; it must lie between 0 and 1"),
        ({"max_back_offs": -1}, "--max-back-offs is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            DivergenceWatch(**options)


@pytest.mark.parametrize(
    ("what", "clips"), [("loss", 1.0), pytest.param("loss", 0.0, marks=pytest.mark.slow), ("gradient", 1.0)]
)
def test_a_run_stops_where_a_number_is_not_finite(tmp_path: Path, what: str, clips: float) -> None:
    """Update 5 shows that the weights of checkpoint 4 are bad; the filtered log would have shown nothing."""
    run = trainer(tmp_path, DivergenceWatch(), at=(5,), what=what, max_grad_norm=clips)
    with pytest.raises(DivergenceError) as stopped:
        run.train()
    message = str(stopped.value)
    assert message.startswith("the run diverged at update 5: the ")
    assert ("gradient norm is inf" if what == "gradient" else "loss is nan") in message
    for part in ("learning rate 0.01)", f"--max-grad-norm, given: {clips:g}", "--warmup-steps", "norm_type"):
        assert part in message
    assert f"The last good checkpoint is {tmp_path / 'checkpoint-2'}." in message
    assert "renamed to superseded-checkpoint-4." in message
    assert names(tmp_path) == {"checkpoint-2", "superseded-checkpoint-4"}
    assert [step for step, _ in losses(run)] == [1, 2, 3, 4]
    resumed = trainer(tmp_path, DivergenceWatch())
    assert resumed.find_checkpoint(LAST)[0] == str(tmp_path / "checkpoint-2")


def test_the_older_checkpoint_is_removed_only_when_the_newer_has_proved_good(tmp_path: Path) -> None:
    run = trainer(tmp_path, DivergenceWatch(), at=(5,), save_total_limit=1)
    with pytest.raises(DivergenceError, match=r"last good checkpoint is .*checkpoint-2"):
        run.train()
    run = trainer(tmp_path / "calm", DivergenceWatch(), save_total_limit=1)
    run.train()
    assert names(tmp_path / "calm") == {"checkpoint-8"}


def test_weights_that_are_not_finite_are_not_sealed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = trainer(tmp_path / "a", DivergenceWatch(), [Poison(4)])
    with pytest.raises(DivergenceError, match=r"update 4: weights are not finite \(loss [0-9.]+, gradient norm"):
        run.train()
    assert names(tmp_path / "a") == {"checkpoint-2"}
    run = trainer(tmp_path / "b", DivergenceWatch(), [Poison(8)], save_strategy="no")
    with pytest.raises(
        DivergenceError, match=r"update 8: weights are not finite.* No checkpoint precedes the trouble"
    ):
        run.train()
    ignoring = trainer(tmp_path / "c", DivergenceWatch("ignore"), [Poison(4)], save_total_limit=1)
    with caplog.at_level(logging.WARNING):
        ignoring.train()
    assert ignoring.state.global_step == 8
    assert names(tmp_path / "c") == {"checkpoint-2"}
    assert "No checkpoint is written at update 4: weights or loss are not finite." in caplog.messages


def test_back_off_goes_back_lowers_the_rate_and_keeps_the_order_of_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What follows is what a run resumed there at that rate computes, bit for bit."""
    run = trainer(tmp_path / "run", DivergenceWatch("back-off", 0.25), at=(5,), limit=0.003)
    with caplog.at_level(logging.WARNING):
        run.train()
    (entry,) = run.divergence.back_offs
    wanted = {"step": 5, "loss": None, "learning_rate": 0.01, "back_to": 2, "factor": 0.25}
    assert {name: entry[name] for name in wanted} == wanted
    assert json.loads((tmp_path / "run" / "divergence.json").read_text())["back_offs"] == [entry]
    target = tmp_path / "run" / "checkpoint-2"
    said = f"Going back to {target} with 0.25 times the learning rate, back-off 1 of 3."
    assert [line for line in caplog.messages if said in line]
    assert [step for step, _ in run.seen] == [1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8]
    assert run.seen[5:8] == run.seen[2:5]
    rates = {entry["step"]: entry["learning_rate"] for entry in run.state.log_history if "loss" in entry}
    assert rates == {1: 0.01, 2: 0.01, **dict.fromkeys(range(3, 9), 0.0025)}
    assert run.mean_train_loss == pytest.approx(sum(loss for _, loss in losses(run)) / 8, abs=1e-4)
    other = trainer(tmp_path / "run", DivergenceWatch("stop"))
    other.train(resume_from_checkpoint=str(target))
    assert other.divergence.back_offs == [entry]
    assert losses(other) == losses(run)


def test_back_off_to_the_start_is_a_run_with_the_lower_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter()
    callbacks = [EarlyStoppingCallback(20), counter]
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    run = trainer(tmp_path / "a", DivergenceWatch("back-off"), callbacks, at=(3,), limit=0.005, **options)
    ticks = itertools.count(0, 1000)
    monkeypatch.setattr(resumable, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    output = run.train()
    # What was gone back from counts, too: a thousand seconds by this clock.
    assert 1000 < output.metrics["train_runtime"] < 2000 and run.first_step == 0
    assert [entry["back_to"] for entry in run.divergence.back_offs] == [0]
    lower = trainer(tmp_path / "b", DivergenceWatch("stop"), learning_rate=0.005, **options)
    lower.train()
    assert losses(run) == losses(lower) and counter.updates == len(losses(run)) == 8
    for name, parameter in lower.model.state_dict().items():
        assert torch.equal(parameter, run.model.state_dict()[name])


def test_back_offs_come_to_an_end(tmp_path: Path) -> None:
    """The run goes further back each time, and at last to the start; a checkpoint remains to look at."""
    run = trainer(tmp_path, DivergenceWatch("back-off"), at=(7,))
    with pytest.raises(DivergenceError, match=r"had been lowered 3 times, to 0\.125 times.*checkpoint-4") as stopped:
        run.train()
    assert "lowers the rate by itself" not in str(stopped.value)
    assert [entry["back_to"] for entry in run.divergence.back_offs] == [4, 2, 0]
    assert [entry["learning_rate"] for entry in run.divergence.back_offs] == [0.01, 0.005, 0.0025]


def test_a_run_does_not_go_back_to_where_its_best_checkpoint_is_missing(tmp_path: Path) -> None:
    """It could not load the best one at its end."""
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "loss", "greater_is_better": True}  # so the earliest is the best
    run = trainer(tmp_path, DivergenceWatch("back-off"), [Removal()], at=(7,), limit=0.005, **options)
    run.train()
    assert [entry["back_to"] for entry in run.divergence.back_offs] == [0]
    assert run.state.global_step == 8 and Path(run.state.best_model_checkpoint).name == "checkpoint-2"


@pytest.mark.slow
def test_a_kill_after_a_back_off_keeps_rate_and_count(tmp_path: Path) -> None:
    """Before the next checkpoint, and after it."""

    class Killed(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
            if state.global_step == self.step and optimizer.param_groups[0]["lr"] < 0.01:
                raise KeyboardInterrupt

    whole = trainer(tmp_path / "whole", DivergenceWatch("back-off"), at=(5,), limit=0.005)
    whole.train()
    for step in (3, 5):
        folder = tmp_path / str(step)
        killed = Killed()
        killed.step = step
        run = trainer(folder, DivergenceWatch("back-off"), [killed], at=(5,), limit=0.005)
        with pytest.raises(KeyboardInterrupt):
            run.train()
        resumed = trainer(folder, DivergenceWatch("back-off"), at=(5,), limit=0.005)
        checkpoint, _ = resumed.find_checkpoint(LAST)
        assert checkpoint == str(folder / f"checkpoint-{step - 1}") and fault_of(checkpoint) is None
        resumed.train(resume_from_checkpoint=checkpoint)
        assert len(resumed.divergence.back_offs) == 1
        assert losses(resumed) == losses(whole)


def test_a_run_that_goes_on_in_another_folder_keeps_the_lower_rate(tmp_path: Path) -> None:
    first = trainer(tmp_path / "a", DivergenceWatch("back-off", factor=0.25), at=(5,), limit=0.005)
    first.train()
    checkpoint = str(tmp_path / "a" / "checkpoint-6")
    for folder in ("b", "c"):
        other = trainer(tmp_path / folder, DivergenceWatch("back-off"), max_steps=10)
        other.train(resume_from_checkpoint=checkpoint)
        assert other.optimizer.param_groups[0]["lr"] == 0.0025
        assert other.divergence.back_offs == first.divergence.back_offs
        checkpoint = str(tmp_path / "b" / "checkpoint-8")


def test_an_explosion_is_met_although_every_number_is_finite(tmp_path: Path) -> None:
    """A rate of thousands; the checkpoint is the one before the loss left the ground."""
    options = {"max_steps": 70, "save_steps": 10, "max_grad_norm": 0.0, "optim": "sgd"}

    class Jump(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
            if state.global_step == 24:
                optimizer.param_groups[0]["lr"] = 3e3

    run = trainer(tmp_path, DivergenceWatch(), [Jump()], **options)
    with pytest.raises(
        DivergenceError, match=r"the training loss has been about .*checkpoint-20\. Later ones were.*keeps the rates"
    ):
        run.train()
    # Losses after the jump are chaotic: processors differ in when their mean has left the ground.
    assert 24 + 20 <= run.state.global_step < 70


def test_a_new_run_in_the_folder_of_another_has_the_rate_that_it_is_given(tmp_path: Path) -> None:
    """Only a resumed run takes up the back-offs in its folder."""
    first = trainer(tmp_path, DivergenceWatch("back-off"), at=(5,), limit=0.006)
    first.train()
    assert first.divergence.scale == 0.5
    resumed = trainer(tmp_path, DivergenceWatch())
    resumed.find_checkpoint(LAST)
    assert resumed.divergence.back_offs == first.divergence.back_offs
    anew = trainer(tmp_path, DivergenceWatch(), max_steps=2)
    anew.train()
    assert anew.optimizer.param_groups[0]["lr"] == 0.01 and not (tmp_path / "divergence.json").exists()


@pytest.mark.slow  # few train twice with one trainer
def test_a_second_training_lowers_no_rate_again(tmp_path: Path) -> None:
    run = trainer(tmp_path, DivergenceWatch("back-off"), at=(5,), limit=0.006)
    for _ in range(2):
        run.train()
        assert run.optimizer.param_groups[0]["lr"] == 0.005
    assert run.divergence.back_offs == [] and not (tmp_path / "divergence.json").exists()


def test_going_back_with_an_optimizer_that_was_given_is_refused(tmp_path: Path) -> None:
    model = TNNForCausalLM(TNNConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, max_position_embeddings=8))
    own = (torch.optim.SGD(model.parameters(), lr=0.1), None)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match=r"given an optimizer.*Leave out `optimizers`"):
        ResumableTrainer(model, arguments, optimizers=own, divergence=DivergenceWatch("back-off"))
    assert ResumableTrainer(model, arguments, optimizers=own).optimizer is own[0]
