"""Rows of tables as results, and back."""

import argparse
import json

import pytest

from hf_seqmix.training.results import Result
from hf_seqmix.training.run import run_of
from hf_seqmix.training.table_rows import row_of, row_results


def test_models_that_begin_keys_come_back():
    row = {"op": "ski", "length": 8, "clock": "wall time", "ours_ms": 2.0, "ours_b_ms": 3.0, "errors": {"ours": 1e-7}}
    found = row_results([row], "op", "none", models=["ours", "ours_b"], setting=["length"])
    assert {(r.task, r.model, r.metric, r.value) for r in found} == {
        ("ski", "ours", "ms", 2.0),
        ("ski", "ours_b", "ms", 3.0),
        ("ski", "ours", "errors", 1e-7),
    }
    assert all(r.setting == {"length": 8, "clock": "wall time"} and "command" not in r.environment for r in found)
    back = row_of(found)
    assert (back["ours_b_ms"], back["length"]) == (3.0, 8)


def test_a_run_is_of_the_result_s_own_seed_and_model():
    arguments = argparse.Namespace(output_dir="x", task="copy", width=8, steps=3, seeds=[1, 2], device=None)
    row = {"model": "tnn", "loss": 1.0, "losses": {"1": 2.0, "2": 3.0}}
    found = row_results([row], "text", "model", inner={"losses": ("seed",)}, run=run_of(arguments, "study"))
    assert [result.run.to_json() for result in found] == [
        {
            "task": "study",
            "model": {"name": "tnn", "width": 8},
            "data": {"task": "copy"},
            "training": {"steps": 3, "seeds": [1, 2]},
            "seed": seed,
        }
        for seed in (0, 1, 2)
    ]
    again = [Result.from_json(json.loads(json.dumps(result.to_json()))) for result in found]
    assert again == found
    assert all(result.command.startswith("python ") for result in found)


def test_levels_of_nested_values_are_named():
    row = {"model": "tnn", "loss": None, "curves": {"1": [[25, 2.0], [50, None]]}, "seeds": [4.0], "flag": True}
    found = row_results([row], "text", "model", inner={"curves": ("seed", "step"), "seeds": ("seed",)})
    assert [(r.seed, r.metric, r.value, r.setting) for r in found] == [
        (1, "curves", 2.0, {"flag": True, "step": 25}),
        (1, "curves", None, {"flag": True, "step": 50}),
        (0, "seeds", 4.0, {"flag": True}),
    ]
    assert row_of(row_results([{"model": "a", "x": 1, "n": 2}], "t", "model", setting=["n"]), "model") == {
        "model": "a",
        "x": 1,
        "n": 2,
    }
    with pytest.raises(ValueError, match="'curves' of a row is nested"):
        row_results([row], "text", "model")
