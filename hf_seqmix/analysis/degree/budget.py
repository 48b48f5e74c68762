"""Depths of polynomial networks of equal size, and which degree of a layer gives a net the largest degree."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["DegreeBudget", "best_degree", "budget_table", "degree_headroom", "match_depth", "mixture_score"]


@dataclass(frozen=True)
class DegreeBudget:
    """A net of equal layers within a budget.

    Attributes:
        degree: d of each layer.
        depth: L.
        overhead: c, what a layer has besides its d matrices, in matrices.
        log_degree: L ln d, the logarithm of the net's degree d^L.
    """

    degree: float
    depth: int
    overhead: float
    log_degree: float


def match_depth(budget: int, degree: float, overhead: float = 0) -> DegreeBudget:
    """Return the depth at which layers of one degree use a budget of matrices exactly: L = budget / (d + c).

    Args:
        budget: matrices of all layers.
        degree: d, at least 2.
        overhead: c, what a layer has besides its projections, in matrices (1: an output projection; 9: also a
            feed-forward of 8).

    Raises:
        ValueError: a number is out of range, or no whole depth meets the budget; the message has the nearest that do.
    """
    _check(degree, overhead)
    if budget < 1:
        raise ValueError(f"budget is {budget}; it must be at least 1.")
    layer = Fraction(degree).limit_denominator(10**6) + Fraction(overhead).limit_denominator(10**6)
    depth = budget / layer
    if depth.denominator != 1:
        below, above = math.floor(depth), math.ceil(depth)
        near = " and ".join(f"{float(layer * d):g} (depth {d})" for d in (below, above) if d)
        raise ValueError(
            f"a budget of {budget} matrices is not a whole number of layers of degree {degree:g} with overhead"
            f" {overhead:g}, {float(layer):g} matrices each; the nearest that are: {near}."
        )
    return DegreeBudget(degree, int(depth), overhead, int(depth) * math.log(degree))


def budget_table(budget: int, degrees: Sequence[float]) -> list[dict[str, float | int | str | None]]:
    """Return what each degree gets from a budget in matrices, in matrices alone and with one more a layer.

    Returns:
        A row for each accounting and degree: `accounting`, `degree`, `depth`, `log_degree`; `score` = ln d / (d + c),
        whose largest value the accounting predicts to be best; and `needs`, why there is no exact depth, or None.
    """
    rows: list[dict[str, float | int | str | None]] = []
    for cost in (0.0, 1.0):
        for degree in degrees:
            row: dict[str, float | int | str | None] = {
                "accounting": f"d + {cost:g}" if cost else "d",
                "degree": degree,
                "depth": None,
                "log_degree": None,
                "score": math.log(degree) / (degree + cost),
                "needs": None,
            }
            try:
                matched = match_depth(budget, degree, cost)
                row |= {"depth": matched.depth, "log_degree": matched.log_degree}
            except ValueError as error:
                row["needs"] = str(error)
            rows.append(row)
    return rows


def best_degree(overhead: float = 0) -> tuple[float, int]:
    """Return the real and the whole degree d of most log-degree a parameter, max ln d / (d + c).

    The real one solves d (ln d - 1) = c: e without overhead, where the whole one is 3 (Navon 2021, whose accounting it
    is).

    Args:
        overhead: c, at least 0, in matrices a layer.
    """
    _check(2, overhead)
    low, high = math.e, math.e + 2 + 2 * overhead
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * (math.log(middle) - 1) < overhead else (low, middle)
    real = (low + high) / 2
    # ln d / (d + c) rises up to the real optimum and falls after it.
    whole = max((max(2, math.floor(real)), math.ceil(real)), key=lambda d: math.log(d) / (d + overhead))
    return real, whole


def degree_headroom(overhead: float = 0) -> float:
    """Return the log-degree of the best real degree over that of the best whole one: 1.0046 without overhead."""
    real, whole = best_degree(overhead)
    return math.log(real) / (real + overhead) * (whole + overhead) / math.log(whole)


def mixture_score(layers: Mapping[float, int]) -> float:
    """Return the log-degree a matrix of a net that mixes degrees, sum_d n_d ln d / sum_d n_d d.

    A mediant of the pure nets' ln d / d, so it never exceeds the best of them: mixing whole degrees cannot help.

    Args:
        layers: degree -> number of its layers.

    Raises:
        ValueError: there is no layer, or a degree is below 2.
    """
    if not layers or any(count < 0 for count in layers.values()) or not sum(layers.values()):
        raise ValueError(f"layers is {dict(layers)}; give a number of layers of at least one degree.")
    for degree in layers:
        _check(degree, 0)
    cost = sum(count * degree for degree, count in layers.items())
    return sum(count * math.log(degree) for degree, count in layers.items()) / cost


def _check(degree: float, overhead: float) -> None:
    if degree < 2:
        raise ValueError(f"degree is {degree}; a layer that multiplies has a degree of at least 2.")
    if overhead < 0:
        raise ValueError(f"overhead is {overhead}; give matrices a layer, at least 0.")
