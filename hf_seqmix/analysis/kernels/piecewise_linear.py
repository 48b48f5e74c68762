"""Is a ReLU encoder piecewise linear? Proposition 1 of the paper, by second differences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...models.toeplitz.encoder import RelativePositionEncoder
from ...modules.norms import SeqMixLayerNorm, SimpleRMSNorm
from ..plots.figures import COLORS, PathLike, draw_grid
from .response_tails import kinks

__all__ = [
    "LINEARITY_COLUMNS",
    "NORMALIZATIONS",
    "Linearity",
    "linearity",
    "normalized_encoder",
    "plot_linearity",
]

NORMALIZATIONS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda channels: nn.Identity(),
    "simple_rms": lambda channels: SimpleRMSNorm(),
    "layer": SeqMixLayerNorm,
}
"""Name -> the norm of so many channels."""

LINEARITY_COLUMNS = {
    "normalization": "normalization",
    "kinks": "kinks:.0f",
    "bend": "second difference:.1e",
    "bend_half_step": "at half the step:.1e",
    "order": "order:.2f",
    "sag": "off the chord:.1e",
}
"""Columns of `Linearity.to_dict` for `markdown_table`."""


@dataclass(frozen=True)
class Linearity:
    """How far a function is from linear between its kinks; f is scaled to a largest magnitude of 1.

    Attributes:
        points: (points,) evenly spaced arguments.
        values: (points,) f.
        kinks: (kinks,) where an activation's input changes its sign.
        curvature: (points,) |f(x - h) - 2 f(x) + f(x + h)| / h^2, NaN where a kink lies within the three points and at
            the ends.
        bend: largest |f(x - h) - 2 f(x) + f(x + h)| away from kinks; rounding alone leaves a few times 1e-16.
        bend_half_step: the same with steps of h / 2.
        sag: largest distance between f and the straight line from one kink to the next.
    """

    points: Tensor
    values: Tensor
    kinks: Tensor
    curvature: Tensor
    bend: float
    bend_half_step: float
    sag: float

    @property
    def order(self) -> float:
        """log2 of bend over bend_half_step: 2 where f is curved, and no such number where only rounding is left."""
        return float(torch.tensor(self.bend / self.bend_half_step).log2()) if self.bend_half_step else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, ready for JSON; the order is None where the second differences are rounding."""
        curved = self.bend > 1e-12
        return {
            "kinks": len(self.kinks),
            "bend": self.bend,
            "bend_half_step": self.bend_half_step,
            "order": self.order if curved else None,
            "sag": self.sag,
        }


def normalized_encoder(
    normalization: str, *, hidden_size: int = 64, num_layers: int = 3, seed: int = 0
) -> RelativePositionEncoder:
    """Return a random ReLU encoder in float64 with one output and the given norm before every activation.

    The weights are the same for every norm; a LayerNorm starts with weight 1 and bias 0, as in PyTorch.

    Raises:
        ValueError: the normalization is not "none", "simple_rms" or "layer".
    """
    if normalization not in NORMALIZATIONS:
        raise ValueError(f"normalization is {normalization!r}; it must be one of {', '.join(NORMALIZATIONS)}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = RelativePositionEncoder(1, hidden_size, num_layers, "relu")
    for place in ("hidden_norm", "out_norm"):
        setattr(encoder, place, NORMALIZATIONS[normalization](hidden_size))
    return encoder.double()


@torch.no_grad()
def linearity(encoder: RelativePositionEncoder, low: float = -4.0, high: float = 4.0, cells: int = 2**14) -> Linearity:
    """Measure second differences and chords of the first output of a ReLU encoder, away from its kinks.

    Without normalization the encoder is a composition of affine maps and ReLUs, hence piecewise linear: second
    differences vanish unless a kink lies between their points. Moreno, Mei, Walters 2023 (arXiv 2305.09028),
    proposition 1, claim the same with layer normalization. But a norm divides by the root of a quadratic in x, so
    between kinks the function is algebraic and bends.

    Args:
        encoder: in float64, with ReLU.
        low: least argument.
        high: greatest argument.
        cells: the step is h = (high - low) / cells.

    Raises:
        ValueError: the encoder is not in float64, whose rounding second differences need, or has another activation.
    """
    if encoder.dtype != torch.float64 or not isinstance(encoder.activation, nn.ReLU):
        raise ValueError(
            f"the encoder computes in {encoder.dtype} with {type(encoder.activation).__name__}; float64 and ReLU only."
        )
    points = torch.linspace(low, high, cells + 1, dtype=torch.float64)
    values = encoder(points)[0]
    scale = values.abs().max()
    before, after = kinks(encoder, low, high, cells=4 * cells)
    edges = ((before + after) / 2).sort().values
    differences = _second_differences(values / scale, points, edges)
    step = (high - low) / cells
    finer = torch.linspace(low, high, 2 * cells + 1, dtype=torch.float64)
    finer_differences = _second_differences(encoder(finer)[0] / scale, finer, edges)

    # Between two kinks f is compared with the line through the two points next to them.
    corners = torch.stack(
        [torch.cat([points[:1], after.sort().values]), torch.cat([before.sort().values, points[-1:]])]
    )
    ends = encoder(corners.flatten())[0].view_as(corners)
    piece = torch.searchsorted(edges, points)
    (x0, x1), (y0, y1) = corners[:, piece], ends[:, piece]
    inside = (points > x0) & (points < x1)
    chord = y0 + (y1 - y0) * (points - x0) / (x1 - x0).clamp(min=torch.finfo(torch.float64).tiny)
    sag = ((values - chord) / scale).abs()[inside].max().item()
    return Linearity(
        points,
        values / scale,
        edges,
        differences / step**2,
        _largest(differences),
        _largest(finer_differences),
        sag,
    )


def _second_differences(values: Tensor, points: Tensor, edges: Tensor) -> Tensor:
    """Return (points,): |f(x - h) - 2 f(x) + f(x + h)|, NaN at the ends and where one of `edges` lies within."""
    differences = torch.full_like(values, torch.nan)
    clear = torch.searchsorted(edges, points[2:]) == torch.searchsorted(edges, points[:-2])
    second = (values[2:] - 2 * values[1:-1] + values[:-2]).abs()
    differences[1:-1] = second.masked_fill(~clear, torch.nan)
    return differences


def _largest(values: Tensor) -> float:
    return values.nan_to_num(0.0).max().item()


def plot_linearity(results: Mapping[str, Linearity], path: PathLike, *, title: str | None = None) -> None:
    """Draw each function with its kinks, and below it the curvature between them.

    Args:
        results: name of the normalization -> what `linearity` found.
        path: image file; the extension gives the format.
        title: above the figure.

    Raises:
        ValueError: there is nothing to draw.
    """
    if not results:
        raise ValueError("there is nothing to draw: results is empty.")
    with draw_grid(path, 4.2 * len(results), 5.6, 2, len(results), title, sharex=True, sharey="row") as (_, rows):
        for (name, result), top, bottom in zip(results.items(), *rows, strict=True):
            top.plot(result.points, result.values, color=COLORS[0], linewidth=1.4)
            ticks = torch.full_like(result.kinks, 0.03)
            top.plot(result.kinks, ticks, "|", color=COLORS[1], markersize=8, transform=top.get_xaxis_transform())
            top.set(title="no normalization" if name == "none" else f"normalization: {name}")
            drawn = result.curvature.masked_fill(result.curvature == 0, torch.nan)
            bottom.semilogy(result.points, drawn, ".", color=COLORS[0], markersize=1.5)
            bottom.set(xlabel="x")
            if result.bend < 1e-12:
                bottom.annotate("rounding only", (0.03, 0.93), xycoords="axes fraction", color="#666666", va="top")
        rows[0][0].set_ylabel("f(x) / max |f|; ticks: kinks")
        rows[1][0].set_ylabel("|second difference| / h²")
