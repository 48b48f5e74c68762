"""Errors of trained models over budgets, and over alterations of the temporal order of a target."""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from .alterations import mix, permute
from .floors import PREDICTORS, Floor, error_floors
from .targets import LinearTarget, Target
from .training import Progress, TrainSettings, train_on_target

__all__ = ["SWEEP_COLUMNS", "OrderingRow", "SweepRow"]
__all__ += ["altered_targets", "ordering_columns", "ordering_report", "rate_sweep"]

SWEEP_COLUMNS = {
    "budget": "budget",
    "seed": "seed",
    "train_error": "training rows:.3e",
    "test_error": "held-out rows:.3e",
    "metric": "error",
    "parameters": "parameters:,.0f",
    "steps": "updates:,.0f",
    "has_stalled": "stalled",
}
"""Columns of `SweepRow.to_dict` for `markdown_table`."""

METRICS: dict[str, Callable[[float], float]] = {"mse": lambda error: error, "rmse": math.sqrt}
"""Name -> from a mean square error."""


@dataclass(frozen=True)
class SweepRow:
    """A trained model of a sweep.

    Attributes:
        budget: what the model was made with.
        seed: of its weights and training rows.
        train_error: on its training rows, in the metric.
        test_error: on held-out rows, in the metric.
        metric: "mse" or "rmse".
        parameters: of the model.
        steps: updates.
        has_stalled: whether training ended by the plateau rule, rather than by the limit of updates.
    """

    budget: int
    seed: int
    train_error: float
    test_error: float
    metric: str
    parameters: int
    steps: int
    has_stalled: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, ready for JSON."""
        return asdict(self)


def rate_sweep(
    make_model: Callable[[int], nn.Module],
    budgets: Sequence[int],
    target: Target,
    train: TrainSettings | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    metric: str = "mse",
    progress: Progress | None = None,
) -> list[SweepRow]:
    """Train a model of each budget and seed on a target, and return the errors.

    With m_h as the budget, theorem 4.2 lets the mean square error fall as m_h^-(2a - 1) where the singular values of
    the target's coupling fall as s^-a, and its root as m_h^-(a - 1/2). At a finite rank r, head sizes from r on leave
    the error of the feed-forward networks alone.

    Source: Jiang, Li 2023 (arXiv 2305.18475), appendix B.2, which plots training errors. Their rule of when to stop is
    not stated; ours is in `TrainSettings`.

    Args:
        make_model: from a budget to a model; see `train_on_target`.
        budgets: such as head sizes 1, ..., 16, each once.
        target: what is learned.
        train: settings of all trainings, `TrainSettings()` by default.
        seeds: of each budget; all nets of a budget train at once.
        metric: "mse" or "rmse".
        progress: called with "budget B", see `train_on_target`.

    Returns:
        A row for each budget and seed, in this order.

    Raises:
        ValueError: budgets are missing or repeated, or the metric is unknown.
    """
    if not budgets or len(set(budgets)) < len(budgets):
        raise ValueError(f"budgets is {list(budgets)}; give at least one, each once.")
    if metric not in METRICS:
        raise ValueError(f"metric is {metric!r}; give one of {', '.join(METRICS)}.")
    measure = METRICS[metric]
    rows = []
    for budget in budgets:
        make = functools.partial(make_model, budget)
        for trained in train_on_target(make, target, train, seeds, progress, f"budget {budget}"):
            size = sum(parameter.numel() for parameter in trained.model.parameters())
            errors = measure(trained.train_error), measure(trained.test_error)
            rows.append(SweepRow(budget, trained.seed, *errors, metric, size, trained.steps, trained.has_stalled))
    return rows


@dataclass(frozen=True)
class OrderingRow:
    """What models reach at one alteration of a target.

    Attributes:
        alteration: "original", "permuted inputs", "permuted kernel", "mixed" or "mixed with look-ahead".
        is_causal: whether the altered target is.
        errors: name of a model -> mean square error on held-out rows, one for each seed.
        floors: what predictors of a kind can reach, see `error_floors`.
    """

    alteration: str
    is_causal: bool
    errors: dict[str, tuple[float, ...]]
    floors: dict[str, Floor]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, ready for JSON: the median error of each model, and the floors by their names."""
        medians = {name: statistics.median(errors) for name, errors in self.errors.items()}
        limits = {name: floor.mse for name, floor in self.floors.items()}
        return {"alteration": self.alteration, "is_causal": self.is_causal, **medians, **limits}


def altered_targets(
    target: Target, permutation: Sequence[int] | None = None, theta: Sequence[float] = (1 / 3, 1 / 3, 1 / 3)
) -> dict[str, Target]:
    """Return a target and its alterations by their names, see `ordering_report`.

    Args:
        target: the original; only a `LinearTarget` has a kernel to permute.
        permutation: see `permute`.
        theta: see `mix`.
    """
    altered: dict[str, Target] = {"original": target, "permuted inputs": permute(target, permutation)}
    if isinstance(target, LinearTarget):
        altered["permuted kernel"] = permute(target, permutation, mode="kernel")
    return altered | {"mixed": mix(target, theta), "mixed with look-ahead": mix(target, theta, causal=False)}


def ordering_columns(rows: Sequence[OrderingRow]) -> dict[str, str]:
    """Return columns of `OrderingRow.to_dict` for `markdown_table`: models, then floors, in brackets."""
    models = {name: f"{name}:.2e" for row in rows for name in row.errors}
    limits = {name: f"({name.replace('_', ' ')}):.2e" for name in PREDICTORS}
    return {"alteration": "target", "is_causal": "causal", **models, **limits}


def ordering_report(
    models: Mapping[str, Callable[[], nn.Module]],
    target: Target,
    *,
    permutation: Sequence[int] | None = None,
    theta: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
    train: TrainSettings | None = None,
    seeds: Sequence[int] = (0,),
    progress: Progress | None = None,
) -> list[OrderingRow]:
    """Train models on a target, on its permuted and on its mixed forms, beside what is possible at each.

    Source: Jiang, Li 2023 (arXiv 2305.18475), tables 2 and 3. The paper leaves open whether inputs or the kernel are
    permuted and whether mixing looks ahead, and theta; the report has every reading, and a moving average by default.

    Args:
        models: name -> makes the model; see `train_on_target`.
        target: the original; only a `LinearTarget` has a kernel to permute.
        permutation: see `permute`; the first and the last 10 tokens exchanged by default.
        theta: see `mix`.
        train: settings of all trainings, `TrainSettings()` by default.
        seeds: of each model.
        progress: called with "model, alteration", see `train_on_target`.

    Raises:
        ValueError: there are no models, or an alteration is not possible.
    """
    if not models:
        raise ValueError("there are no models; give at least one, by a name.")
    rows = []
    for alteration, version in altered_targets(target, permutation, theta).items():
        errors = {}
        for name, make_model in models.items():
            trained = train_on_target(make_model, version, train, seeds, progress, f"{name}, {alteration}")
            errors[name] = tuple(each.test_error for each in trained)
        rows.append(OrderingRow(alteration, version.is_causal, errors, error_floors(version)))
    return rows
