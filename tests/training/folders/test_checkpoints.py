"""Checkpoints: sealed when whole, faults named, the newest whole one chosen, the last whole one never removed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hf_seqmix.training import choose_checkpoint, fault_of, last_complete_checkpoint
from hf_seqmix.training.folders.checkpoints import (
    open_checkpoint_folder,
    remove_old_checkpoints,
    seal_checkpoint,
    set_aside_later,
    written_by,
)
from tests.training.checkpoint_folder import write_checkpoint


def sealed(folder: Path, step: int, **state: object) -> Path:
    open_checkpoint_folder(folder / f"checkpoint-{step}")
    checkpoint = write_checkpoint(folder, step, **state)
    seal_checkpoint(checkpoint, num_processes=2)
    return checkpoint


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def lengthen(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b"x")


def flip(name: str) -> Callable[[Path], None]:
    """One bit in the middle, where the numbers are."""

    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text)


FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]


def test_a_sealed_checkpoint_is_whole(tmp_path: Path) -> None:
    checkpoint = sealed(tmp_path, 3)
    assert fault_of(checkpoint) is None
    assert written_by(checkpoint) == 2
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert set(manifest["files"]) == set(FILES)
    (checkpoint / "notes.txt").write_text("a file more is nobody's business")
    assert fault_of(checkpoint) is None


@pytest.mark.parametrize("name", FILES)
def test_every_damage_to_a_sealed_checkpoint_is_found_and_named(tmp_path: Path, name: str) -> None:
    size = (sealed(tmp_path, 1) / name).stat().st_size
    cases = [
        (cut(name), f"{name} is cut short: it has {size // 2} of {size} bytes"),
        (lengthen(name), f"{name} is of another size: it has {size + 1} of {size} bytes"),
        (flip(name), f"{name} is damaged: its SHA-256 is not that in the manifest"),
        (remove(name), f"{name} is missing"),
    ]
    for damage, fault in cases:
        checkpoint = sealed(tmp_path, 1)
        damage(checkpoint)
        assert fault_of(checkpoint) == fault


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        *((cut(name), rf"^{name} is (cut short or damaged|not JSON)") for name in FILES),
        (flip("optimizer.pt"), "optimizer.pt is damaged: the checksum of"),
        *((remove(name), f"^{name} is missing") for name in FILES),
        (write("model.safetensors", ""), "model.safetensors is cut short or damaged"),
        (write("trainer_state.json", "[" * 100_000), "trainer_state.json is not JSON"),
        (write("config.json", "{"), "config.json is not JSON"),
        (
            write("model.safetensors.index.json", '{"weight_map": {"a": "model-7.safetensors"}}'),
            "^model-7.* is missing",
        ),
    ],
)
def test_without_a_manifest_formats_are_checked(tmp_path: Path, damage: Callable[[Path], None], fault: str) -> None:
    """So does the `Trainer` alone write checkpoints."""
    checkpoint = write_checkpoint(tmp_path, 1)
    (checkpoint / "list.json").write_text("[1, 2]")
    assert fault_of(checkpoint) is None
    assert written_by(checkpoint) is None
    damage(checkpoint)
    with pytest.raises(ValueError, match=fault):
        raise ValueError(fault_of(checkpoint))


def test_an_interrupted_writing_is_told_from_a_plain_trainers(tmp_path: Path) -> None:
    """Killed before the seal: all files of the first process may be there, those of others not."""
    open_checkpoint_folder(tmp_path / "checkpoint-1")
    assert fault_of(tmp_path / "checkpoint-1") == "its writing was interrupted: model.safetensors is missing"
    checkpoint = write_checkpoint(tmp_path, 1)
    assert fault_of(checkpoint) == "its writing was interrupted: other files may be missing"
    cut("optimizer.pt")(checkpoint)
    assert "interrupted: optimizer.pt is cut short" in fault_of(checkpoint)


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"complete": true}',
        '{"complete": true, "files": []}',
        '{"complete": true, "files": {"a": 3}}',
        '{"complete": true, "files": {"../checkpoint-1/optimizer.pt": {}}}',
        '{"complete": true, "files": {"/etc/passwd": {"bytes": 1}}}',
        '{"complete": true, "files": {"optimizer.pt": {"bytes": "many"}}}',
    ],
)
def test_a_broken_manifest_is_a_fault(tmp_path: Path, manifest: str) -> None:
    checkpoint = write_checkpoint(tmp_path, 1)
    (checkpoint / "manifest.json").write_text(manifest)
    assert fault_of(checkpoint)


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_manifest_that_leads_out_of_its_folder_is_a_fault(tmp_path: Path, is_absolute: bool) -> None:
    checkpoint = sealed(tmp_path, 1)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (tmp_path / "other").write_bytes((checkpoint / "optimizer.pt").read_bytes())
    name = str(tmp_path / "other") if is_absolute else "../other"
    manifest["files"][name] = manifest["files"]["optimizer.pt"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    assert fault_of(checkpoint) == "manifest.json does not say which files there are"


def test_the_newest_whole_one_is_chosen_by_its_step(tmp_path: Path) -> None:
    older, newer, newest = (sealed(tmp_path, step) for step in (90, 900, 1000))
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-2000").write_text("a file")
    assert choose_checkpoint(tmp_path) == (newest, {})
    cut("optimizer.pt")(newest)
    flip("model.safetensors")(newer)
    chosen, passed_over = choose_checkpoint(tmp_path)
    assert chosen == older == last_complete_checkpoint(tmp_path)
    assert list(passed_over) == [newest, newer]
    assert "optimizer.pt is cut short" in passed_over[newest]
    assert "model.safetensors is damaged" in passed_over[newer]


def test_none_at_all_is_no_error_but_none_whole_is(tmp_path: Path) -> None:
    assert choose_checkpoint(tmp_path) == choose_checkpoint(tmp_path / "no-folder") == (None, {})
    assert fault_of(tmp_path / "no-folder") == "there is no such folder"
    remove("scheduler.pt")(sealed(tmp_path, 1))
    open_checkpoint_folder(tmp_path / "checkpoint-2")
    with pytest.raises(
        ValueError, match=r"checkpoint-2: its writing.*checkpoint-1: scheduler.pt is missing.*Start anew"
    ):
        choose_checkpoint(tmp_path)
    assert last_complete_checkpoint(tmp_path) is None


def test_a_damaged_best_checkpoint_rules_out_those_that_need_it(tmp_path: Path) -> None:
    first = sealed(tmp_path, 1, best_model_checkpoint=str(tmp_path / "checkpoint-1"))
    second = sealed(tmp_path, 2, best_model_checkpoint=str(tmp_path / "checkpoint-2"))
    third = sealed(tmp_path, 3, best_model_checkpoint=str(tmp_path / "checkpoint-2"))
    assert choose_checkpoint(tmp_path, needs_best=True)[0] == third
    flip("model.safetensors")(second)
    assert choose_checkpoint(tmp_path)[0] == third
    chosen, passed_over = choose_checkpoint(tmp_path, needs_best=True)
    assert chosen == first
    assert "needs the best checkpoint checkpoint-2, but model.safetensors is damaged" in passed_over[third]


def test_a_run_that_was_moved_still_has_its_best_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2):
        sealed(tmp_path, step, best_model_checkpoint="elsewhere/checkpoint-1")
    assert choose_checkpoint(tmp_path, needs_best=True) == (tmp_path / "checkpoint-2", {})


def test_a_model_alone_is_nothing_to_continue_from(tmp_path: Path) -> None:
    open_checkpoint_folder(tmp_path / "checkpoint-1")
    checkpoint = write_checkpoint(tmp_path, 1)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).unlink()
    seal_checkpoint(checkpoint)
    assert "save-only-model" in fault_of(checkpoint)


def test_shards_and_subfolders_are_sealed_too(tmp_path: Path) -> None:
    open_checkpoint_folder(tmp_path / "checkpoint-1")
    checkpoint = write_checkpoint(tmp_path, 1)
    (checkpoint / "adapter").mkdir()
    save_file({"a": torch.zeros(3)}, checkpoint / "adapter" / "adapter_model.safetensors")
    seal_checkpoint(checkpoint)
    assert fault_of(checkpoint) is None
    cut("adapter/adapter_model.safetensors")(checkpoint)
    assert fault_of(checkpoint).startswith("adapter/adapter_model.safetensors is cut short")


def test_a_checkpoint_begins_empty(tmp_path: Path) -> None:
    checkpoint = sealed(tmp_path, 1)
    open_checkpoint_folder(checkpoint)
    assert [path.name for path in checkpoint.iterdir()] == ["manifest.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def test_old_checkpoints_go_and_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        newest = sealed(tmp_path, step)
    remove_old_checkpoints(tmp_path, None, newest=newest)
    remove_old_checkpoints(tmp_path, 0, newest=newest)
    assert steps(tmp_path) == [1, 2, 3, 4]
    remove_old_checkpoints(tmp_path, 3, newest=newest, best=str(tmp_path / "checkpoint-1"))
    assert steps(tmp_path) == [1, 3, 4]
    remove_old_checkpoints(tmp_path, 1, newest=newest)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


def test_unsealed_checkpoints_go_first_even_if_their_step_is_higher(tmp_path: Path) -> None:
    """The library keeps the highest step where files are less than a second apart, be it whole or not."""
    sealed(tmp_path, 3)
    open_checkpoint_folder(tmp_path / "checkpoint-6")
    newest = sealed(tmp_path, 4)
    remove_old_checkpoints(tmp_path, 2, newest=newest)
    assert steps(tmp_path) == [3, 4]
    open_checkpoint_folder(tmp_path / "checkpoint-6")
    remove_old_checkpoints(tmp_path, 1, newest=newest)
    assert steps(tmp_path) == [4]


def test_later_checkpoints_are_set_aside_when_a_run_goes_back(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        sealed(tmp_path, step)
    aside = set_aside_later(tmp_path, tmp_path / "checkpoint-1")
    assert {path.name for path in aside} == {"superseded-checkpoint-2", "superseded-checkpoint-10"}
    assert steps(tmp_path) == [1]
    assert all(fault_of(path) is None for path in aside)
    other = sealed(tmp_path / "other", 0)
    assert set_aside_later(tmp_path, other) == []
    assert set_aside_later(tmp_path, tmp_path / "other") == []
    assert steps(tmp_path) == [1]


def test_a_run_goes_back_to_what_was_set_aside(tmp_path: Path) -> None:
    for step in (10, 30, 40):
        sealed(tmp_path, step)
    set_aside_later(tmp_path, tmp_path / "checkpoint-10")
    (tmp_path / "superseded-checkpoint-30" / "first").touch()
    for step in (30, 40):
        sealed(tmp_path, step)
    aside = set_aside_later(tmp_path, tmp_path / "superseded-checkpoint-30")
    assert [path.name for path in aside] == ["superseded-2-checkpoint-40", "superseded-2-checkpoint-30"]
    assert (tmp_path / "superseded-checkpoint-30" / "first").exists()
    assert steps(tmp_path) == [10]
