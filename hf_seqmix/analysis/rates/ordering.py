"""Errors of models over alterations of the temporal order of a target, beside the least errors that are possible."""

import copy
import functools
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .alterations import mix, permute
from .floors import Floor, error_floors
from .regressors import TokenRegressor
from .targets import LinearTarget, Target
from .training import Progress, TrainSettings, held_out_error, train_on_target

__all__ = ["OrderingRow", "altered_targets", "checkpoint_report", "ordering_report"]


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


def checkpoint_report(
    models: Mapping[str, nn.Module | str | os.PathLike[str]],
    target: Target,
    *,
    permutation: Sequence[int] | None = None,
    theta: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
    rows: int = TrainSettings.test_rows,
    train: TrainSettings | None = None,
    seeds: Sequence[int] = (0,),
    progress: Progress | None = None,
) -> list[OrderingRow]:
    """Measure models that are trained already at a target and its alterations, beside what is possible at each.

    Without `train`, models are measured as they are: what a model keeps of an order that it was not trained for. With
    `train`, each model is trained on at each alteration from its own weights, and the seeds draw the rows alone: what
    the weights are worth as a beginning. Rows, floors and columns are those of `ordering_report`.

    Source: Jiang, Li 2023 (arXiv 2305.18475), table 1, whose models are initialized from those of the original order;
    the paper leaves open whether they were trained again, hence both.

    Args:
        models: name -> a model, see `train_on_target`, or the folder of a saved one, see `TokenRegressor`.
        target: the original.
        permutation: see `permute`.
        theta: see `mix`.
        rows: held-out rows, where nothing is trained.
        train: settings of training on; None for none.
        seeds: of the rows that models are trained on with.
        progress: see `ordering_report`.

    Raises:
        ValueError: there are no models, a folder holds no regressor of tokens, outputs have another shape than those
            of the target, or an alteration is not possible.
    """
    outputs = target.num_outputs
    loaded = {
        name: model if isinstance(model, nn.Module) else TokenRegressor.from_pretrained(model, num_outputs=outputs)
        for name, model in models.items()
    }
    if train is not None or not loaded:
        make = {name: functools.partial(copy.deepcopy, model) for name, model in loaded.items()}
        return ordering_report(
            make, target, permutation=permutation, theta=theta, train=train, seeds=seeds, progress=progress
        )
    return [
        OrderingRow(
            alteration,
            version.is_causal,
            {name: (held_out_error(model, version, rows),) for name, model in loaded.items()},
            error_floors(version),
        )
        for alteration, version in altered_targets(target, permutation, theta).items()
    ]
