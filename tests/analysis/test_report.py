import json
import math

import pytest

from hf_seqmix.analysis import ResultLog, markdown_table, run_environment


def test_results_are_found_again_and_the_newest_wins(tmp_path):
    path = tmp_path / "results.jsonl"
    log = ResultLog(path)
    assert log.get({"model": "a", "length": 1}) is None
    log.append({"model": "a", "length": 1}, {"loss": 1.5})
    log.append({"model": "é", "length": 1}, {"loss": 2.5})
    log.append({"model": "a", "length": 1}, {"loss": 0.5})
    for reader in (log, ResultLog(path)):
        assert reader.get({"length": 1, "model": "a"}) == {"loss": 0.5}
        assert reader.get({"model": "é", "length": 1}) == {"loss": 2.5}
        assert reader.get({"model": "a", "length": 2}) is None
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3
    log.forget({"model": "a", "length": 1})
    assert log.get({"model": "a", "length": 1}) is None


def test_line_cut_short_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / "results.jsonl"
    log = ResultLog(path)
    log.append({"n": 1}, {"loss": 1.5})
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"key": {"é": 2}, "res')
    log = ResultLog(path)
    log.append({"n": 3}, {"loss": 3.5})
    reader = ResultLog(path)
    assert [reader.get({"n": n}) for n in (1, 2, 3)] == [{"loss": 1.5}, None, {"loss": 3.5}]


def test_file_of_another_kind_is_not_touched(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("notes\nof mine\n")
    with pytest.raises(ValueError, match=r"Line 1 of .* is not a result"):
        ResultLog(path)
    assert path.read_text() == "notes\nof mine\n"


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
