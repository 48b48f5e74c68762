import json
import math

import pytest

from hf_seqmix.training.results import Result, group_results, summarize
from hf_seqmix.training.run import Run
from tests.training.sample_results import RUN, result


def test_result_is_read_back_whole():
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
    with pytest.raises(ValueError, match="setting 'decay' of a result is nan"):
        result(setting={"decay": math.nan})
    with pytest.raises(ValueError, match="value of a result is True"):
        result(True)
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


def test_summary_is_over_seeds():
    shown = [result(0.5), result(0.7, seed=1), result(None, seed=2), result(3.0, metric="loss")]
    accuracy, loss = summarize(shown)
    assert accuracy.mean == pytest.approx(0.6)
    assert accuracy.spread == pytest.approx(math.sqrt(0.02))
    assert accuracy.seeds == (0, 1)
    assert (loss.mean, loss.spread, loss.seeds) == (3.0, None, (0,))
    assert summarize([result(None)])[0].mean is None


def test_what_runs_of_seeds_have_not_in_common():
    def seed(number, **training):
        run = Run("t", model={"taps": [5, number // 2]}, training={"seeds": [number], **training}, seed=number)
        return result(0.5, seed=number, run=run)

    alike = [
        seed(0, pretraining={"steps": 9}, steps=1),
        seed(1, pretraining={"steps": 9}, steps=1),
        result(0.5, seed=4),
    ]
    apart = [*alike, seed(2, pretraining={"steps": 8}, steps=1, bf16=None)]
    assert summarize(alike)[0].differing == {}
    assert summarize(apart)[0].differing == {"taps": ["[5, 0]", "[5, 1]"], "pretraining.steps": [9, 8]}


def test_figures_of_two_papers_stay_two():
    papers = {"Tay et al. 2021": 0.5, "Qin et al. 2023": 0.6}
    published = [result(value, kind="published", source=source) for source, value in papers.items()]
    assert [summary.mean for summary in summarize(published)] == [0.5, 0.6]
