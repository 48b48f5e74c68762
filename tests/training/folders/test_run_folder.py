"""The output folder: refused when used, cleared of an earlier run on request; what a full disk leaves is explained."""

import errno
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hf_seqmix._files import write_json
from hf_seqmix.training import explain_write_error, prepare_run_folder
from hf_seqmix.training.folders.folder_lock import folders_released
from hf_seqmix.training.folders.run_folder import nothing_left
from tests.training.checkpoint_folder import write_checkpoint


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    with folders_released():
        yield


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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


def test_overwriting_deletes_what_would_be_taken_for_the_new_run(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 5)
    for name in ("results.json", "precision.json", "model.safetensors", "notes.txt", "checkpoint-best"):
        (tmp_path / name).write_text("x")
    prepare_run_folder(tmp_path, resume=True, overwrite=True)
    assert len(list(tmp_path.iterdir())) == 6
    with nothing_left(tmp_path):
        prepare_run_folder(tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "notes.txt", "checkpoint-best"}


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_a_refused_command_leaves_the_run_that_it_would_have_replaced(tmp_path: Path, error: type) -> None:
    write_checkpoint(tmp_path, 5)
    for name in ("results.json", "tokenizer.json", "model.safetensors", "notes.txt"):
        (tmp_path / name).write_text("earlier")
    before = contents(tmp_path)
    with pytest.raises(error), nothing_left(tmp_path):
        prepare_run_folder(tmp_path, overwrite=True)
        for name in ("tokenizer.json", "precision.json"):
            (tmp_path / name).write_text("new")
        raise error
    assert contents(tmp_path) == before


def test_a_process_killed_at_any_step_leaves_the_run_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("results.json", "tokenizer.json", "loss.png")
    for name in names:
        (tmp_path / name).write_text("earlier")
    before, rename = contents(tmp_path), Path.rename

    def killed_after(steps: int) -> None:
        left = [None] * steps

        def rename_or_die(path: Path, target: Path) -> Path:
            if not left:
                raise SystemExit
            left.pop()
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", rename_or_die)

    for steps in range(9):  # four renamings set three files aside, and four put them back
        killed_after(steps)
        with suppress(SystemExit):
            prepare_run_folder(tmp_path, overwrite=True)
            (tmp_path / "tokenizer.json").write_text("new")
            prepare_run_folder(tmp_path, resume=True)
        monkeypatch.undo()
        prepare_run_folder(tmp_path, resume=True)
        assert contents(tmp_path) == before, steps


def test_a_replaced_run_that_was_half_deleted_does_not_come_back(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("earlier")
    prepare_run_folder(tmp_path, overwrite=True)
    (tmp_path / ".replaced-run").rename(tmp_path / ".replaced-run-deleted")
    (tmp_path / "results.json").write_text("new")
    prepare_run_folder(tmp_path, resume=True)
    assert contents(tmp_path) == {Path("results.json"): b"new"}


def test_a_run_that_waits_for_another_process_is_left_alone(tmp_path: Path) -> None:
    waiting = tmp_path / ".replaced-run"
    waiting.mkdir()
    with pytest.raises(ValueError, match="refused"), nothing_left(tmp_path):  # before the folder was claimed
        raise ValueError("refused")
    assert waiting.is_dir()


def test_what_a_run_begins_from_is_not_deleted(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, 5)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    for read in (checkpoint, str(tmp_path)):
        with pytest.raises(ValueError, match=r"--overwrite-output-dir would clear: give another --output-dir"):
            prepare_run_folder(tmp_path, overwrite=True, read=[None, "bpe:300", read])
        prepare_run_folder(tmp_path, resume=True, overwrite=True, read=[read])
    assert checkpoint.is_dir() and (tmp_path / "tokenizer_config.json").is_file()
    prepare_run_folder(tmp_path / "checkpoint", overwrite=True, read=[checkpoint, tmp_path])


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


def test_what_is_refused_leaves_a_free_folder_as_it_was(tmp_path: Path) -> None:
    for name, error, left in (
        ("new", ValueError, None),
        ("empty", ValueError, []),
        ("used", ValueError, ["kept", "written"]),
        ("stopped", KeyboardInterrupt, ["written"]),
    ):
        folder = tmp_path / name
        if name in ("empty", "used"):
            folder.mkdir()
        if name == "used":
            (folder / "kept").write_text("x")
        with pytest.raises(error), nothing_left(folder):
            folder.mkdir(exist_ok=True)
            (folder / "written").write_text("x")
            raise error
        found = sorted(path.name for path in folder.iterdir()) if folder.exists() else None
        assert found == left, name


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


def test_a_folder_that_was_there_keeps_its_permissions_and_its_link(tmp_path: Path) -> None:
    folder, link = tmp_path / "private", tmp_path / "link"
    folder.mkdir(mode=0o700)
    link.symlink_to(folder)
    for given in (folder, link):
        with pytest.raises(ValueError, match="refused"), nothing_left(given):
            (given / "deeper").mkdir()
            (given / "deeper" / "written").touch()
            (given / "written").touch()
            raise ValueError("refused")
        assert list(folder.iterdir()) == [] and folder.stat().st_mode & 0o777 == 0o700
    assert link.is_symlink()
