"""JSON and folders of files are whole or untouched."""

import json
import threading
from pathlib import Path

import pytest

from hf_seqmix._files import whole_files, write_json


def test_json_is_whole_or_untouched(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"loss": [1.5, float("nan"), float("inf")], 3: ("\u20ac", None, True)})
    assert json.loads(path.read_text(encoding="utf-8")) == {"loss": [1.5, None, None], "3": ["\u20ac", None, True]}
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_a_file_that_is_written_again_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, 1)
    path.chmod(0o600)
    write_json(path, 2)
    assert path.stat().st_mode & 0o777 == 0o600


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_appear_together(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with whole_files(folder, last="model*.safetensors*") as aside:
        for name in ("config.json", "model.safetensors"):
            (aside / name).write_text("1")
        assert names(folder) == [aside.name]
        assert aside.name.startswith(".")
    assert names(folder) == ["config.json", "model.safetensors"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("old")
    with pytest.raises(OSError, match="full"), whole_files(tmp_path, last="model*.safetensors*") as aside:
        (aside / "config.json").write_text("new")
        raise OSError("full")
    assert names(tmp_path) == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_text() == "old"


def test_nothing_stays_of_a_model_in_other_files(tmp_path: Path) -> None:
    """`from_pretrained` reads model.safetensors and not the index, if both are there."""
    for name in ("model.safetensors", "notes.txt"):
        (tmp_path / name).write_text("old")
    with whole_files(tmp_path, last="model*.safetensors*") as aside:
        for name in ("model-00001-of-00001.safetensors", "model.safetensors.index.json", "config.json"):
            (aside / name).write_text("new")
        (aside / "sub").mkdir()
    expected = ["config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json", "notes.txt", "sub"]
    assert names(tmp_path) == expected


def test_where_nothing_was_written_nothing_goes(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("old")
    with whole_files(tmp_path, last="model*.safetensors*"):
        pass
    assert names(tmp_path) == ["model.safetensors"]


def test_a_folder_takes_the_place_of_one_with_files(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with whole_files(tmp_path, last="config.json") as aside:
            (aside / "code").mkdir()
            (aside / "code" / content).write_text(content)
    assert names(tmp_path / "code") == ["new"]


def test_a_stop_between_two_files_leaves_none_that_says_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = ["second", "first"]

    def replace(path: Path, target: Path) -> None:
        if not moves:
            raise OSError("full")
        moves.pop()
        path.rename(target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="full"), whole_files(tmp_path, last="config.json") as aside:
        for name in ("vocab.json", "config.json", "a.txt"):
            (aside / name).write_text("1")
    assert names(tmp_path) == ["a.txt", "vocab.json"]


def test_leftovers_of_a_kill_are_cleared(tmp_path: Path) -> None:
    with whole_files(tmp_path, last="x") as aside:
        leftover = aside.name
    (tmp_path / leftover).mkdir()
    (tmp_path / leftover / "half").write_text("x")
    with whole_files(tmp_path, last="x") as aside:
        (aside / "x").write_text("x")
    assert names(tmp_path) == ["x"]


def test_two_threads_write_one_file(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def write(value: int) -> None:
        try:
            for _ in range(30):
                write_json(tmp_path / "a.json", [value] * 1000)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(set(json.loads((tmp_path / "a.json").read_text()))) == 1
    assert names(tmp_path) == ["a.json"]
