import json
from pathlib import Path

import pytest

from hf_seqmix.training.result_files import ResultFile, read_results, write_results
from tests.training.sample_results import RUN, result


def test_results_are_found_again_and_the_newest_wins(tmp_path):
    path = tmp_path / "runs.jsonl"
    log = ResultFile(path)
    assert log.get({"model": "a", "length": 1}) is None
    log.append({"model": "a", "length": 1}, result(1.5))
    log.append(
        {"model": "é", "length": 1}, [result(2.5, model="é", run=RUN), result(3, model="é", metric="n", run=RUN)]
    )
    log.append(RUN, result(0.25, seed=1))
    log.append({"model": "a", "length": 1}, result(0.5))
    for reader in (log, ResultFile(path)):
        assert reader.get({"length": 1, "model": "a"}) == [result(0.5)]
        assert [found.value for found in reader.get({"model": "é", "length": 1})] == [2.5, 3]
        assert reader.get(RUN) == [result(0.25, seed=1)]
        assert reader.get({"model": "a", "length": 2}) is None
        assert sorted(found.value for found in reader.results) == [0.25, 0.5, 2.5, 3]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    assert lines[1].count("model_type") == 1  # what a group shares is written once
    log.forget({"model": "a", "length": 1})
    assert log.get({"model": "a", "length": 1}) is None
    assert {found.value for found in read_results(path)} == {0.25, 0.5, 2.5, 3}


def test_groups_with_unwanted_results_are_removed_from_the_file(tmp_path):
    path = tmp_path / "runs.jsonl"
    log = ResultFile(path)
    log.append({"n": 1}, [result(1.5), result(2, metric="n")])
    log.append({"n": 2, "é": [1]}, result(2.5, seed=2, run=RUN))
    log.remove(lambda each: each.value == 1.5)
    for reader in (log, ResultFile(path)):
        assert reader.get({"n": 1}) is None and reader.get({"é": [1], "n": 2}) == [result(2.5, seed=2, run=RUN)]
    assert [found.value for found in read_results(path)] == [2.5]


def test_settings_that_a_group_shares_are_written_once_and_read_back(tmp_path):
    group = [
        result(1.0, setting={"data": "text", "length": 8}),
        result(2.0, setting={"data": "text", "length": 8, "step": 1}),
        result(3.0, setting={"data": "text"}),
    ]
    write_results(tmp_path / "results.jsonl", group)
    [line] = (tmp_path / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["shared"]["setting"] == {"data": "text"}
    assert read_results(tmp_path / "results.jsonl") == group


def test_line_cut_short_by_a_kill_is_dropped(tmp_path, caplog):
    path = tmp_path / "runs.jsonl"
    ResultFile(path).append({"n": 1}, result(1.5))
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"key": {"é": 2}, "res')
    assert [found.value for found in read_results(path)] == [1.5]
    assert f"{path}: the last line is cut short, and its results are left out." in caplog.text
    log = ResultFile(path)
    log.append({"n": 3}, result(3.5, seed=3))
    assert [found.value for found in ResultFile(path).results] == [1.5, 3.5]


def test_a_line_cut_inside_a_character_is_dropped(tmp_path):
    path = tmp_path / "runs.jsonl"
    log = ResultFile(path)
    log.append({"n": 1}, result(1.5))
    log.append({"n": 2}, result(2.5, model="modèle", seed=2))
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex("è".encode()) + 1])
    assert [found.value for found in read_results(path)] == [1.5]
    assert [found.value for found in ResultFile(path).results] == [1.5]
    assert path.read_bytes().endswith(b"\n")


def test_other_ends_of_lines_within_a_text_end_none(tmp_path):
    path = tmp_path / "runs.jsonl"
    group = [result(1.5, setting={"prompt": "one\u2028two\u2029three\x85four\r\nfive"})]
    ResultFile(path).append({"n": 1}, group)
    assert ResultFile(path).results == read_results(path) == group


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "runs.jsonl"
    log = ResultFile(path)
    for number in (1, 2):
        log.append({"n": number}, result(number, seed=number))
    path.write_bytes(path.read_bytes().rstrip())
    assert [found.value for found in read_results(path)] == [1, 2]
    ResultFile(path).append({"n": 3}, result(3, seed=3))
    assert [found.value for found in read_results(path)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("notes\nof mine\n", "line 1 is not JSON"),
        ('{"benchmark": "lra"}\n', r"line 1 has (no field|the unknown field)"),
        (
            '{"key": {}, "shared": {}, "results": []}\n{"key": {}, "shared": {}, "results": 3}\n',
            "line 2, field 'results'",
        ),
        ('{"key": {}, "shared": {}, "results": [{"task": "a"}]}\n', "line 1, result 1 has no field"),
    ],
)
def test_file_of_another_kind_is_named_and_not_touched(tmp_path, content, message):
    path = tmp_path / "results.jsonl"
    path.write_text(content)
    for reader in (ResultFile, read_results):
        with pytest.raises(ValueError, match=f"results.jsonl, {message}"):
            reader(path)
    assert path.read_text() == content


def test_file_without_a_last_line_end_is_not_cut_unless_it_is_one_of_results(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("notes of somebody")
    with pytest.raises(ValueError, match=r"notes\.txt, line 1 is not of a file of results"):
        ResultFile(path)
    assert path.read_text() == "notes of somebody"


def test_files_are_read_together_unless_they_contradict_each_other(tmp_path):
    first, second, third = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    baseline = result(0.1, model="majority class", kind="baseline", seed=None)
    write_results(first, [result(0.5), baseline])
    write_results(second, [result(0.7, seed=1), baseline])
    write_results(third, [result(0.6)])
    assert [found.value for found in read_results([first, second])] == [0.5, 0.1, 0.7]
    with pytest.raises(ValueError, match=r"c\.jsonl repeats accuracy of tnn on listops, seed 0, .* than .*a\.jsonl"):
        read_results([first, third])
    with pytest.raises(ValueError, match=r"none\.jsonl cannot be read as .*: No such file or directory; check the"):
        read_results([tmp_path / "none.jsonl"])
    with pytest.raises(ValueError, match=r"Is a directory; name a file in it, such as .*results\.jsonl\. Paths"):
        read_results(tmp_path)


MEASURED = Path(__file__).resolve().parents[2] / "scripts" / "measured"


@pytest.mark.parametrize("path", sorted(MEASURED.rglob("*.jsonl")), ids=lambda path: str(path.relative_to(MEASURED)))
def test_committed_results_have_runs_of_their_seeds_that_name_the_model(path):
    measured = [found for found in read_results(path) if found.kind == "measured"]
    assert measured
    for found in measured:
        assert found.run is not None and found.run.model
        assert found.run.seed == (found.seed or 0)
