"""Pictures of what each layer does: weights and Jacobians as maps, singular values and memory as lines."""

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.image import AxesImage
from torch import Tensor

from ..plots.figures import COLORS, PathLike, draw_grid, draw_row, legend_below
from .layers import LayerView

__all__ = ["plot_maps", "plot_memory", "plot_spectra"]

_HEADS = 3
"""Maps of weights in a row, beside that of the Jacobian."""


def plot_maps(views: Sequence[LayerView], path: PathLike) -> None:
    """Draw the absolute weights of some heads, and the norms of the Jacobian, of the first input; a row a layer.

    Args:
        views: of `look_inside`.
        path: image file; the extension gives the format.
    """
    shown = [_maps(view) for view in views]
    columns = max(len(maps) for maps in shown)
    with draw_grid(path, 3.1 * columns, 2.9 * len(views), len(views), columns) as (figure, panels):
        for maps, row in zip(shown, panels, strict=True):
            for axes in row[len(maps) :]:
                axes.set_visible(False)
            for (title, values), axes in zip(maps, row, strict=False):
                image = _draw_map(axes, values, title)
                figure.colorbar(image, ax=axes, shrink=0.8)


def plot_spectra(views: Sequence[LayerView], path: PathLike) -> None:
    """Draw the singular values of the weights and of the logits against their number, a line a layer.

    Lines are means over inputs and heads, bands reach from the tenth to the ninetieth percentile.

    Args:
        views: of `look_inside`.
        path: image file; the extension gives the format.
    """
    panels = [
        ("weights (of the Jacobian where there are none)", "spectrum"),
        ("logits, rows centered", "logit_spectrum"),
    ]
    panels = [(title, name) for title, name in panels if any(getattr(view, name) is not None for view in views)]
    with draw_row(path, 5.2 * len(panels), 4.2, len(panels)) as (figure, all_axes):
        for (title, name), axes in zip(panels, all_axes, strict=True):
            for view in views:
                seen = getattr(view, name)
                if seen is None:
                    continue
                values = seen.samples
                numbers = torch.arange(1, values.shape[1] + 1)
                low, high = values.quantile(torch.tensor([0.1, 0.9], dtype=values.dtype), dim=0)
                color = COLORS[view.layer % len(COLORS)]
                axes.plot(numbers, seen.mean, color=color, label=_name(view), linestyle=_dash(view))
                axes.fill_between(numbers, low, high, color=color, alpha=0.12, linewidth=0)
            axes.set(xscale="log", yscale="log", xlabel="k", ylabel="singular value", title=title)
            axes.set_ylim(bottom=max(axes.get_ylim()[0], 1e-6 * axes.get_ylim()[1]))
        legend_below(figure, all_axes)


def plot_memory(views: Sequence[LayerView], path: PathLike) -> None:
    """Draw which share of the squares of each layer's Jacobian lies within a distance.

    Args:
        views: of `look_inside`.
        path: image file; the extension gives the format.
    """
    longest = 1
    with draw_row(path, 7, 4.2) as (figure, (axes,)):
        for view in views:
            memory = view.memory
            if memory is not None:
                shares = memory.shares.cumsum(dim=0)
                color, longest = COLORS[view.layer % len(COLORS)], max(longest, len(shares) - 1)
                axes.plot(torch.arange(len(shares)), shares, color=color, label=_name(view), linestyle=_dash(view))
        axes.axhline(0.9, color="#888888", linewidth=0.8)
        axes.set(xlabel="distance (tokens)", ylabel="share of the squares within it", ylim=(0, 1.02))
        axes.set_xscale("symlog", base=2, linthresh=1)
        ticks = [0, *(2**power for power in range(longest.bit_length()))]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xlim(0, longest)
        legend_below(figure, axes)


def _maps(view: LayerView) -> list[tuple[str, Tensor]]:
    maps = []
    if view.weights is not None:
        places = torch.linspace(0, len(view.heads) - 1, min(_HEADS, len(view.heads))).round().long().tolist()
        maps = [(f"layer {view.layer}, head {view.heads[place]}", view.weights[0, place]) for place in places]
    if view.jacobian is not None:
        maps.append((f"layer {view.layer}, Jacobian", view.jacobian[0]))
    return maps


def _draw_map(axes: Axes, values: Tensor, title: str) -> AxesImage:
    """Draw absolute values (queries, keys) on a logarithmic scale of three decades."""
    sizes = values.abs().double().cpu()
    largest = sizes.max().item() or 1.0
    image = axes.imshow(sizes.clamp(min=1e-3 * largest).numpy(), cmap="magma", norm=LogNorm(1e-3 * largest, largest))
    axes.set(title=title, xlabel="key", ylabel="query")
    axes.grid(False)
    return image


def _name(view: LayerView) -> str:
    return f"{view.layer}: {view.mixer}"


def _dash(view: LayerView) -> str:
    """Tell layers of one color apart."""
    return ("-", "--", ":", "-.")[view.layer // len(COLORS) % 4]
