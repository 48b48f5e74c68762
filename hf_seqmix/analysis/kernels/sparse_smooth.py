"""Learned kernels as a few taps around zero and a smooth rest, whose Toeplitz matrix has a low rank."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ops.toeplitz.product import toeplitz_matrix
from ..plots.figures import COLORS, PathLike, draw_grid
from .learned import LearnedKernels, typical_channels

__all__ = ["SPLIT_COLUMNS", "Split", "plot_split", "rank_to", "split_kernel", "split_row", "two_sided"]

SPLIT_COLUMNS = {
    "layer": "layer",
    "half_width": "taps each side",
    "sparse_energy": "energy, sparse:.1%",
    "smooth_energy": "energy, smooth:.1%",
    "sparse_norm": "norm, sparse:.1%",
    "smooth_norm": "norm, smooth:.1%",
    "rank": "rank of T:.0f",
    "smooth_rank": "rank of the rest:.0f",
}
"""Columns of `split_row` for `markdown_table`."""


class Split(NamedTuple):
    """A kernel as a sum of two: taps around lag 0 and a smooth rest, (channels, 2 length - 1) each."""

    sparse: Tensor
    smooth: Tensor


def two_sided(taps: Tensor, is_causal: bool) -> Tensor:
    """Return taps at lags -(n - 1) to n - 1, (channels, 2n - 1): before a causal kernel (channels, n) stand zeros."""
    return torch.nn.functional.pad(taps, (taps.shape[-1] - 1, 0)) if is_causal else taps


def split_kernel(taps: Tensor, half_width: int = 8) -> Split:
    """Split k(t) = sparse(t) + smooth(t), with sparse(t) = 0 for |t| > m.

    The rest continues straight from k(-m - 1) to k(m + 1) under the taps taken out. For a causal kernel, given with
    its zeros at negative lags, that spreads its edge at lag 0 over 2 m + 2 steps: the rest alone is not causal, the
    sum is. After figure 1 of Moreno, Mei, Walters 2023 (arXiv 2305.09028), who show the split for one learned kernel;
    the straight continuation is ours.

    Args:
        taps: (channels, 2 length - 1), lags -(length - 1) to length - 1.
        half_width: m, at least 0 and below length - 1.

    Raises:
        ValueError: the number of taps is even, or `half_width` does not fit.
    """
    count = taps.shape[-1]
    if count % 2 == 0:
        raise ValueError(f"taps has {count} lags; a two-sided kernel has an odd number: see two_sided().")
    if not 0 <= half_width < count // 2:
        raise ValueError(
            f"half_width is {half_width}; with {count} lags it must be at least 0 and below {count // 2}."
        )
    center = count // 2
    first, last = center - half_width - 1, center + half_width + 1
    share = torch.linspace(0, 1, last - first + 1, dtype=taps.dtype)[1:-1]
    smooth = taps.clone()
    smooth[:, first + 1 : last] = taps[:, first : first + 1] * (1 - share) + taps[:, last : last + 1] * share
    return Split(taps - smooth, smooth)


def rank_to(singular_values: Tensor, tolerance: Tensor | float) -> Tensor:
    """Return how many singular values exceed an absolute tolerance: (..., n) -> (...)."""
    return (singular_values > torch.as_tensor(tolerance, dtype=singular_values.dtype)).sum(dim=-1)


def split_row(taps: Tensor, half_width: int = 8, tolerance: float = 0.01) -> dict[str, Any]:
    """Return what each part of a kernel holds, and the rank that its matrices have, as medians over channels.

    Args:
        taps: (channels, 2 length - 1); a channel costs two singular value decompositions of length x length.
        half_width: m of `split_kernel`.
        tolerance: error of the matrix of a lower rank, relative to the spectral norm |T|.

    Returns:
        sparse_energy, smooth_energy: sum of squared taps over that of k (the parts overlap, so they do not add up to
            1);
        sparse_norm, smooth_norm: spectral norm over |T|; rank, smooth_rank: smallest rank of a matrix within
        `tolerance` |T| of T and of the rest's matrix; channels.
    """
    taps = taps.double()
    split = split_kernel(taps, half_width)
    length = taps.shape[-1] // 2 + 1
    energy = taps.square().sum(dim=1)
    whole, sparse, smooth = (
        torch.linalg.svdvals(toeplitz_matrix(part, length, causal=False)) for part in (taps, *split)
    )
    norm = whole[:, 0]
    limit = tolerance * norm[:, None]
    values = {
        "sparse_energy": split.sparse.square().sum(dim=1) / energy,
        "smooth_energy": split.smooth.square().sum(dim=1) / energy,
        "sparse_norm": sparse[:, 0] / norm,
        "smooth_norm": smooth[:, 0] / norm,
        "rank": rank_to(whole, limit).to(taps.dtype),
        "smooth_rank": rank_to(smooth, limit).to(taps.dtype),
    }
    return {
        "half_width": half_width,
        "length": length,
        "channels": taps.shape[0],
        **{name: value.median().item() for name, value in values.items()},
    }


def plot_split(
    kernels: Sequence[LearnedKernels], path: PathLike, *, half_width: int = 8, title: str | None = None
) -> None:
    """Draw a row for each layer, of a channel with typical reach: the split, the three matrices' sizes, their spectra.

    Args:
        kernels: layers.
        path: image file; the extension gives the format.
        half_width: m of `split_kernel`.
        title: above the figure.

    Raises:
        ValueError: there is nothing to draw.
    """
    if not kernels:
        raise ValueError("there is nothing to draw: kernels is empty.")
    with draw_grid(path, 11.5, 3.3 * len(kernels), len(kernels), 3, title) as (figure, rows):
        for layer, (taps_axes, matrix_axes, spectrum_axes) in zip(kernels, rows, strict=True):
            channel = typical_channels(layer, 1)[0]
            taps = two_sided(layer.taps[[channel]].double(), layer.is_causal)
            split = split_kernel(taps, half_width)
            length = taps.shape[-1] // 2 + 1
            lags = torch.arange(-(length - 1), length)
            shown = min(length - 1, 6 * (half_width + 1))
            near = lags.abs() <= shown
            inside = lags.abs() <= half_width
            taps_axes.vlines(lags[inside], 0, split.sparse[0, inside], color=COLORS[1], linewidth=2, label="sparse")
            taps_axes.plot(lags[near], split.smooth[0, near], color=COLORS[0], label="smooth")
            taps_axes.plot(lags[near], taps[0, near], color="black", linewidth=0.8, linestyle=":", label="k(t)")
            taps_axes.set(title=f"{layer.name}, channel {channel}", xlabel="lag (tokens)", ylabel="k(t)")
            taps_axes.legend(fontsize=8)

            matrix = toeplitz_matrix(split.smooth, length, causal=False)[0]
            limit = matrix.abs().max().item() or 1.0
            image = matrix_axes.imshow(matrix.numpy(), cmap="RdBu", vmin=-limit, vmax=limit, interpolation="nearest")
            matrix_axes.set(title="matrix of the smooth part", xlabel="input position", ylabel="output position")
            matrix_axes.grid(False)
            figure.colorbar(image, ax=matrix_axes, shrink=0.85)

            norm = None
            for part, color, label in ((taps, "black", "T"), (split.smooth, COLORS[0], "smooth part")):
                values = torch.linalg.svdvals(toeplitz_matrix(part, length, causal=False))[0]
                norm = values[0] if norm is None else norm
                rank = int(rank_to(values, 0.01 * norm))
                drawn = (values / norm).clamp(min=1e-9)
                spectrum_axes.semilogy(
                    torch.arange(1, length + 1), drawn, color=color, label=f"{label}: rank {rank} to 1 %"
                )
            spectrum_axes.axhline(0.01, color="#888888", linewidth=1, linestyle="--")
            spectrum_axes.set(title="singular values", xlabel="number", ylabel="relative to |T|", ylim=(1e-6, math.e))
            spectrum_axes.legend(fontsize=8)
