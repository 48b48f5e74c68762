"""Rows of tables as results, and back."""

import pytest

from hf_seqmix.training.rows import row_of, row_results


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
