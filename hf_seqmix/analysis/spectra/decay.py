"""How singular values decay and errors fall: least squares in logarithms, with intervals of the exponent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DecayFit", "PowerLawFit", "fit_decay", "fit_power_law"]

CONFIDENCE = 0.95
_SAME = 1e-12
"""Logarithms that differ by less are equal."""


@dataclass(frozen=True)
class DecayFit:
    """Result of `fit_decay`: sigma_k = constant k^-exponent.

    Attributes:
        exponent: alpha.
        constant: c of least squares, an estimate of C1^(alpha) (Jiang and Li, Equation 10).
        envelope: the least c with sigma_k <= c k^-alpha at every k of the fit and every sample. C1^(alpha) is this
            number over all k.
        r2: share of the variance of log sigma_k, averaged over samples, that the fit explains; nan for equal values.
        low: lower end of the interval of the exponent, which has a confidence of 95 %.
        high: upper end of that interval.
        covers: "points" or "samples": what the interval is about, see `fit_decay`.
        kmax: last k of the fit; values that were left out lie beyond.
    """

    exponent: float
    constant: float
    envelope: float
    r2: float
    low: float
    high: float
    covers: str
    kmax: int


@dataclass(frozen=True)
class PowerLawFit:
    """Result of `fit_power_law`: error = constant size^-exponent.

    Attributes:
        exponent: p.
        constant: c.
        r2: share of the variance of log error, averaged over seeds, that the fit explains; nan for equal errors.
        low: lower end of the interval of the exponent, which has a confidence of 95 %.
        high: upper end of that interval.
        covers: "points" or "samples": what the interval is about, see `fit_power_law`.
    """

    exponent: float
    constant: float
    r2: float
    low: float
    high: float
    covers: str


def fit_decay(singular_values: Tensor, *, floor: float | None = None) -> DecayFit:
    """Fit the decay of singular values, log sigma_k = log c - alpha log k, k from 1.

    If sigma_k <= C1 k^-alpha with alpha > 1/2, a head of dimension m_h leaves sum_{k > m_h} sigma_k^2, at most
    C1^2 m_h^(1 - 2 alpha) / (2 alpha - 1). Theorem 4.2 of Jiang and Li (arXiv 2305.18475) has C1 in place of
    C1^2 / (2 alpha - 1), and takes C1 as the least one over all representations of a target. Ours is of one coupling.

    Values at or below `floor` sigma_1 are rounding errors: the fit ends before the first one, of any sample.

    The interval is Student's. Of one spectrum it covers "points": how far the values lie from the law, as if these
    distances were independent. It says nothing of other inputs, nor of k outside the range; a spectrum that bends
    slowly has distances that are not independent, and the interval is then too narrow. Of several samples it covers
    "samples": the exponent's mean over inputs drawn as these were. It contains no bias that all samples share, such
    as that of short inputs.

    Args:
        singular_values: (count,) or (samples, count), descending; `SpectrumReport.mean` or `SpectrumReport.samples`.
        floor: relative to the largest value of each sample; by default count times the resolution of float64. Give
            `SpectrumReport.resolution` for couplings that were computed in a lower precision.

    Raises:
        ImportError: scipy is not installed.
        ValueError: an argument is out of range, or fewer than 3 values are left.
    """
    values = _table("singular_values", singular_values)
    floor = values.shape[-1] * torch.finfo(torch.float64).eps if floor is None else floor
    if not 0 <= floor < 1:
        raise ValueError(f"floor is {floor}; give a size relative to the largest value, at least 0 and below 1.")
    if (values.diff(dim=-1) > 0).any() or (values < 0).any():
        raise ValueError("singular_values must be at least 0 and descending; torch.linalg.svdvals gives such values.")
    last = int((values > floor * values[:, :1]).sum(dim=-1).min())
    if last < 3:
        raise ValueError(
            f"{last} values lie above {floor:.3g} of the largest; at least 3 are needed: lower floor if the smaller"
            " values are known to be exact."
        )
    x, y = torch.arange(1, last + 1, dtype=torch.float64).log(), values[:, :last].log()
    line = _fit_line(x, y)
    envelope = (y + line.exponent * x).max().exp().item()
    return DecayFit(line.exponent, line.constant, envelope, line.r2, line.low, line.high, line.covers, last)


def fit_power_law(
    sizes: Sequence[float] | Tensor,
    errors: Sequence[float] | Sequence[Sequence[float]] | Tensor,
) -> PowerLawFit:
    """Fit errors against budgets, log e = log c - p log m, by least squares in logarithms.

    Theorem 4.2 of Jiang and Li (arXiv 2305.18475) states p = 2 alpha - 1 in the head dimension, of singular values
    k^-alpha, for absolute errors. Its proof supports that p for mean squares, and alpha - 1/2 for their roots, where a
    token's weight on itself is exact (`CouplingTarget.truncation_error`); 2 alpha - 2 and alpha - 1 where not.

    Several seeds are averaged in logarithms. The interval is Student's. Of one error a size it covers "points": how
    far errors lie from the law, as if these distances were independent. Of several seeds it covers "samples": the
    exponent's mean over seeds drawn as these were, whatever errors of one seed have in common. It does not contain
    that the law itself may be wrong, which `r2` shows.

    Args:
        sizes: (points,): m, positive and distinct, at least 3.
        errors: (points,) or (seeds, points): e, positive.

    Raises:
        ImportError: scipy is not installed.
        ValueError: shapes or numbers are wrong, or there are too few sizes.
    """
    m = torch.as_tensor(sizes, dtype=torch.float64)
    table = _table("errors", torch.as_tensor(errors, dtype=torch.float64))
    if m.ndim != 1 or m.shape != table.shape[-1:]:
        raise ValueError(
            f"sizes have shape {tuple(m.shape)} and errors {tuple(table.shape)}; give one error of each seed a size."
        )
    if not m.isfinite().all() or (m <= 0).any() or (table <= 0).any():
        raise ValueError("sizes and errors must be positive and finite: their logarithms are fitted.")
    if len(m.unique()) < max(3, len(m)):
        raise ValueError(f"there are {len(m)} sizes, {len(m.unique())} distinct; give at least 3 sizes, each once.")
    return _fit_line(m.log(), table.log())


def _table(name: str, numbers: Tensor) -> Tensor:
    """Return (samples, count) in float64."""
    if numbers.ndim not in (1, 2) or not numbers.numel() or numbers.is_complex() or not numbers.isfinite().all():
        raise ValueError(
            f"{name} have shape {tuple(numbers.shape)} and dtype {numbers.dtype}; give finite real numbers in one or"
            " two dimensions, at least one."
        )
    return numbers.detach().double().cpu().reshape(-1, numbers.shape[-1])


def _fit_line(x: Tensor, y: Tensor) -> PowerLawFit:
    """Fit the mean of y, (samples, points), by a line of x, (points,): both are logarithms."""
    from scipy.stats import t

    mean = y.mean(dim=0)
    slope = ((x - x.mean()) * (mean - mean.mean())).sum() / (x - x.mean()).square().sum()
    intercept, exponent = (mean.mean() - slope * x.mean()).item(), -slope.item()
    fitted = intercept - exponent * x
    weights = torch.linalg.pinv(torch.stack([torch.ones_like(x), -x], dim=-1))[1]  # how p moves with each point
    samples, points = y.shape
    if samples > 1:
        error, free = (y @ weights).std().item() / math.sqrt(samples), samples - 1
    else:
        free = points - 2
        error = weights.norm().item() * math.sqrt((mean - fitted).square().sum().item() / free)
    half = float(t.ppf((1 + CONFIDENCE) / 2, free)) * error
    total = (mean - mean.mean()).square().sum().item()
    r2 = 1 - (mean - fitted).square().sum().item() / total if total > points * _SAME**2 else math.nan
    covers = "samples" if samples > 1 else "points"
    return PowerLawFit(exponent, math.exp(intercept), r2, exponent - half, exponent + half, covers)
