"""Accuracy against speed against memory, a disc a model, and how speed and memory change with the length."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullLocator

from .figures import COLORS, PathLike, dash, draw_row, line

__all__ = ["TradeOffPoint", "plot_costs", "plot_tradeoff"]

LARGEST_AREA = 600.0  # square points of the largest disc
LINE_HEIGHT = 12.0  # points between two labels


@dataclass(frozen=True)
class TradeOffPoint:
    """A model in the plot.

    Attributes:
        name: as its label says.
        accuracy: drawn upwards.
        speed: updates a second, drawn to the right.
        memory_mib: the area of its disc.
        spread: half the length of its error bar; None for no bar.
    """

    name: str
    accuracy: float
    speed: float
    memory_mib: float
    spread: float | None = None


def plot_tradeoff(
    panels: Mapping[str, Sequence[TradeOffPoint]],
    path: PathLike,
    *,
    references: Mapping[str, float] | None = None,
    title: str | None = None,
) -> None:
    """Draw accuracy over speed, a disc a model whose area is proportional to its memory, with a legend for the area.

    As figure 3 of Tay et al. 2021 (arXiv 2011.04006) and figure 1 of Moreno, Mei, Walters 2023 (arXiv 2305.09028). Areas
    are to one scale in all panels.

    Args:
        panels: what a panel shows -> its models; one name has one colour in all of them.
        path: image file; the extension gives the format.
        references: name -> accuracy, drawn as horizontal lines.
        title: above the plot.

    Raises:
        ValueError: a panel has no model, or a speed or memory is not positive.
    """
    points = [point for found in panels.values() for point in found]
    if not points or not all(panels.values()):
        raise ValueError("There is nothing to plot: give at least one model a panel.")
    for point in points:
        if not (point.speed > 0 and point.memory_mib > 0):
            raise ValueError(
                f"Speed and memory must be positive; {point.name} has {point.speed} and {point.memory_mib}."
            )
    names = dict.fromkeys(point.name for point in points)
    colors = {name: COLORS[place % len(COLORS)] for place, name in enumerate(names)}
    scale = LARGEST_AREA / max(point.memory_mib for point in points)
    with draw_row(path, 1.6 + 5.2 * len(panels), 4.8, len(panels)) as (figure, columns):
        for axes, (heading, found) in zip(columns, panels.items(), strict=True):
            for point in found:
                color = colors[point.name]
                if point.spread:
                    axes.errorbar(point.speed, point.accuracy, point.spread, color=color, capsize=3, linewidth=1.2)
                axes.scatter(
                    point.speed, point.accuracy, scale * point.memory_mib, color=color, alpha=0.55, linewidth=0
                )
                axes.plot(point.speed, point.accuracy, ".", color=color, markersize=3)
            for index, (name, value) in enumerate((references or {}).items()):
                axes.axhline(
                    value, color="#666666", linewidth=1.2, linestyle=dash(index), label=f"{name} ({value:.3f})"
                )
            axes.margins(0.22)
            # From zero, or small differences look large; with room for the name of the fastest.
            axes.set_xlim(0, 1.35 * max(point.speed for point in found))
            axes.set(xlabel="updates a second", ylabel="test accuracy")
            if len(panels) > 1:
                axes.set_title(heading, loc="left")
        handles, labels = columns[0].get_legend_handles_labels()
        for memory in _round_sizes([point.memory_mib for point in points]):
            handles.append(columns[0].scatter([], [], scale * memory, color="#999999", linewidth=0))
            labels.append(f"{memory:,g} MiB")
        figure.legend(handles, labels, loc="outside right upper", labelspacing=1.8, handletextpad=1.6, borderpad=1.2)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=10, wrap=True)
        for axes, found in zip(columns, panels.values(), strict=True):
            _label(figure, axes, found, scale, colors)


def _round_sizes(values: Sequence[float]) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten, near the least, the middle and the greatest value."""
    low, high = min(values), max(values)
    sizes = []
    for value in (low, math.sqrt(low * high), high):
        power = 10.0 ** math.floor(math.log10(value))
        sizes.append(min((factor * power for factor in (1, 2, 5, 10)), key=lambda size: abs(math.log(size / value))))
    return list(dict.fromkeys(sizes))


def _label(
    figure: Figure, axes: Axes, points: Sequence[TradeOffPoint], scale: float, colors: Mapping[str, str]
) -> None:
    """Write each name, in the colour of its disc, to the right of its disc, higher where another name stands there already."""
    figure.draw_without_rendering()  # or places in pixels are not known yet
    placed: list[tuple[float, float, float]] = []
    pixels = figure.dpi / 72
    for point in sorted(points, key=lambda point: point.accuracy):
        x, y = (value / pixels for value in axes.transData.transform((point.speed, point.accuracy)))
        left = x + math.sqrt(scale * point.memory_mib / math.pi) + 3
        right, height = left + 6.0 * len(point.name), y
        while any(left < b and right > a and abs(height - other) < LINE_HEIGHT for a, b, other in placed):
            height += LINE_HEIGHT / 4
        placed.append((left, right, height))
        text = axes.annotate(
            point.name,
            (point.speed, point.accuracy),
            (left - x, height - y),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colors[point.name],
        )
        text.set_in_layout(False)


def plot_costs(
    curves: Mapping[str, Sequence[tuple[int, float, float]]], path: PathLike, *, title: str | None = None
) -> None:
    """Draw the time and the memory of an update over the length of its inputs, on logarithmic axes, a line a model.

    Args:
        curves: name -> (tokens, milliseconds, MiB), one for each length.
        path: image file; the extension gives the format.
        title: above the plot.

    Raises:
        ValueError: there is no curve, or one has no point.
    """
    if not curves or not all(curves.values()):
        raise ValueError("There is nothing to plot: give at least one length a model.")
    with draw_row(path, 10.5, 4.4, 2) as (figure, columns):
        for index, (name, points) in enumerate(curves.items()):
            lengths, *values = zip(*sorted(points), strict=True)
            for axes, quantity in zip(columns, values, strict=True):
                axes.plot(lengths, quantity, label=name, **line(index))
        for axes, label in zip(columns, ("ms an update", "peak memory, MiB"), strict=True):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set(xlabel="length of the inputs", ylabel=label)
            ticks = sorted({point[0] for points in curves.values() for point in points})
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
            for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                which(LogFormatter(minor_thresholds=(1.5, 0.5)))  # labels between powers of ten, too
        figure.legend(*columns[0].get_legend_handles_labels(), loc="outside right upper")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=10, wrap=True)
