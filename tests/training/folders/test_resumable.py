"""What the scripts' `Trainer` adds to the library's: where it goes on from, what it removes when, failing writes."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    trainer_utils,
)

from hf_seqmix.training import fault_of, last_complete_checkpoint
from hf_seqmix.training.folders.checkpoints import open_checkpoint_folder
from hf_seqmix.training.folders.resumable import LAST, ResumableTrainer
from tests.training.folders.small_run import ROWS, names, trainer


def losses(run: Any) -> list[tuple[int, float]]:
    return [(entry["step"], entry["loss"]) for entry in run.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with checkpoints 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("finished")
    trainer(folder).train()
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_the_newest_whole_checkpoint_and_a_line_about_the_others(tmp_path: Path) -> None:
    whole = trainer(tmp_path)
    whole.train()
    cut(tmp_path / "checkpoint-6" / "optimizer.pt")
    resumed = trainer(tmp_path)
    assert resumed.find_checkpoint(None) == (None, None)
    checkpoint, line = resumed.find_checkpoint(LAST)
    assert checkpoint == str(tmp_path / "checkpoint-4")
    size = (tmp_path / "checkpoint-6" / "optimizer.pt").stat().st_size
    fault = f"passed over checkpoint-6: optimizer.pt is cut short: it has {size} of {size + 1} bytes"
    assert line == f"Continuing from {checkpoint}; {fault}"
    resumed.train(resume_from_checkpoint=checkpoint)
    # Step 4 lies between two log entries: the second one averages over steps before and after the interruption.
    assert losses(resumed) == losses(whole)
    assert [step for step, _ in losses(whole)] == [3, 6]
    assert resumed.mean_train_loss == whole.mean_train_loss
    assert resumed.first_step == 4
    assert fault_of(tmp_path / "checkpoint-6") is None
    manifest = tmp_path / "checkpoint-6" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"num_processes": 1', '"num_processes": 4'))
    assert "4 processes wrote it, now 1 go on" in trainer(tmp_path).find_checkpoint(LAST)[1]


def test_nothing_is_started_anew_in_silence(tmp_path: Path) -> None:
    assert trainer(tmp_path).find_checkpoint(LAST) == (None, f"No checkpoint in {tmp_path}: starting anew")
    open_checkpoint_folder(tmp_path / "checkpoint-2")
    with pytest.raises(ValueError, match=r"checkpoint-2: its writing was interrupted.*Start anew"):
        trainer(tmp_path).find_checkpoint(LAST)


def test_a_given_checkpoint_must_be_whole_and_later_ones_are_set_aside(folder: Path) -> None:
    run = trainer(folder)
    cut(folder / "checkpoint-4" / "scheduler.pt")
    with pytest.raises(
        ValueError, match=r"checkpoint-4 cannot.*scheduler.pt is cut short.*newest whole.*checkpoint-6"
    ):
        run.find_checkpoint(str(folder / "checkpoint-4"))
    with pytest.raises(ValueError, match=r"checkpoint-5 cannot be continued from: there is no such folder"):
        run.find_checkpoint(str(folder / "checkpoint-5"))
    assert names(folder) == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    checkpoint, line = run.find_checkpoint(str(folder / "checkpoint-2"))
    assert checkpoint == str(folder / "checkpoint-2")
    assert "later ones are renamed: checkpoint-6, checkpoint-4" in line
    assert names(folder) == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}  # what is refused later changes nothing
    run.train(resume_from_checkpoint=Path(checkpoint))
    assert run.resumed_from == folder / "checkpoint-2"
    aside = {"superseded-checkpoint-4", "superseded-checkpoint-6"}
    assert names(folder) == {"checkpoint-2", "checkpoint-4", "checkpoint-6"} | aside


def test_true_stands_for_the_newest_whole_checkpoint(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no checkpoint"):
        trainer(tmp_path).train(resume_from_checkpoint=True)
    cut(folder / "checkpoint-6" / "scheduler.pt")
    run = trainer(folder)
    run.train(resume_from_checkpoint=True)
    assert run.first_step == 4


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.pt",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("rng_state.pth", "trainer_state.json")),
    ],
)
def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path, name: str) -> None:
    """Even where only one is to be kept."""

    class FullDisk(ResumableTrainer):
        def _save_rng_state(self, output_dir: str) -> None:
            super()._save_rng_state(output_dir)
            if output_dir.endswith("checkpoint-4"):
                (Path(output_dir) / name).write_bytes(b"half")
                raise OSError(errno.ENOSPC, "No space left on device")

    run = trainer(tmp_path, FullDisk, save_total_limit=1)
    with pytest.raises(OSError, match="No space left"):
        run.train()
    assert run.args.save_total_limit == 1
    assert names(tmp_path) == {"checkpoint-2", "checkpoint-4"}
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-2"
    resumed = trainer(tmp_path, save_total_limit=1)
    resumed.train(resume_from_checkpoint=resumed.find_checkpoint(LAST)[0])
    assert names(tmp_path) == {"checkpoint-6"}


def test_rows_grouped_by_length_are_the_same_after_an_interruption(tmp_path: Path) -> None:
    """Six updates an epoch; the checkpoint lies within the second."""
    options = {"train_sampling_strategy": "group_by_length", "max_steps": 12, "save_steps": 8, "logging_steps": 1}
    whole = trainer(tmp_path / "whole", **options)
    whole.train()
    resumed = trainer(tmp_path / "whole", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-8"))
    assert losses(resumed) == losses(whole)


class GettingWorse(TrainerCallback):
    """The second evaluation is the best."""

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        metrics["eval_score"] = -abs(state.global_step - 2)


def test_shares_of_a_run_are_no_changed_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(trainer_utils.logger, "warning_once", said.append)
    trainer(tmp_path, logging_steps=0.5, save_steps=0.3).train()
    assert names(tmp_path) >= {"checkpoint-2", "checkpoint-4"} and "checkpoint-3" not in names(tmp_path)
    resumed = trainer(tmp_path, logging_steps=0.5, save_steps=0.3)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert not said and (resumed.args.logging_steps, resumed.args.save_steps) == (0.5, 0.3)
    trainer(tmp_path, logging_steps=2, save_steps=0.3).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert "logging_steps: 2 (from args) != 3" in said[0] and "save_steps" not in said[0]


def early_stopping(folder: Path) -> Any:
    return trainer(
        folder,
        callbacks=[GettingWorse(), EarlyStoppingCallback(2)],
        max_steps=20,
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        restore_callback_states_from_checkpoint=True,
    )


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.slow), 4])
def test_early_stopping_is_resumed_too(tmp_path: Path, step: int) -> None:
    """At step 3 one evaluation without a better one has been counted; step 4 is where the run stopped."""
    whole = early_stopping(tmp_path)
    whole.train()
    assert whole.state.global_step == 4
    assert whole.state.best_global_step == 2
    resumed = early_stopping(tmp_path)
    checkpoint, _ = resumed.find_checkpoint(str(tmp_path / f"checkpoint-{step}"))
    assert resumed.restore_finished(checkpoint) is (step == 4)
    if step == 3:
        resumed.train(resume_from_checkpoint=checkpoint)
    assert resumed.state.global_step == 4
    assert resumed.mean_train_loss == pytest.approx(whole.mean_train_loss, rel=1e-6)
    for name, parameter in whole.model.state_dict().items():
        assert torch.equal(parameter, resumed.model.state_dict()[name])


def test_a_finished_run_that_was_moved_has_its_best_model(tmp_path: Path) -> None:
    whole = early_stopping(tmp_path / "before")
    whole.train()
    assert Path(whole.state.best_model_checkpoint).name != "checkpoint-4"  # or the last model would do
    (tmp_path / "before").rename(tmp_path / "after")
    moved = early_stopping(tmp_path / "after")
    assert moved.restore_finished(moved.find_checkpoint(LAST)[0])
    for name, parameter in whole.model.state_dict().items():
        assert torch.equal(parameter, moved.model.state_dict()[name])


def test_a_finished_run_of_few_checkpoints_is_finished(tmp_path: Path) -> None:
    """The library would leave the best checkpoint alone."""
    whole = early_stopping(tmp_path)
    whole.args.save_total_limit = 1
    whole.train()
    assert names(tmp_path) == {"checkpoint-2", "checkpoint-4"} and whole.args.save_total_limit == 1
    again = early_stopping(tmp_path)
    assert again.restore_finished(again.find_checkpoint(LAST)[0])


def test_a_longer_run_goes_on_from_a_finished_one(folder: Path) -> None:
    checkpoint = str(folder / "checkpoint-6")
    assert trainer(folder).restore_finished(checkpoint)
    longer = trainer(folder, max_steps=8)
    assert not longer.restore_finished(checkpoint)
    longer.train(resume_from_checkpoint=checkpoint)
    assert longer.state.global_step == 8


def test_a_longer_run_begins_at_the_rate_of_its_own_schedule(tmp_path: Path) -> None:
    """The run before has ended at a rate of 0."""
    trainer(tmp_path, max_steps=4, logging_steps=1).train()
    again = trainer(tmp_path, max_steps=8, logging_steps=1)
    again.train(resume_from_checkpoint=tmp_path / "checkpoint-4")
    rates = [entry["learning_rate"] for entry in again.state.log_history if entry["step"] > 4 and "loss" in entry]
    assert rates == pytest.approx([again.args.learning_rate * left / 8 for left in (4, 3, 2, 1)])


def test_the_end_of_an_epoch_is_saved_after_its_evaluation(tmp_path: Path) -> None:
    """Six updates an epoch; the library would save step 6 before it is evaluated and logged."""
    run = trainer(tmp_path, max_steps=9, save_steps=3, eval_strategy="epoch", logging_strategy="epoch")
    run.train()
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert [(entry["step"], "eval_loss" in entry) for entry in state["log_history"]] == [(6, False), (6, True)]
    assert names(tmp_path) == {"checkpoint-3", "checkpoint-6", "checkpoint-9"}


def test_what_is_pushed_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = []
    monkeypatch.setattr(
        Trainer, "_push_from_checkpoint", lambda self, folder: pushed.append((folder, fault_of(folder)))
    )
    run = trainer(tmp_path, max_steps=2)
    run.args.push_to_hub = True
    run.train()
    assert pushed == [(str(tmp_path / "checkpoint-2"), None)]


def test_checkpoints_of_the_library_are_taken_up(tmp_path: Path) -> None:
    trainer(tmp_path, Trainer).train()
    run = trainer(tmp_path)
    checkpoint, line = run.find_checkpoint(LAST)
    assert line == f"Continuing from {tmp_path / 'checkpoint-6'}"
    assert run.restore_finished(checkpoint)


def test_a_copy_head_trains_without_logits(tmp_path: Path) -> None:
    """Losses are those of the library's trainer, which asks for logits; evaluations have their predictions."""
    fields = {"copy_head": True}
    theirs = trainer(tmp_path / "theirs", Trainer, fields=fields, max_steps=3)
    theirs.train()
    ours = trainer(tmp_path / "ours", fields=fields, max_steps=3)
    shapes: list[int | None] = []

    def look(model: Any, args: Any, outputs: Any) -> None:
        shapes.append(None if outputs.logits is None else outputs.logits.shape[-1])

    ours.model.register_forward_hook(look)
    ours.train()
    assert shapes == [None] * 3
    for (step, expected), (found_at, found) in zip(losses(theirs), losses(ours), strict=True):
        assert step == found_at and found == pytest.approx(expected, rel=1e-5)
    assert ours.predict(ROWS).predictions.shape == (12, 8, 20)
    plain = trainer(tmp_path / "plain", max_steps=3)
    plain.model.register_forward_hook(look)
    shapes.clear()
    plain.train()
    assert shapes == [20] * 3


def test_where_logits_are_asked_for_a_copy_head_gives_them(tmp_path: Path) -> None:
    """Label smoothing and a loss of the user's are computed from logits, whatever names the labels have."""
    rows = [{**row, "shift_labels": row["labels"].roll(-1)} for row in ROWS]

    def square(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        return outputs["logits"].square().mean()

    for options, own in (({"label_smoothing_factor": 0.1}, None), ({}, square)):
        found = []
        for trainer_class in (Trainer, ResumableTrainer):
            run = trainer(
                tmp_path / f"{len(found)}", trainer_class, fields={"copy_head": True}, max_steps=3, **options
            )
            run.compute_loss_func, run.train_dataset = own, rows
            run.args.remove_unused_columns = False
            run.train()
            found.append(losses(run))
        assert found[0] == found[1] and len(found[0]) == 1
