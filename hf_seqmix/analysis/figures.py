"""What all figures share: style, colours, and how a file is written; no display is needed."""

import contextlib
import os
import textwrap
from collections.abc import Iterator
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["COLORS", "MARKERS", "PathLike", "dash", "draw_grid", "draw_row", "legend_below", "line"]

# Okabe and Ito's colours, which colour-blind readers tell apart; markers do the same in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "savefig.dpi": 150,
}

PathLike = str | os.PathLike[str]


@contextlib.contextmanager
def draw_grid(
    path: PathLike, width: float, height: float, rows: int = 1, columns: int = 1, **subplots: Any
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Give a figure and its axes (rows, columns) to draw on, and write it when the block ends without an error.

    Args:
        path: image file; the extension gives the format.
        width, height: in inches.
        rows, columns: of panels.
        **subplots: further arguments of `Figure.subplots`.
    """
    with matplotlib.rc_context(_STYLE):
        made = Figure(figsize=(width, height), layout="constrained")
        yield made, made.subplots(rows, columns, squeeze=False, **subplots)
        made.savefig(path)


@contextlib.contextmanager
def draw_row(path: PathLike, width: float, height: float, columns: int = 1) -> Iterator[tuple[Figure, list[Axes]]]:
    """As `draw_grid`, with the axes of a single row as a list."""
    with draw_grid(path, width, height, 1, columns) as (made, axes):
        yield made, list(axes[0])


def line(index: int) -> dict[str, Any]:
    """Colour and marker of the line with that number."""
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}


def dash(index: int) -> tuple[int, tuple[int, ...]]:
    """Dash pattern of the reference line with that number."""
    return (0, ((5, 3), (1, 2), (5, 2, 1, 2), (8, 3))[index % 4])


def legend_below(figure: Figure, axes: Axes, title: str | None) -> None:
    """Put the legend of the axes below them, and a title above, so that neither covers lines or the other."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3))
    if title:
        figure.suptitle(textwrap.fill(title, int(12 * figure.get_figwidth())), x=0.01, ha="left", fontsize=11)
