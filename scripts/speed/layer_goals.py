"""Goals for the speed of whole layers in training beside what came out."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from speed_goals import goal_row

__all__ = ["layer_goals"]

SMALLEST = 1024
"""Hidden size from which on the goals of a GPU hold."""

Row = Mapping[str, Any]

_ORIGINAL = "as fast as the original's layer"
_LLAMA = "as fast as a Llama layer of as many parameters"
# goal, family, table, times what, least ratio by length
_CPU: list[tuple[str, str, str, str, dict[int, float]]] = [
    ("C4", "tnn", "layers", _ORIGINAL, {512: 1.5, 2048: 1.5, 8192: 1.5}),
    ("C4", "ski_tnn", "layers", _ORIGINAL, {512: 1.6, 2048: 1.8, 8192: 2.0}),
    ("C5", "tnn", "transformers", _LLAMA, {512: 0.95, 2048: 1.2, 8192: 2.2}),
    ("C5", "ski_tnn", "transformers", _LLAMA, {512: 1.0, 2048: 1.4, 8192: 2.8}),
]
_GPU: list[tuple[str, str, str, str, dict[int, float]]] = [
    ("G3", "tnn", "layers", _ORIGINAL, {512: 1.7, 2048: 1.7, 8192: 1.5}),
    ("G3", "ski_tnn", "layers", _ORIGINAL, {512: 2.0, 2048: 2.0, 8192: 2.0}),
    ("G4", "tnn", "transformers", _LLAMA, {512: 0.75, 2048: 0.8, 8192: 1.05, 16384: 1.5}),
    ("G4", "ski_tnn", "transformers", _LLAMA, {512: 0.8, 2048: 0.95, 8192: 1.4, 16384: 2.1}),
]


def layer_goals(
    tables: Mapping[str, Sequence[Row]], device: str, dtype: str, hidden_size: int
) -> list[dict[str, Any]]:
    """Return the goals of layers, of both kinds of device; a run leaves those of the other kind unmeasured.

    Both layers stand against causal rivals, TNN in its causal form.

    Args:
        tables: name -> rows of the benchmark.
        device, dtype, hidden_size: of the run.
    """
    kind = torch.device(device).type
    on_cpu = kind == "cpu" and dtype == "float32"
    on_gpu = kind == "cuda" and dtype == "bfloat16" and hidden_size >= SMALLEST
    found = []
    for goals, applies in ((_CPU, on_cpu), (_GPU, on_gpu)):
        for goal, family, table, what, bounds in goals:
            rows = tables.get(table, ()) if applies else ()
            for length, bound in bounds.items():
                measured = next((row["ratio"] for row in rows if _is_meant(row, family, length)), None)
                found.append(goal_row(goal, f"{family}, times {what}", bound, measured, length=length))
    return found


def _is_meant(row: Row, family: str, length: int) -> bool:
    """Whether a row is of a family against the causal original or Llama layer."""
    if row["length"] != length or row["layer"].split()[0] != family:
        return False
    rival = row["rival"].split()[0].rstrip(",")
    causal_rival = row["rival"].endswith(", causal") or row["direction"] == "causal"
    return rival in ("original", "llama") and causal_rival
