"""Errors of trained models over budgets."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from .targets import Target
from .training import Progress, TrainSettings, train_on_target

__all__ = ["SWEEP_COLUMNS", "SweepRow", "rate_sweep"]

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
