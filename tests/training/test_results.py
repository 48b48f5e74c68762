import json
import math

import pytest

from hf_seqmix.training.results import (
    Result,
    ResultFile,
    Run,
    group_results,
    markdown_table,
    read_results,
    results_table,
    run_environment,
    summarize,
    write_results,
)

RUN = Run("listops", {"model_type": "tnn"}, {"max_length": 66}, {"learning_rate": 3e-3, "betas": (0.9, 0.98)}, seed=1)


def result(value=0.5, **more):
    fields = {"task": "listops", "model": "tnn", "metric": "accuracy", "seed": 0}
    return Result(value=value, **{**fields, **more})


def test_run_is_read_back_with_its_digest():
    again = Run.from_json(json.loads(json.dumps(RUN.to_json())))
    assert again == RUN
    assert again.digest == RUN.digest
    assert len(RUN.digest) == 12
    assert Run("listops", {"model_type": "tnn"}, seed=1).digest != RUN.digest


@pytest.mark.parametrize("value", [{1, 2}, math.nan, object()])
def test_run_of_what_json_has_not_is_refused(value):
    with pytest.raises(ValueError, match="training of a run, rate"):
        Run("listops", training={"rate": value})


def test_result_is_read_back_whole(tmp_path):
    full = result(
        size="fast",
        kind="baseline",
        setting={"context": 512, "dtype": "float32"},
        unit="bits",
        run=RUN,
        source="Tay et al. 2021",
        command="python x",
        environment={"versions": {"torch": "2"}},
    )
    assert Result.from_json(json.loads(json.dumps(full.to_json()))) == full
    assert result().to_json() == {"task": "listops", "model": "tnn", "metric": "accuracy", "value": 0.5, "seed": 0}
    assert result(math.nan).to_json()["value"] is None
    assert full.get("context") == 512
    assert full.get("model") == "tnn"
    assert full.get("none") is None


def test_result_of_wrong_form_names_the_field():
    with pytest.raises(ValueError, match="kind of a result is 'guessed'"):
        result(kind="guessed")
    with pytest.raises(ValueError, match="setting 'lengths'"):
        result(setting={"lengths": [1, 2]})
    with pytest.raises(ValueError, match="a result has no field 'value'"):
        Result.from_json({"task": "a", "model": "b", "metric": "c"})
    with pytest.raises(ValueError, match="field 'seed' is '0'"):
        Result.from_json({**result().to_json(), "seed": "0"})
    with pytest.raises(ValueError, match="unknown field 'family'"):
        Result.from_json({**result().to_json(), "family": "tnn"})


def test_curves_become_a_result_a_step():
    found = group_results(
        {"accuracy": 0.5, "loss": [[10, 2.0], [20, 1.0]]}, task="t", model="m", seed=0, setting={"length": 8}
    )
    assert [(r.metric, r.value, r.get("step"), r.get("length")) for r in found] == [
        ("accuracy", 0.5, None, 8),
        ("loss", 2.0, 10, 8),
        ("loss", 1.0, 20, 8),
    ]


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


def test_line_cut_short_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / "runs.jsonl"
    ResultFile(path).append({"n": 1}, result(1.5))
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"key": {"é": 2}, "res')
    assert [found.value for found in read_results(path)] == [1.5]
    log = ResultFile(path)
    log.append({"n": 3}, result(3.5, seed=3))
    assert [found.value for found in ResultFile(path).results] == [1.5, 3.5]


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


def test_files_are_read_together_unless_they_contradict_each_other(tmp_path):
    first, second, third = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    baseline = result(0.1, model="majority class", kind="baseline", seed=None)
    write_results(first, [result(0.5), baseline])
    write_results(second, [result(0.7, seed=1), baseline])
    write_results(third, [result(0.6)])
    assert [found.value for found in read_results([first, second])] == [0.5, 0.1, 0.7]
    with pytest.raises(ValueError, match=r"c\.jsonl repeats accuracy of tnn on listops, seed 0, .* than .*a\.jsonl"):
        read_results([first, third])
    with pytest.raises(ValueError, match="cannot be read"):
        read_results([tmp_path / "none.jsonl"])


def test_summary_is_over_seeds():
    shown = [result(0.5), result(0.7, seed=1), result(None, seed=2), result(3.0, metric="loss")]
    accuracy, loss = summarize(shown)
    assert accuracy.mean == pytest.approx(0.6)
    assert accuracy.spread == pytest.approx(math.sqrt(0.02))
    assert accuracy.seeds == (0, 1)
    assert (loss.mean, loss.spread, loss.seeds) == (3.0, None, (0,))
    assert summarize([result(None)])[0].mean is None


def test_table_has_means_spreads_baselines_and_published_figures():
    shown = [
        result(0.1, model="majority class", kind="baseline", seed=None),
        result(0.4733, kind="published", size="full", seed=None, source="Moreno et al. 2023"),
        result(0.5),
        result(0.7, seed=1),
        result(1200, metric="updates"),
        result(1200, metric="updates", seed=1),
    ]
    assert results_table(
        shown, {"model": "family"}, {"accuracy": "accuracy:.3f", "updates": "updates"}
    ).splitlines() == [
        "| family           | accuracy |     ± | updates | seeds |",
        "| ---------------- | -------: | ----: | ------: | ----: |",
        "| tnn              |    0.600 | 0.141 |   1,200 |     2 |",
        "| (majority class) |    0.100 |     - |       - |     - |",
        "| tnn (published)  |    0.473 |     - |       - |     - |",
    ]


def test_table_over_a_setting():
    shown = [result(0.1 * n, setting={"length": n}) for n in (1, 2)]
    lines = results_table(shown, ["task", "model"], over="length").splitlines()
    assert lines[0].split() == ["|", "task", "|", "model", "|", "1", "|", "2", "|"]
    assert "0.2000" in lines[2]
    with pytest.raises(ValueError, match="two figures fall into the cell tnn, accuracy"):
        results_table(shown)


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
