"""A training of a benchmark that was interrupted: what it goes on from, and when it starts anew."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hf_seqmix.training.run import Run

RUN = Run(
    "language modeling",
    model={"objective": "causal", "model_type": "tnn", "config_overrides": {"hidden_size": 8, "rpe_hidden_size": 4}},
    data={"tokenizer": "byte", "block_size": 16},
    training={"max_steps": 2, "save_steps": 1, "use_cpu": True, "disable_tqdm": True, "report_to": "none"},
)


@pytest.fixture
def jobs(script_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, whose runs are in this process."""
    module, pretrain = script_module("benchmarks.jobs"), script_module("pretrain")

    def here(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        try:
            pretrain.main(words[2:])
        except SystemExit:
            return subprocess.CompletedProcess(words, 1)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", here)
    return module


@pytest.fixture
def job(jobs: ModuleType, tmp_path: Path) -> Any:
    text = tmp_path / "text.txt"
    text.write_text("some text " * 50)
    files = {"train_file": [str(text)], "validation_file": [str(text)]}
    return jobs.Job("a", "pretrain.py", Run(RUN.task, RUN.model, {**RUN.data, **files}, RUN.training))


def cut(checkpoint: Path) -> None:
    """Leave what a kill leaves of a checkpoint."""
    for path in checkpoint.iterdir():
        if path.name != "config.json":
            path.unlink()


def test_a_run_goes_on_from_a_whole_checkpoint_and_starts_anew_without_one(
    jobs: ModuleType, job: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    first = jobs.train(job, folder)
    (folder / "results.json").unlink()
    cut(folder / "checkpoint-2")
    assert isinstance(jobs.train(job, folder), dict)
    assert "Continuing from" in caplog.text and "is whole" not in caplog.text

    (folder / "results.json").unlink()
    for number in (1, 2):
        cut(folder / f"checkpoint-{number}")
    again = jobs.train(job, folder)
    assert again["evaluation"]["token_loss"] == first["evaluation"]["token_loss"]
    assert "is whole: the run starts anew (superseded-checkpoint-2, superseded-checkpoint-1" in caplog.text


def test_a_checkpoint_that_another_process_writes_stays(
    jobs: ModuleType, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoint-1").mkdir(parents=True)
    (folder / "checkpoint-1" / "config.json").write_text("{}")

    def in_use(folder: Path) -> None:
        raise jobs.FolderInUseError

    monkeypatch.setattr(jobs, "claim_folder", in_use)
    assert "ended with status 1" in jobs.train(job, folder)
    assert (folder / "checkpoint-1" / "config.json").is_file()


def test_a_checkpoint_of_another_model_is_refused(
    jobs: ModuleType, job: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    jobs.train(job, folder)
    other = Run(RUN.task, {**RUN.model, "config_overrides": {"hidden_size": 16}}, job.run.data, RUN.training)
    assert "ended with status 1" in jobs.train(jobs.Job("a", "pretrain.py", other), folder)
    assert (folder / "checkpoint-2").is_dir() and "is whole" not in caplog.text
