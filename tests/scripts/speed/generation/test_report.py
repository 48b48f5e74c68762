"""What the first tokens took is summed where timed, and taken to grow evenly between samples."""

import pytest
from generation.report import Stretch, first_tokens, rows_of, wins

from hf_seqmix.training.results import Result


def test_whole_texts_are_summed():
    stretches = [Stretch(0, 4, 4.0, 900.0, 2000.0), Stretch(4, 8, 6.0, 1500.0, 1600.0, 1e-6)]
    found = first_tokens(stretches, 8)
    assert found is not None
    assert (found["seconds"], found["mean_ms"], found["median_ms"]) == (10.0, 1250.0, 1500.0)
    assert (found["worst_ms"], found["error"], found["measured"]) == (2000.0, 1e-6, "in full")
    assert first_tokens(stretches, 6) is None


def test_costs_that_grow_evenly_are_found_from_samples():
    def stretch(start: int, stop: int) -> Stretch:
        seconds = (stop**2 - start**2) / 2  # of a cost of t at t
        return Stretch(start, stop, seconds, 0.0, 0.0)

    found = first_tokens([stretch(0, 10), stretch(90, 100), stretch(190, 200)], 200)
    assert found is not None and found["measured"] == "sampled"
    assert found["seconds"] == pytest.approx(200**2 / 2)
    found = first_tokens([stretch(0, 16), stretch(8, 32)], 32)  # not in full: eight tokens were timed twice
    assert found is not None and found["measured"] == "sampled"


def test_a_model_that_takes_less_time_is_in_bold():
    figures = {"seconds": 1.0, "median_ms": 1.0, "worst_ms": 1.0, "parameters": 3.0}
    results = [
        Result("decoding", model, name, factor * value, setting={"part": part, "batch": 2, "start": start, "stop": 8})
        for model, factor, part, start in (("llama", 3.0, "whole", 0), ("tnn", 1.0, "windows", 4))
        for name, value in figures.items()
    ]
    rows = rows_of(results, ["tnn", "llama"], [4, 8])
    assert [(row["model"], row["tokens"]) for row in rows] == [("tnn", 8), ("llama", 8)]
    table, columns = wins(rows, 2)
    assert table == [{"model": "tnn", "8": "**~1.50**"}, {"model": "llama", "8": "1.00"}]
    assert list(columns) == ["model", "8"]
