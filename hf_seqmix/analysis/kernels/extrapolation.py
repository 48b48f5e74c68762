"""Kernels beyond the length they were trained for: what moves, and what comes after."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...models.fd_tnn.kernel import FrequencyKernel
from ...models.ski_tnn.operator import SKIOperator
from ...models.toeplitz.operator import ToeplitzOperator
from ...ops.ski.interpolation import InducingGrid
from ..plots.figures import COLORS, PathLike, draw_grid
from .learned import LearnedKernels, ski_taps, toeplitz_operators, typical_channels

__all__ = ["EXTRAPOLATION_COLUMNS", "Extrapolation", "extrapolate", "extrapolate_model", "plot_extrapolation"]

EXTRAPOLATION_COLUMNS = {
    "layer": "layer",
    "way": "way",
    "length": "trained",
    "longer": "asked for",
    "moved": "first taps move by:.1e",
    "moved_worst": "worst channel:.1e",
    "beyond_energy": "energy beyond:.1e",
    "beyond_largest": "largest tap beyond:.1e",
}
"""Columns of `Extrapolation.to_dict` for `markdown_table`."""


@dataclass(frozen=True)
class Extrapolation:
    """A layer's kernel for the trained length and, in one way, for a longer one.

    Attributes:
        layer: path of the layer in the model.
        way: how it was made longer.
        is_causal: whether negative lags are absent.
        before: (channels, n) or (channels, 2n - 1), taps for the trained length n.
        after: (channels, n') or (channels, 2n' - 1), taps for the longer one.
    """

    layer: str
    way: str
    is_causal: bool
    before: Tensor
    after: Tensor

    @property
    def length(self) -> int:
        """n, in tokens."""
        return self.before.shape[1] if self.is_causal else self.before.shape[1] // 2 + 1

    @property
    def longer(self) -> int:
        """n', in tokens."""
        return self.after.shape[1] if self.is_causal else self.after.shape[1] // 2 + 1

    @property
    def first(self) -> Tensor:
        """The longer kernel at the lags that the shorter one has."""
        if self.is_causal:
            return self.after[:, : self.length]
        skipped = self.longer - self.length
        return self.after[:, skipped : self.after.shape[1] - skipped]

    def moved(self) -> Tensor:
        """Return |k'(t) - k(t)| / |k(t)| over the trained lags, root mean square of each: (channels,)."""
        return (self.first - self.before).norm(dim=1) / self.before.norm(dim=1)

    def beyond(self) -> tuple[Tensor, Tensor]:
        """Return the share of sum k'(t)^2 at new lags, and the largest |k'(t)| there over all: (channels,) each."""
        lags = LearnedKernels(self.layer, self.is_causal, self.after).lags
        new = self.after[:, lags.abs() >= self.length]
        energy = new.square().sum(dim=1) / self.after.square().sum(dim=1)
        return energy, new.abs().amax(dim=1) / self.after.abs().amax(dim=1)

    def to_dict(self) -> dict[str, Any]:
        """Return figures as medians over channels, ready for JSON."""
        moved, (energy, largest) = self.moved(), self.beyond()
        return {
            "layer": self.layer,
            "way": self.way,
            "length": self.length,
            "longer": self.longer,
            "moved": moved.median().item(),
            "moved_worst": moved.max().item(),
            "beyond_energy": energy.median().item(),
            "beyond_largest": largest.median().item(),
        }


@torch.no_grad()
def extrapolate(
    operator: ToeplitzOperator | SKIOperator, length: int, longer: int, layer: str = ""
) -> list[Extrapolation]:
    """Make an operator's kernel longer, in every way that its family has.

    TNN evaluates its encoder at more lags: the first taps are the same. FD-TNN has two ways. It keeps its grid, and
    taps beyond the grid are zero; or it samples its response on a finer grid (the paper's way), and the first taps
    move by what was aliased. SKI-TNN has two ways, too. It meets more inducing points at the same spacing, where
    W A W^T changes only by the mean over more places; or it spreads the points that it has. Either way the inverse
    time warp maps greater lags into the trained interval.

    Args:
        operator: the operator; it is not changed.
        length: n, trained, in tokens. An FD kernel is compared from the grid for n, whatever grid it is set to.
        longer: n' > n.
        layer: name for the result.

    Raises:
        ValueError: `longer` does not exceed `length`, or `length` is below 2.
    """
    if not 2 <= length < longer:
        raise ValueError(
            f"length is {length} and longer {longer}; the second must exceed the first, which is at least 2."
        )

    def result(way: str, before: Tensor, after: Tensor) -> Extrapolation:
        causal = isinstance(operator, ToeplitzOperator) and operator.is_causal
        return Extrapolation(layer, way, causal, before.cpu(), after.cpu())

    if isinstance(operator, SKIOperator):
        grid = operator.grid
        before = ski_taps(operator, length)
        spread = InducingGrid(1 + math.ceil((grid.max_length - 1) * longer / length), grid.num_points, grid.degree)
        return [
            result("more inducing points", before, ski_taps(operator, longer)),
            result("the same points, spread", before, ski_taps(operator, longer, spread)),
        ]
    if isinstance(operator.kernel, FrequencyKernel):
        kernel = copy.deepcopy(operator.kernel)
        kernel.set_context_length(length)
        before, padded = kernel(length), kernel(longer)
        kernel.set_context_length(longer)
        return [result("zeros beyond the grid", before, padded), result("finer grid", before, kernel(longer))]
    return [result("more lags", operator.kernel(length), operator.kernel(longer))]


def extrapolate_model(model: nn.Module, length: int, longer: int) -> list[Extrapolation]:
    """Extrapolate every layer of a model; along an axis of a grid by the same factor from its own length."""
    found = []
    for name, operator, places in toeplitz_operators(model):
        own = length if places is None else places
        found += extrapolate(operator, own, own * longer // length if places else longer, name)
    return found


def plot_extrapolation(results: Sequence[Extrapolation], path: PathLike, *, title: str | None = None) -> None:
    """Draw a row for each layer: the longer kernels of a typical channel, and how far its first taps move.

    Args:
        results: of one or several layers; those of one layer share a row.
        path: image file; the extension gives the format.
        title: above the figure.

    Raises:
        ValueError: there is nothing to draw.
    """
    layers: dict[str, list[Extrapolation]] = {}
    for entry in results:
        layers.setdefault(entry.layer, []).append(entry)
    if not layers:
        raise ValueError("there is nothing to draw: results is empty.")
    with draw_grid(path, 10.5, 3.1 * len(layers), len(layers), 2, title) as (_, rows):
        for (layer, ways), (taps_axes, moved_axes) in zip(layers.items(), rows, strict=True):
            original = LearnedKernels(layer, ways[0].is_causal, ways[0].before)
            channel = typical_channels(original, 1)[0]
            largest = original.taps[channel].abs().max()
            equal: list[str] = []
            for index, entry in enumerate(ways):
                kernel = LearnedKernels(layer, entry.is_causal, entry.after)
                size = kernel.taps[channel].abs() / largest
                color = COLORS[index]
                drawn = size.masked_fill(size < 1e-30, math.nan)
                taps_axes.semilogy(kernel.lags, drawn, color=color, linewidth=1.8 - 0.7 * index, label=entry.way)
                difference = (entry.first - entry.before)[channel].abs() / largest
                if difference.max() > 0:
                    shown = difference.masked_fill(difference == 0, math.nan)
                    moved_axes.semilogy(original.lags, shown, color=color, linewidth=1, label=entry.way)
                else:
                    equal.append(entry.way)
            for edge in (ways[0].length, -ways[0].length)[: 1 if ways[0].is_causal else 2]:
                taps_axes.axvline(edge, color="#888888", linewidth=1.2, linestyle=":")
            longest = max(entry.longer for entry in ways)
            taps_axes.set_xlim(0 if ways[0].is_causal else -longest, longest)
            taps_axes.set(title=f"{layer}, channel {channel}", xlabel="lag (tokens)", ylabel="|k| / max |k|")
            taps_axes.legend(fontsize=8)
            if len(equal) == len(ways):
                moved_axes.set_axis_off()
            title_end = f" ({', '.join(equal)}: none)" if equal else ""
            moved_axes.set(
                title=f"change at trained lags{title_end}", xlabel="lag (tokens)", ylabel="|k' - k| / max |k|"
            )
