import json
import math

import pytest

from hf_seqmix.analysis import markdown_table, run_environment, write_json


def test_json_is_replaced_in_one_piece(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"loss": 1.5, "bad": math.nan, "list": (1, math.inf), "é": True})
    assert json.loads(path.read_text(encoding="utf-8")) == {"loss": 1.5, "bad": None, "list": [1, None], "é": True}
    with pytest.raises(TypeError):
        write_json(path, {"object": object()})
    assert json.loads(path.read_text(encoding="utf-8"))["loss"] == 1.5


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_json(path, {"loss": 1.5})

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"loss": 2.5})
    assert json.loads(path.read_text())["loss"] == 1.5
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_markdown_table():
    table = markdown_table(
        [{"name": "a|b", "loss": 1.23456, "n": 1000}, {"name": "c", "loss": math.nan}],
        {"name": "model", "loss": "loss:.2f", "n": "tokens:,"},
    )
    assert table.splitlines() == [
        "| model | loss | tokens |",
        "| ----- | ---: | -----: |",
        "| a\\|b  | 1.23 |  1,000 |",
        "| c     |    - |      - |",
    ]


def test_environment_is_json():
    environment = json.loads(json.dumps(run_environment()))
    assert environment["versions"]["torch"]
    assert environment["command"].startswith("python ")
