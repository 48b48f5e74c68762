"""Checks of configuration fields, whose messages name the field, the value given and what is allowed."""

import math
from numbers import Integral
from typing import Any

from transformers.activations import ACT2FN

__all__ = ["check_activation", "check_choice", "check_integer", "check_per_axis", "check_range"]


def check_choice(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise a `ValueError` that names the field unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{field} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")


def check_activation(field: str, value: str) -> None:
    """Raise a `ValueError` that names the field unless the library knows an activation called `value`."""
    check_choice(field, value, tuple(ACT2FN))


def check_range(
    field: str,
    value: float | int | None,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raise a `ValueError` that names the field unless low <= value <= high and above < value < below, where given.

    None, an optional field left out, passes.
    """
    if value is None:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{field} is {value}; it must be a finite number.")
    bounds = [
        (low, lambda bound: value >= bound, "at least"),
        (above, lambda bound: value > bound, "greater than"),
        (high, lambda bound: value <= bound, "at most"),
        (below, lambda bound: value < bound, "less than"),
    ]
    if all(bound is None or holds(bound) for bound, holds, _ in bounds):
        return
    allowed = " and ".join(f"{words} {bound}" for bound, _, words in bounds if bound is not None)
    raise ValueError(f"{field} is {value}; it must be {allowed}.")


def check_integer(field: str, value: Any, *, low: int) -> None:
    """Raise a `TypeError` unless `value` is an integer, and a `ValueError` below `low`; None passes."""
    if value is None:
        return
    if not isinstance(value, Integral):
        raise TypeError(f"{field} is {value!r}; it must be an integer, at least {low}.")
    check_range(field, int(value), low=low)


def check_per_axis(field: str, value: Any, dimensions: int, **bounds: float) -> None:
    """Check a number, or, in two dimensions, one number for all axes or a list of one for each.

    Args:
        field: its name.
        value: a number, or a list [along rows, along columns].
        dimensions: 1 or 2.
        **bounds: what each number must be within, see `check_range`.
    """
    if isinstance(value, (list, tuple)):
        if dimensions != 2 or len(value) != 2:
            raise ValueError(
                f"{field} is {list(value)!r}; it must be one number, or, with mixing_dimensions=2, two: [along rows, "
                "along columns]."
            )
        for number in value:
            check_range(field, number, **bounds)
    else:
        check_range(field, value, **bounds)
