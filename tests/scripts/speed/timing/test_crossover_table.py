"""The table of crossovers is the best one for the times, and has the form of the table in force."""

import math
from typing import Any

from timing.crossover_table import best_rows, crossing, table_of, table_text

from hf_seqmix.ops.common import crossovers


def test_rows_are_the_best_and_a_change_must_pay() -> None:
    times = {64: {"a": 1.0, "b": 2.0}, 256: {"a": 4.0, "b": 4.0}, 1024: {"a": 16.0, "b": 8.0}}
    assert best_rows(times, ["a", "b"], 0.03) == [(256, "a"), (None, "b")]
    nearly = {64: {"a": 1.0, "b": 1.02}, 256: {"a": 4.0, "b": 3.93}, 1024: {"a": 16.0, "b": 16.0}}
    assert best_rows(nearly, ["a", "b"], 0.03) == [(None, "a")]
    assert best_rows({64: {"a": 2.0, "b": 1.0}}, ["a", "b"], 0.03) == [(None, "b")]
    missing = {64: {"a": 3.0, "b": 1.0}, 128: {"a": 3.0}}
    assert best_rows(missing, ["a", "b"], 0.03) == [(64, "b"), (None, "a")]


def test_limits_are_where_times_cross() -> None:
    times = {64: {"a": 1.0, "b": 2.0}, 256: {"a": 8.0, "b": 4.0}}
    assert crossing(64, 256, times, "a", "b") == 128  # halfway on a log scale
    assert crossing(64, 256, {64: {"a": 1.0, "b": 2.0}, 256: {"b": 4.0}}, "a", "b") == 64
    assert crossing(64, 65, {64: {"a": 1.0, "b": 9.0}, 65: {"a": 9.0, "b": 8.9}}, "a", "b") == 64


def test_dtypes_of_one_kind_share_a_table() -> None:
    def point(dtype: str, length: int, **ms: float) -> dict[str, Any]:
        names = list(ms)
        kind = {"op": "toeplitz_causal", "kind": "cuda half", "dtype": dtype}
        return {**kind, "length": length, "ms": ms, "implementations": names}

    points = [
        point("bfloat16", 64, fft=8.0, tiles=1.0),
        point("float16", 64, fft=8.0, tiles=2.0),
        point("bfloat16", 1024, fft=8.0, tiles=9.0),
        point("float16", 1024, fft=8.0, tiles=64.0),
    ]
    made = table_of(points, 0.03)
    [(longest, name), last] = made["toeplitz_causal"]["cuda half"]
    share = math.log(8 / math.sqrt(2)) / (math.log(8 / math.sqrt(2)) + math.log(3))
    assert (longest, name, last) == (math.floor(64 * 16**share), "tiles", (None, "fft"))
    text = table_text(made)
    assert f'"cuda half": [({longest}, "tiles"), (None, "fft")],' in text
    crossovers._checked("toeplitz_causal", "cuda half", made["toeplitz_causal"]["cuda half"])
