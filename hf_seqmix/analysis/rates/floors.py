"""The least mean square error that predictors of a kind can reach at a target, to compare trained models with."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .targets import Target, require_at_least

__all__ = ["PREDICTORS", "Floor", "error_floors", "exact_floors", "sampled_floors"]

PREDICTORS = (
    "constant",
    "time_dependent_mean",
    "causal_filter_without_bias",
    "causal_filter",
    "causal_filter_with_mean",
    "causal_linear",
    "bidirectional_linear",
)
"""Kinds of predictors: see `exact_floors`."""

Sample = tuple[Tensor, Tensor, Tensor]
"""Inputs (rows, length, width), ones (rows,) and outputs (rows, length, outputs), in float64."""


@dataclass(frozen=True)
class Floor:
    """The least mean square error of a kind of predictors, averaged over positions and outputs.

    Attributes:
        predictor: one of `PREDICTORS`.
        mse: the error.
        standard_error: of `mse`; 0 where the floor is exact.
    """

    predictor: str
    mse: float
    standard_error: float = 0.0


def error_floors(target: Target, rows: int = 4096, seed: int = 0) -> dict[str, Floor]:
    """Return `exact_floors` of a linear target, `sampled_floors` of any other."""
    if target.matrix() is not None:
        return exact_floors(target)
    return sampled_floors(target, rows, seed)


def exact_floors(target: Target) -> dict[str, Floor]:
    """Return the floors of a linear target y = M x from the second moments of its independent uniform inputs.

    min E |y^(t) - y(t)|^2 / T over the predictors

    - constant: y^(t) = b;
    - time_dependent_mean: y^(t) = b(t), of a model that ignores its inputs;
    - causal_filter: y^(t) = b + sum_{s <= t} k(s) x(t - s), and the same without b;
    - causal_filter_with_mean: the same with b(t) for b, so the floor of any linear recurrent network that does not
      change with time, whatever its biases and its first state;
    - causal_linear: y^(t) = b(t) + sum_{s <= t} K(t, s) x(s); of independent inputs, the floor of any causal model;
    - bidirectional_linear: the same with all s.

    Each is a least squares problem in the moments of (x, 1) alone. Uniform inputs have mean 1/2 and variance 1/12, so
    T + 1 rows have these moments: e_i / sqrt(12) beside 0 for each i, and (1/2, ..., 1/2) beside 1.

    Returns:
        Name of `PREDICTORS` -> floor.

    Raises:
        ValueError: the target is not linear.
    """
    matrix = target.matrix()
    if matrix is None:
        raise ValueError(f"{type(target).__name__} is not linear, so its floors are not exact; use sampled_floors.")
    length = target.length
    inputs = torch.cat([torch.eye(length, dtype=torch.float64) / math.sqrt(12), matrix.new_full((1, length), 0.5)])
    ones = torch.cat([inputs.new_zeros(length), inputs.new_ones(1)])
    rows = inputs[..., None], ones, (inputs @ matrix.T)[..., None]
    found = {}
    for predictor in PREDICTORS:
        errors = _square_errors(predictor, rows, rows)
        found[predictor] = Floor(predictor, errors.mean(dim=(1, 2)).sum().item())
    return found


def sampled_floors(target: Target, rows: int = 4096, seed: int = 0) -> dict[str, Floor]:
    """Estimate the floors of any target by least squares on rows, and their errors on as many other rows.

    The predictors are those of `exact_floors`; of d inputs a token, filters and linear maps read all. Coefficients of
    p parameters from few rows make an estimate too large, by a share of about p / rows. At a target that is not
    linear, "causal_linear" is the floor of linear models only.

    Args:
        target: the target.
        rows: to fit on, and again to measure on.
        seed: of the rows.

    Returns:
        Name of `PREDICTORS` -> floor with its standard error.

    Raises:
        ValueError: there are not more rows than parameters of the largest predictor.
    """
    require_at_least(rows=(rows, target.length * target.width + 2))
    generator = torch.Generator().manual_seed(seed)
    fitted, measured = (_draw(target, rows, generator) for _ in range(2))
    found = {}
    for predictor in PREDICTORS:
        errors = _square_errors(predictor, fitted, measured).mean(dim=(1, 2))
        found[predictor] = Floor(predictor, errors.mean().item(), errors.std().item() / math.sqrt(rows))
    return found


def _draw(target: Target, rows: int, generator: torch.Generator) -> Sample:
    inputs, outputs = target.draw(rows, generator, torch.float64)
    return inputs, inputs.new_ones(rows), outputs.reshape(rows, target.length, -1)


def _square_errors(predictor: str, fitted: Sample, measured: Sample) -> Tensor:
    """Return the square errors (rows, length, outputs) of the predictor that is best on other rows."""
    errors = torch.empty_like(measured[2])
    for (at, fit), (_, test) in zip(
        _regressors(predictor, *fitted[:2]), _regressors(predictor, *measured[:2]), strict=True
    ):
        wanted = fitted[2][:, at].flatten(0, 1)
        # Regressors can depend on each other, as indicators that sum to 1 do.
        weights = torch.linalg.lstsq(fit.flatten(0, 1), wanted, driver="gelsd").solution
        errors[:, at] = (test @ weights - measured[2][:, at]).square()
    return errors


def _regressors(predictor: str, inputs: Tensor, ones: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield positions that share coefficients, and what they are predicted from, (rows, positions, regressors)."""
    rows, length, width = inputs.shape
    bias = ones[:, None, None].expand(rows, length, 1)
    biases = {
        "causal_filter_without_bias": bias[..., :0],
        "causal_filter": bias,
        "causal_filter_with_mean": bias * torch.eye(length, dtype=inputs.dtype, device=inputs.device),
    }
    if predictor == "constant":
        yield slice(None), bias
    elif predictor in biases:
        padded = torch.cat([inputs.new_zeros(rows, length - 1, width), inputs], dim=1)
        past = padded.unfold(1, length, 1).flatten(2)  # (rows, length, width length)
        yield slice(None), torch.cat([past, biases[predictor]], dim=-1)
    else:
        seen = {"time_dependent_mean": lambda t: 0, "causal_linear": lambda t: t + 1}.get(predictor, lambda t: length)
        for t in range(length):
            yield slice(t, t + 1), torch.cat([inputs[:, None, : seen(t)].flatten(2), bias[:, t : t + 1]], dim=-1)
