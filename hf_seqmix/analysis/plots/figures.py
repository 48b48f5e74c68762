"""What all figures share: style, colors, legends, and how a file is written; no display is needed."""

import contextlib
import os
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["COLORS", "MARKERS", "PathLike", "dash", "draw_grid", "draw_row", "legend_below", "line"]
__all__ += ["token_ticks"]

# Okabe and Ito's colors, which color-blind readers tell apart; markers do the same in print.
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
    path: PathLike,
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    title: str | None = None,
    **subplots: Any,
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Give a figure and its axes (rows, columns) to draw on, and write the file when the block ends without an error.

    Args:
        path: image file; the extension gives the format. The file is whole or untouched.
        width: in inches.
        height: in inches.
        rows: of panels.
        columns: of panels.
        title: above the figure.
        **subplots: further arguments of `Figure.subplots`.

    Raises:
        ValueError: the extension says no format.
    """
    with matplotlib.rc_context(_STYLE):
        made = Figure(figsize=(width, height), layout="constrained")
        formats = made.canvas.get_supported_filetypes()
        if Path(path).suffix[1:].lower() not in formats:
            raise ValueError(f"{path} ends in no format of a picture; allowed are .{', .'.join(sorted(formats))}.")
        if title:
            made.suptitle(title, x=0.01, ha="left", fontsize=11 if len(title) < 12 * width else 9)
        yield made, made.subplots(rows, columns, squeeze=False, **subplots)
        temporary = Path(path).with_name(f".{Path(path).stem}.tmp{Path(path).suffix}")
        try:
            made.savefig(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def draw_row(
    path: PathLike, width: float, height: float, columns: int = 1, title: str | None = None
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Do as `draw_grid`, with the axes of a single row as a list."""
    with draw_grid(path, width, height, 1, columns, title) as (made, axes):
        yield made, list(axes[0])


def line(index: int) -> dict[str, Any]:
    """Return color and marker of the line with that number: lines of one color have different markers."""
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[(index + index // len(COLORS)) % len(MARKERS)]}


def dash(index: int) -> tuple[int, tuple[int, ...]]:
    """Return the dash pattern of the reference line with that number."""
    return (0, ((5, 3), (1, 2), (5, 2, 1, 2), (8, 3))[index % 4])


def legend_below(figure: Figure, panels: Axes | Iterable[Axes], title: str | None = None, columns: int = 3) -> None:
    """Put one legend of the panels below them, and a title above, so that neither covers lines or the other."""
    found: dict[str, Any] = {}
    for axes in [panels] if isinstance(panels, Axes) else panels:
        found |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=min(len(found), columns) or 1)
    if title:
        figure.suptitle(textwrap.fill(title, int(12 * figure.get_figwidth())), x=0.01, ha="left", fontsize=11)


def token_ticks(axes: Axes, lengths: Iterable[int], **labels: Any) -> None:
    """Give a panel logarithmic axes with a tick at each length in tokens, and labels."""
    ticks = sorted(set(lengths))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(**{"xlabel": "length (tokens)"} | labels)
