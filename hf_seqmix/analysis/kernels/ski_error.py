"""What structured kernel interpolation loses: W A W^T beside the dense matrix, its best low rank and Nyström's."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...models.ski_tnn.kernel import InverseTimeWarpKernel
from ...models.ski_tnn.operator import SKIOperator
from ...models.tnn.kernel import ToeplitzKernel
from ...models.toeplitz.channel_decays import decay_of_each_channel
from ...models.toeplitz.operator import ToeplitzOperator
from ...ops.ski.interpolation import InducingGrid, interpolation_matrix
from ..plots.figures import COLORS, MARKERS, PathLike, draw_grid, legend_below
from .decay import some_channels, spread_channels

__all__ = [
    "SKI_COLUMNS",
    "derivative_bound",
    "gaussian_kernel",
    "learned_ski_errors",
    "plot_ski_error",
    "ski_error",
    "two_exponentials",
]

Kernel = Callable[[Tensor], Tensor]
"""From real lags of any shape to values, elementwise, in float64."""

SKI_COLUMNS = {
    "kernel": "kernel",
    "interpolation": "interpolation",
    "points": "points:.0f",
    "ski": "SKI:.2e",
    "best": "best rank:.2e",
    "nystrom": "Nystrom part:.2e",
    "interpolation_part": "interpolation part:.2e",
    "condition": "min / max singular value of A:.1e",
    "left_side": "theorem 1, left:.2e",
    "bound": "bound:.2e",
    "kept_bound": "bound, kept values:.2e",
}
"""Columns of `ski_error` for `markdown_table`; errors are relative to the norm of T."""


def two_exponentials(length: int) -> Kernel:
    """Return an asymmetric kernel with a continuous slope, differences of two exponentials of other rates a side.

    k(t) = e^(-a t) - e^(-b t) for t >= 0 and -(b - a) / (d - c) (e^(c t) - e^(d t)) for t < 0, with a, b, c, d = 2, 6,
    1.5, 8 over `length`: both sides have the slope b - a at 0, where the second derivative jumps.
    """
    a, b, c, d = (rate / length for rate in (2.0, 6.0, 1.5, 8.0))

    def kernel(lags: Tensor) -> Tensor:
        ahead, behind = lags.clamp(min=0), lags.clamp(max=0)
        right = torch.exp(-a * ahead) - torch.exp(-b * ahead)
        left = (b - a) / (d - c) * (torch.exp(d * behind) - torch.exp(c * behind))
        return torch.where(lags >= 0, right, left)

    return kernel


def gaussian_kernel(length: int) -> Kernel:
    """Return k(t) = (1 + t / s) exp(-(t / w)^2 / 2), s = length / 4, w = length / 6: asymmetric, every derivative."""
    scale, width = length / 4, length / 6
    return lambda lags: (1 + lags / scale) * torch.exp(-0.5 * (lags / width).square())


def derivative_bound(kernel: Kernel, order: int, reach: float, points: int = 20001) -> float:
    """Return the largest |d^order k / dt^order| on a fine grid over [-reach, reach], by automatic differentiation.

    Args:
        kernel: differentiable so often.
        order: of the derivative.
        reach: in tokens.
        points: of the grid; an even number keeps off the lag 0, where sides of a kernel meet.
    """
    lags = torch.linspace(-reach, reach, points + points % 2, dtype=torch.float64).requires_grad_()
    value = kernel(lags)
    for _ in range(order):
        (value,) = torch.autograd.grad(value.sum(), lags, create_graph=True)
    return value.abs().max().item()


def ski_error(
    kernel: Kernel,
    length: int,
    num_points: int,
    degree: int = 1,
    *,
    derivative: float | None = None,
    rtol: float = 1e-10,
) -> dict[str, Any]:
    """Compare SKI with what it stands for, in the spectral norm, and with the bound on it.

    T[i, j] = k(i - j), A[i, j] = k(p_i - p_j), F[i, j] = k(i - p_j), B[i, j] = k(p_i - j), W the interpolation. SKI is
    W A W^T, Nystrom F A^+ B, T_r the best matrix of the rank of the points. Then W A W^T - T is Nystrom's error F A^+
    B - T plus the interpolation's W A W^T - F A^+ B. Theorem 1 of Moreno, Mei, Walters 2023 (arXiv 2305.09028) states

        |W A W^T - T_r| <= sqrt(n r) max|psi| / (N + 1)! L [(N + 1) sqrt(n) + min(s_1(F), s_1(B)) / s_r(A)] + |F A^-1 B
        - T_r|

    for degree N, psi(i) the product of the distances to the N + 1 points that token i uses, L a bound of the kernel's
    (N + 1)-th derivative and s_i singular values. `bound` is that. A may be singular: F A^+ B then leaves singular
    values of A below `rtol` times the largest out, and the theorem's steps still hold with the smallest one kept in
    place of s_r and the part of A that is left out added: `kept_bound`, ours, has |W|^2 s_left in the sum. Otherwise
    both are the same.

    Args:
        kernel: k.
        length: n tokens, at least 2.
        num_points: r inducing points over the whole length. With degree 3 there is one more, beyond the last token.
        degree: N, 1 or 3.
        derivative: L; None leaves the bounds out (a piecewise linear kernel has no such derivative).
        rtol: of the pseudo-inverse. Far smaller ones let it amplify the rounding of F and B.

    Returns:
        points, spacing (tokens); ski, best, nystrom, interpolation_part: errors relative to |T|; condition: s_r(A) /
        s_1(A);
        left_side, bound, kept_bound: the theorem, absolute, over |T| as well; bound is infinite for a singular A.
    """
    grid = InducingGrid(length, num_points, degree)
    weights = interpolation_matrix(length, grid)  # (length, points)
    count = weights.shape[1]
    tokens = torch.arange(length, dtype=torch.float64)
    points = torch.arange(count, dtype=torch.float64) * grid.spacing
    dense = kernel(tokens[:, None] - tokens)
    inducing = kernel(points[:, None] - points)
    columns = kernel(tokens[:, None] - points)  # F, (length, points)
    rows = kernel(points[:, None] - tokens)  # B, (points, length)

    u, s, vh = torch.linalg.svd(dense)
    norm = s[0].item()
    best_matrix = (u[:, :count] * s[:count]) @ vh[:count]
    best = s[count].item() if count < length else 0.0
    singular = torch.linalg.svdvals(inducing)
    kept = singular[singular > rtol * singular[0]]
    nystrom = columns @ torch.linalg.pinv(inducing, rtol=rtol) @ rows
    ski = weights @ inducing @ weights.T

    result: dict[str, Any] = {
        "length": length,
        "points": count,
        "degree": degree,
        "spacing": grid.spacing,
        "norm": norm,
        "ski": _norm(ski - dense) / norm,
        "best": best / norm,
        "nystrom": _norm(nystrom - dense) / norm,
        "interpolation_part": _norm(ski - nystrom) / norm,
        "condition": (singular[-1] / singular[0]).item(),
        "left_side": _norm(ski - best_matrix) / norm,
    }
    if derivative is None:
        return result
    first, _ = grid.weights(length, torch.float64)
    used = first[:, None] + torch.arange(degree + 1)  # (length, degree + 1)
    psi = (tokens[:, None] - used * grid.spacing).prod(dim=1).abs().max().item()
    entry = psi / math.factorial(degree + 1) * derivative
    smaller = min(_norm(columns), _norm(rows))
    rest = _norm(nystrom - best_matrix)

    def bound(smallest: float, dropped: float) -> float:
        amplified = smaller / smallest if smallest else math.inf
        step = (degree + 1) * math.sqrt(length) + amplified
        total = (math.sqrt(length * count) * entry * step if entry else 0.0) + rest
        return (total + _norm(weights) ** 2 * dropped) / norm

    dropped = singular[len(kept)].item() if len(kept) < count else 0.0
    return {**result, "bound": bound(singular[-1].item(), 0.0), "kept_bound": bound(kept[-1].item(), dropped)}


def learned_ski_errors(
    operator: ToeplitzOperator | SKIOperator,
    length: int,
    num_points: int,
    degree: int = 1,
    channels: int = 8,
    *,
    rtol: float = 1e-10,
) -> dict[str, Any]:
    """Return `ski_error` of learned kernels, as medians over evenly spread channels; without bounds.

    For SKI-TNN of the smooth part, without its convolution; for TNN of the kernel as it is, at lags that are no
    integers as well. A causal kernel is zero at negative lags, an edge that no low rank can follow.

    Raises:
        ValueError: the operator's kernel is only defined at integer lags (FD-TNN).
    """
    kernel = operator.kernel
    if isinstance(kernel, InverseTimeWarpKernel):
        decays = decay_of_each_channel(kernel.decay, len(kernel.past_knots))
        chosen = spread_channels(len(decays), channels)
        thin = copy.deepcopy(kernel).double()
        thin.past_knots = torch.nn.Parameter(thin.past_knots.detach()[chosen])
        thin.future_knots = torch.nn.Parameter(thin.future_knots.detach()[chosen])
        thin.decay = tuple(decays[channel] for channel in chosen.tolist())
        evaluate: Kernel = thin
        count = len(chosen)
    elif isinstance(kernel, ToeplitzKernel):
        encoder = some_channels(kernel.encoder, channels)
        decays = decay_of_each_channel(kernel.decay, kernel.channels)
        chosen = spread_channels(len(decays), channels)
        rates = torch.tensor(decays, dtype=torch.float64)[chosen, None].log()
        last = math.inf if kernel.max_lag is None else kernel.max_lag
        first, count = 0 if kernel.is_causal else -last, len(chosen)

        def evaluate(lags: Tensor) -> Tensor:
            taps = encoder(lags) * torch.exp(lags.abs() * rates)
            return taps * ((lags >= first) & (lags <= last))

    else:
        raise ValueError(f"{type(kernel).__name__} has values at integer lags only: SKI between them is not defined.")

    def of_channel(channel: int) -> Kernel:
        def values(lags: Tensor) -> Tensor:
            distinct, place = lags.unique(return_inverse=True)
            return evaluate(distinct)[channel][place]

        return values

    with torch.no_grad():
        rows = [ski_error(of_channel(channel), length, num_points, degree, rtol=rtol) for channel in range(count)]
    medians = torch.tensor([[float(row[key]) for key in rows[0]] for row in rows], dtype=torch.float64).median(dim=0)
    return dict(zip(rows[0], medians.values.tolist(), strict=True)) | {"channels": count}


def _norm(matrix: Tensor) -> float:
    """Return the largest singular value."""
    return torch.linalg.matrix_norm(matrix, ord=2).item()


def plot_ski_error(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], path: PathLike, *, title: str | None = None
) -> None:
    """Draw relative errors over the number of points, a panel for each kernel, with the bounds where there are some.

    Args:
        rows: name of a panel -> results of `ski_error` in ascending order of points, all of one degree.
        path: image file; the extension gives the format.
        title: above the figure.

    Raises:
        ValueError: there is nothing to draw.
    """
    if not rows or not all(rows.values()):
        raise ValueError("there is nothing to draw: give at least one result for each panel.")
    drawn = {
        "bound": "theorem 1",
        "kept_bound": "theorem 1, kept values",
        "ski": "SKI",
        "interpolation_part": "interpolation part",
        "nystrom": "Nyström part",
        "best": "best of that rank",
    }
    colors = {"bound": "#AAAAAA", "kept_bound": "#666666"}
    colors |= dict(
        zip(["ski", "interpolation_part", "nystrom", "best"], [COLORS[i] for i in (0, 1, 2, 6)], strict=True)
    )
    every = [row.get(key) or math.nan for results in rows.values() for row in results for key in drawn]
    finite = [value for value in every if math.isfinite(value)]
    # Bounds with a nearly singular A, and exact low ranks, leave the panels.
    low, high = max(1e-7, min(finite) / 3), min(1e7, 3 * max(finite))
    columns = min(2, len(rows))
    lines = -(-len(rows) // columns)
    with draw_grid(path, 5.2 * columns, 3.7 * lines + 0.5, lines, columns, title, sharey=True) as (figure, panels):
        for axes in panels.flat[len(rows) :]:
            axes.set_visible(False)
        for axes, (name, results) in zip(panels.flat, rows.items(), strict=False):
            x = [row["points"] for row in results]
            for marker, (key, label) in zip(MARKERS, drawn.items(), strict=False):
                if key == "kept_bound" and all(row.get("bound") == row.get(key) for row in results):
                    continue
                y = [row.get(key) or math.nan for row in results]
                if any(math.isfinite(value) for value in y):
                    dashed = "--" if key == "interpolation_part" else "-"  # it often hides another line
                    axes.loglog(
                        x, y, dashed, color=colors[key], marker=marker, markersize=4, linewidth=1.5, label=label
                    )
            axes.set_xscale("log", base=2)
            axes.set_xticks(x, [f"{points:.0f}" for points in x])
            axes.minorticks_off()
            axes.set(title=name, xlabel="inducing points", ylabel="spectral norm / |T|")
            axes.set_ylim(low, high)
        legend_below(figure, panels.flat)
