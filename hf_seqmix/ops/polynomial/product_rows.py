"""What the stages of a product add up, position by position: the rows of each stage, and their sums."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .stages import outer_sum, running_sum

__all__ = ["StageRows", "check_past", "row_factors", "row_kinds", "row_widths", "sum_rows", "sum_widths"]

StageRows = tuple[Tensor, ...]
"""What one stage adds up: (real,), (x,), or (keys, values)."""


def row_kinds(degree: int, degree_form: str = "cumsum") -> list[str]:
    """Name what the stages of a product add up: "real", "mean" (x), or "pair" (keys, values)."""
    if degree_form == "soft":
        return ["real", "mean", "mean", "pair"]
    if degree == 2:
        return ["real", "mean"]
    pairs = ["pair"] * ((degree - 1) // 2)
    if degree % 2 == 0 and degree_form == "cumsum":
        pairs.insert(-1, "mean")
    return ["real", *pairs]


def row_factors(degree: int, degree_form: str = "cumsum") -> list[int] | None:
    """Return which factors the stages add up, in the order of their rows; None where a stage adds up another's."""
    if degree_form == "soft":
        return [1, 3, 1, 2]
    if degree < 5:
        return {2: [1], 3: [1, 2], 4: [1, 2] if degree_form == "gate" else [3, 1, 2]}[degree]
    return None


def row_widths(kind: str, channels: int) -> list[int]:
    """Return how many numbers a token has in each tensor of a stage's rows."""
    return {"real": [1], "mean": [channels], "pair": [channels, channels]}[kind]


def sum_widths(kind: str, heads: int, width: int) -> int:
    """Return how many numbers a stage's sum has."""
    return {"real": 1, "mean": heads * width, "pair": heads * width * width}[kind]


def sum_rows(rows: Sequence[StageRows]) -> list[Tensor]:
    """Add up the rows of each stage: (batch,), (batch, heads, width), or (batch, heads, width, width), in float32."""
    return [outer_sum(*stage) if len(stage) == 2 else running_sum(stage[0], causal=False)[:, 0] for stage in rows]


def check_past(
    kinds: Sequence[str],
    shape: torch.Size,
    sums: Sequence[Tensor] | None,
    recent: Sequence[StageRows] | None,
    held: Sequence[StageRows] | None,
) -> None:
    """Raise a `ValueError` unless what came before has the shapes that `polynomial_product` takes; see there.

    Args:
        kinds: of the stages, as `row_kinds` names them.
        shape: of a factor.
        sums: see there.
        recent: see there.
        held: see there.
    """
    batch, length, heads, width = shape
    if sums is not None:
        tails = {"real": (), "mean": (heads, width), "pair": (heads, width, width)}
        wanted = [(batch, *tails[kind]) for kind in kinds]
        if (shapes := [x.shape for x in sums]) != wanted:
            given = ", ".join(str(tuple(shape)) for shape in shapes)
            raise ValueError(f"sums have the shapes {given}; they must be {wanted}, as `sum_rows` returns them.")
    if recent is not None and held is not None:
        raise ValueError("recent and held are given: leave recent out, whose rows held has.")
    for name, rows in (("recent", recent), ("held", held)):
        if rows is None:
            continue
        shapes = [x.shape for stage in rows for x in stage]
        steps = shapes[0][1] if shapes and len(shapes[0]) > 1 else 0
        row = (batch, steps, heads, width)
        parts: dict[str, list[tuple[int, ...]]] = {"real": [row[:2]], "mean": [row], "pair": [row, row]}
        wanted = [shape for kind in kinds for shape in parts[kind]]
        if shapes != wanted or (held is not None and steps < length):
            given = ", ".join(str(tuple(shape)) for shape in shapes)
            raise ValueError(
                f"{name} has the shapes {given}; they must be {wanted}, of the same number of positions everywhere"
                f"{f', {length} or more' if held is not None else ''}."
            )
