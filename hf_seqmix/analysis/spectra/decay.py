"""How singular values decay and errors fall: least squares in logarithms, with intervals of the exponent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DecayFit", "PowerLawFit", "fit_decay", "fit_power_law"]

KINDS = ("power", "exp")
_SAME = 1e-12
"""Logarithms that differ by less are equal."""


@dataclass(frozen=True)
class DecayFit:
    """Result of `fit_decay`: sigma_k = constant k^-exponent, or constant e^(-exponent k).

    Attributes:
        kind: "power" or "exp".
        exponent: alpha.
        constant: c of least squares, an estimate of C1^(alpha) (Jiang and Li, Equation 10).
        envelope: the least c with sigma_k <= c k^-alpha (or c e^(-alpha k)) at every k of the fit and every sample.
            C1^(alpha) is this number over all k.
        r2: share of the variance of log sigma_k, averaged over samples, that the fit explains; nan for equal values.
        low: lower end of the interval of the exponent.
        high: upper end of that interval.
        covers: "points" or "samples": what the interval is about, see `fit_decay`.
        kmin: first k of the fit, from 1.
        kmax: last k of the fit; values that were left out at the end lie beyond.
    """

    kind: str
    exponent: float
    constant: float
    envelope: float
    r2: float
    low: float
    high: float
    covers: str
    kmin: int
    kmax: int


@dataclass(frozen=True)
class PowerLawFit:
    """Result of `fit_power_law`: error = constant size^-exponent + floor.

    Attributes:
        exponent: p.
        constant: c.
        floor: what is left at infinite size; 0 without a floor.
        r2: share of the variance of log error, averaged over seeds, that the fit explains; nan for equal errors.
        low: lower end of the interval of the exponent.
        high: upper end of that interval.
        covers: "points" or "samples": what the interval is about, see `fit_power_law`.
    """

    exponent: float
    constant: float
    floor: float
    r2: float
    low: float
    high: float
    covers: str


def fit_decay(
    singular_values: Tensor,
    kind: str = "power",
    kmin: int = 1,
    kmax: int | None = None,
    *,
    floor: float | None = None,
    confidence: float = 0.95,
) -> DecayFit:
    """Fit the decay of singular values, log sigma_k = log c - alpha log k ("power") or log c - alpha k ("exp").

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
        kind: "power" or "exp".
        kmin: first k of the fit, counted from 1.
        kmax: last k of the fit; None for all values.
        floor: relative to the largest value of each sample; by default count times the resolution of float64. Give
            `SpectrumReport.resolution` for couplings that were computed in a lower precision.
        confidence: of the interval.

    Raises:
        ImportError: scipy is not installed.
        ValueError: an argument is out of range, or fewer than 3 values are left.
    """
    values = _table("singular_values", singular_values)
    count = values.shape[-1]
    kmax = count if kmax is None else kmax
    floor = count * torch.finfo(torch.float64).eps if floor is None else floor
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; give one of {', '.join(map(repr, KINDS))}.")
    if not 1 <= kmin <= kmax <= count:
        raise ValueError(f"kmin is {kmin} and kmax {kmax}; give 1 <= kmin <= kmax <= {count}, the number of values.")
    if not 0 <= floor < 1:
        raise ValueError(f"floor is {floor}; give a size relative to the largest value, at least 0 and below 1.")
    if (values.diff(dim=-1) > 0).any() or (values < 0).any():
        raise ValueError("singular_values must be at least 0 and descending; torch.linalg.svdvals gives such values.")
    last = min(kmax, int((values > floor * values[:, :1]).sum(dim=-1).min()))
    if last - kmin < 2:
        raise ValueError(
            f"{max(0, last - kmin + 1)} values from k = {kmin} to {kmax} lie above {floor:.3g} of the largest; at"
            " least 3 are needed: widen kmin to kmax, or lower floor if the smaller values are known to be exact."
        )
    k = torch.arange(kmin, last + 1, dtype=torch.float64)
    x, y = k.log() if kind == "power" else k, values[:, kmin - 1 : last].log()
    intercept, exponent = _fit_line(x, y.mean(dim=0))
    fitted, jacobian = _bent_line(x, intercept, exponent, -math.inf)
    low, high, covers = _interval(exponent, jacobian[:, :2], y, fitted, confidence)
    envelope = (y + exponent * x).max().exp().item()
    r2 = _explained(y, fitted)
    return DecayFit(kind, exponent, math.exp(intercept), envelope, r2, low, high, covers, kmin, last)


def fit_power_law(
    sizes: Sequence[float] | Tensor,
    errors: Sequence[float] | Sequence[Sequence[float]] | Tensor,
    with_floor: bool = False,
    *,
    confidence: float = 0.95,
) -> PowerLawFit:
    """Fit errors against budgets, log e = log(c m^-p + f), by least squares in logarithms; f is 0 without a floor.

    Theorem 4.2 of Jiang and Li (arXiv 2305.18475) states p = 2 alpha - 1 in the head dimension, of singular values
    k^-alpha, for absolute errors. Its proof supports that p for mean squares, and alpha - 1/2 for their roots, where a
    token's weight on itself is exact (`CouplingTarget.truncation_error`); 2 alpha - 2 and alpha - 1 where not.

    Several seeds are averaged in logarithms. A floor that does not lower the sum of squares is 0 in the result, and
    the interval is then that of the law without a floor.

    The interval is Student's. Of one error a size it covers "points": how far errors lie from the law, as if these
    distances were independent. Of several seeds it covers "samples": the exponent's mean over seeds drawn as these
    were, whatever errors of one seed have in common. It then does not contain that the law itself may be wrong,
    which `r2` shows. With a floor both are first-order (delta method): too narrow where noise hides the floor.

    Args:
        sizes: (points,): m, positive and distinct, at least 3, or 4 with a floor.
        errors: (points,) or (seeds, points): e, positive.
        with_floor: fit f, too.
        confidence: of the interval.

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
    needed = 3 + with_floor
    if len(m.unique()) < max(needed, len(m)):
        raise ValueError(
            f"there are {len(m)} sizes, {len(m.unique())} distinct; give at least {needed} sizes, each once."
        )
    x, y = m.log(), table.log()
    law = _fit_with_floor(x, y.mean(dim=0)) if with_floor else None
    if law is None:
        law = (*_fit_line(x, y.mean(dim=0)), -math.inf)
    fitted, jacobian = _bent_line(x, *law)
    low, high, covers = _interval(law[1], jacobian[:, : 2 + (law[2] > -math.inf)], y, fitted, confidence)
    return PowerLawFit(law[1], math.exp(law[0]), math.exp(law[2]), _explained(y, fitted), low, high, covers)


def _table(name: str, numbers: Tensor) -> Tensor:
    """Return (samples, count) in float64."""
    if numbers.ndim not in (1, 2) or not numbers.numel() or numbers.is_complex() or not numbers.isfinite().all():
        raise ValueError(
            f"{name} have shape {tuple(numbers.shape)} and dtype {numbers.dtype}; give finite real numbers in one or"
            " two dimensions, at least one."
        )
    return numbers.detach().double().cpu().reshape(-1, numbers.shape[-1])


def _fit_line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return a and p of the nearest a - p x."""
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    return (y.mean() - slope * x.mean()).item(), -slope.item()


def _bent_line(x: Tensor, a: float, p: float, b: float) -> tuple[Tensor, Tensor]:
    """Return log(e^(a - p x) + e^b), (points,), and its derivatives by a, p and b, (points, 3)."""
    line, floor = a - p * x, torch.full_like(x, b)
    share = torch.sigmoid(line - floor)  # of the falling part
    return torch.logaddexp(line, floor), torch.stack([share, -share * x, 1 - share], dim=-1)


def _fit_with_floor(x: Tensor, y: Tensor) -> tuple[float, float, float] | None:
    """Return a, p and b of the nearest bent line, by Levenberg-Marquardt steps; None if a line is as near."""

    def squares(law: Tensor) -> float:
        return (y - _bent_line(x, *law.tolist())[0]).square().sum().item()

    straight = squares(torch.tensor([*_fit_line(x, y), -math.inf], dtype=torch.float64))
    if straight <= len(x) * _SAME**2:
        return None
    nearest, least = None, straight * (1 - 1e-6)
    for share in (0.99, 0.9, 0.5, 0.1):  # of the least error, as a first floor
        b = y.min().item() + math.log(share)
        law = torch.tensor([*_fit_line(x, (y.exp() - math.exp(b)).log()), b], dtype=torch.float64)
        damping, error = 1e-3, squares(law)
        for _ in range(500):
            fitted, jacobian = _bent_line(x, *law.tolist())
            normal = jacobian.T @ jacobian
            normal += damping * torch.diag(normal.diagonal() + 1e-12)
            step = torch.linalg.solve(normal, jacobian.T @ (y - fitted))
            tried = squares(law + step)
            if damping > 1e9:
                break
            if not tried < error:
                damping *= 10
                continue
            settled = error - tried < 1e-14 * error or step.abs().max() < 1e-12
            law, error, damping = law + step, tried, max(damping / 10, 1e-12)
            if settled:
                break
        if error < least:
            nearest, least = law, error
    if nearest is None:
        return None
    a, p, b = nearest.tolist()
    return a, p, b


def _interval(
    estimate: float, jacobian: Tensor, y: Tensor, fitted: Tensor, confidence: float
) -> tuple[float, float, str]:
    """Return the ends of the interval of the second parameter, the exponent, and what the interval covers.

    Args:
        estimate: of the parameter.
        jacobian: (points, parameters) at the fit.
        y: (samples, points).
        fitted: (points,).
        confidence: of the interval.
    """
    from scipy.stats import t

    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; give a number between 0 and 1, such as 0.95.")
    weights = torch.linalg.pinv(jacobian)[1]  # (points,): how the exponent moves with each point
    samples, points = y.shape
    if samples > 1:
        error, free = (y @ weights).std().item() / math.sqrt(samples), samples - 1
    else:
        free = points - jacobian.shape[1]
        error = weights.norm().item() * math.sqrt((y[0] - fitted).square().sum().item() / free)
    half = float(t.ppf((1 + confidence) / 2, free)) * error
    return estimate - half, estimate + half, "samples" if samples > 1 else "points"


def _explained(y: Tensor, fitted: Tensor) -> float:
    """Return R^2 of the mean over samples."""
    target = y.mean(dim=0)
    total = (target - target.mean()).square().sum().item()
    return 1 - (target - fitted).square().sum().item() / total if total > len(target) * _SAME**2 else math.nan
