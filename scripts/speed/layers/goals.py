"""What the package wants of layers: to beat the original implementation and, from some length on, attention."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from timing.goals import goal

__all__ = ["layer_goals"]

Row = Mapping[str, Any]

SMALLEST_LAYER = 1024
"""Hidden size from which on the goals of layers on a GPU hold."""

_LLAMA = "Llama layer of as many parameters"
# Family, table, against what, least ratio by length.
_LAYERS: dict[str, list[tuple[str, str, str, dict[int, float]]]] = {
    "CPU": [
        ("tnn", "layers", "the original's layer", {512: 1.5, 2048: 1.5, 8192: 1.5}),
        ("ski_tnn", "layers", "the original's layer", {512: 1.6, 2048: 1.8, 8192: 2.0}),
        ("tnn", "transformers", f"a {_LLAMA}", {512: 0.95, 2048: 1.2, 8192: 2.2}),
        ("ski_tnn", "transformers", f"a {_LLAMA}", {512: 1.0, 2048: 1.4, 8192: 2.8}),
    ],
    "GPU": [
        ("tnn", "layers", "the original's layer", {512: 1.7, 2048: 1.7, 8192: 1.5}),
        ("ski_tnn", "layers", "the original's layer", {512: 2.0, 2048: 2.0, 8192: 2.0}),
        ("tnn", "transformers", f"a {_LLAMA}", {512: 0.75, 2048: 0.8, 8192: 1.05, 16384: 1.5}),
        ("ski_tnn", "transformers", f"a {_LLAMA}", {512: 0.8, 2048: 0.95, 8192: 1.4, 16384: 2.1}),
    ],
}


def layer_goals(
    tables: Mapping[str, Sequence[Row]], device: str, dtype: str, hidden_size: int
) -> list[dict[str, Any]]:
    """Return the goals of layers, of both kinds of device; rivals are causal, and so is TNN.

    Args:
        tables: name -> rows of the benchmark.
        device: of the run.
        dtype: of the run.
        hidden_size: of the run.
    """
    kind = torch.device(device).type
    applies = {
        "CPU": kind == "cpu" and dtype == "float32",
        "GPU": kind == "cuda" and dtype == "bfloat16" and hidden_size >= SMALLEST_LAYER,
    }
    found = []
    for where, goals in _LAYERS.items():
        for family, table, rival, bounds in goals:
            rows = tables.get(table, ()) if applies[where] else ()
            for length, bound in bounds.items():
                measured = next((row["ratio"] for row in rows if _is_meant(row, family, length)), None)
                found.append(goal(where, f"{family}, times as fast as {rival}", bound, measured, length=length))
    return found


def _is_meant(row: Row, family: str, length: int) -> bool:
    """Return whether a row is of a family against the causal original or Llama layer."""
    if row["length"] != length or row["layer"].split()[0] != family:
        return False
    rival = row["rival"].split()[0].rstrip(",")
    causal_rival = row["rival"].endswith(", causal") or row["direction"] == "causal"
    return rival in ("original", "llama") and causal_rival
