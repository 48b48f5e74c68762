"""The output folder: refused when used, checkpoints cut short passed over, JSON whole or untouched."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hf_seqmix.data import explain_write_error, last_complete_checkpoint, prepare_run_folder, write_json


def write_checkpoint(folder: Path, step: int) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    save_file({"weight": torch.arange(1000.0)}, checkpoint / "model.safetensors")
    torch.save({"state": torch.arange(1000.0)}, checkpoint / "optimizer.pt")
    (checkpoint / "trainer_state.json").write_text('{"global_step": 1}')
    return checkpoint


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: cut(folder / "model.safetensors"),
        lambda folder: cut(folder / "optimizer.pt"),
        lambda folder: cut(folder / "trainer_state.json"),
        lambda folder: (folder / "trainer_state.json").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
    ],
)
def test_checkpoints_cut_short_are_passed_over(tmp_path: Path, damage) -> None:
    older, newer = (write_checkpoint(tmp_path, step) for step in (900, 1000))
    (tmp_path / "checkpoint-best").mkdir()
    assert last_complete_checkpoint(tmp_path) == newer
    damage(newer)
    assert last_complete_checkpoint(tmp_path) == older
    damage(older)
    assert last_complete_checkpoint(tmp_path) is None


def test_no_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert last_complete_checkpoint(tmp_path / "none") is None


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    folder = prepare_run_folder(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert not any(folder.iterdir())
    prepare_run_folder(folder)
    (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"not empty.*--resume.*--overwrite-output-dir"):
        prepare_run_folder(folder)
    prepare_run_folder(folder, resume=True)
    prepare_run_folder(folder, overwrite=True)
    assert (folder / "model.safetensors").read_bytes() == b"x"


def test_a_file_or_an_unwritable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        prepare_run_folder(tmp_path / "file")
    with pytest.raises(ValueError, match="cannot be written to: Not a directory"):
        prepare_run_folder(tmp_path / "file" / "run")

    def read_only(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with pytest.raises(ValueError, match="cannot be written to: Read-only file system"):
        prepare_run_folder(tmp_path / "run")


def test_only_errors_of_the_disk_are_explained(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "model.safetensors")
    assert "No space left" in explain_write_error(full, tmp_path)
    assert "No checkpoint had been written" in explain_write_error(full, tmp_path)
    checkpoint = write_checkpoint(tmp_path, 5)
    assert f"{checkpoint}; continue from it with --resume" in explain_write_error(full, tmp_path)
    for other in (ValueError("x"), FileNotFoundError(errno.ENOENT, "No such file"), RuntimeError("shapes differ")):
        assert explain_write_error(other, tmp_path) is None


def test_errors_of_the_libraries_writers_are_known(tmp_path: Path) -> None:
    # A file size limit stands in for a full disk: both libraries meet the system's refusal to write.
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    messages = []
    for write in (
        lambda: save_file({"weight": torch.zeros(100_000)}, tmp_path / "model.safetensors"),
        lambda: torch.save(torch.zeros(100_000), tmp_path / "optimizer.pt"),
        lambda: write_json(tmp_path / "results.json", "x" * 100_000),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            write()
        except Exception as error:
            messages.append(explain_write_error(error, tmp_path))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(messages) == 3
    assert all(message and "could not be written" in message for message in messages)
    assert not (tmp_path / "results.json").exists()


def test_json_is_whole_or_untouched(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"loss": [1.5, float("nan"), float("inf")], 3: ("\u20ac", None, True)})
    assert json.loads(path.read_text(encoding="utf-8")) == {"loss": [1.5, None, None], "3": ["\u20ac", None, True]}
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
