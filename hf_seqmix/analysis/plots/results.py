"""Figures of results: one function, and one style, for all benchmarks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter, MaxNLocator, NullFormatter

from ...training.results import Result, Summary, summarize
from .figures import PathLike, dash, draw_grid, legend_below, line

__all__ = ["plot_results"]

LARGEST_AREA = 600.0  # square points of the largest disc
GRAYS = ("#BBBBBB", "#888888", "#444444")


def plot_results(
    results: Iterable[Result],
    path: PathLike,
    *,
    x: str,
    y: str | Sequence[str],
    area: str | None = None,
    panels: str | None = None,
    references: Mapping[str, float] | None = None,
    marks: Mapping[str, float] | None = None,
    log_x: bool = False,
    log_y: bool = False,
    labels: Mapping[str, str] | None = None,
    title: str | None = None,
) -> None:
    """Draw figures as means over seeds with standard deviations as error bars, a color a model.

    Where `x` is a setting or field, numbers give a line a model, and names give markers side by side. Where `x` is a
    metric, a model is a point for each task, size, kind and setting that has both metrics. Baselines are dashed and
    gray; published figures are crosses in the color of their model.

    Args:
        results: what is drawn; results without the metrics asked for are left out.
        path: image file; the extension gives the format.
        x: setting, field or metric to the right.
        y: metric upwards; several give a panel each.
        area: metric that the area of a point is proportional to, to one scale in all panels.
        panels: setting or field whose values give a panel each.
        references: name -> value of the first metric, drawn as horizontal lines.
        marks: name -> place on the x axis, drawn as vertical dotted lines.
        log_x: whether the x axis is logarithmic, to base 2.
        log_y: whether the y axis is logarithmic, to base 10.
        labels: metric, setting or field -> what the axis is called.
        title: above the figure.

    Raises:
        ValueError: there is nothing to draw, or an area is not positive.
    """
    metrics = [y] if isinstance(y, str) else list(y)
    known = list(results)
    summaries = [summary for summary in summarize(known) if summary.mean is not None and math.isfinite(summary.mean)]
    groups = list(dict.fromkeys(s.result.get(panels) for s in summaries)) if panels else [None]
    cells = [(group, metric) for group in groups for metric in metrics]
    drawn = {
        (group, metric): _points([s for s in summaries if panels is None or s.result.get(panels) == group], x, metric)
        for group, metric in cells
    }
    cells = [cell for cell in cells if any(point.kind != "baseline" or point.x is not None for point in drawn[cell])]
    if not cells:
        raise ValueError(f"there is nothing to plot: no result has {' or '.join(metrics)} over {x}.")
    names = list(dict.fromkeys(p.model for cell in cells for p in drawn[cell] if p.kind != "baseline"))
    places = list(dict.fromkeys(p.x for cell in cells for p in drawn[cell] if isinstance(p.x, str)))
    areas = {point.key: _area(summaries, point, area) for cell in cells for point in drawn[cell]} if area else {}
    width = 7.6 if len(cells) == 1 else 5.0 * len(cells)
    with draw_grid(path, width, 4.8, 1, len(cells)) as (figure, grid):
        for axes, (group, metric) in zip(grid[0], cells, strict=True):
            points = drawn[group, metric]
            _draw(axes, grid[0][0], points, names, places, areas)
            _draw_baselines(axes, points, places)
            if areas and area is not None:  # a quarter of the largest, as high as a line of the legend
                size = max(value for value in areas.values() if value) / 4
                label = f"{(labels or {}).get(area, area.replace('_', ' '))}: {size:.3g}"
                axes.scatter([], [], LARGEST_AREA / 4, color="#999999", linewidth=0, label=label)
            if metric == metrics[0]:
                for index, (name, value) in enumerate((references or {}).items()):
                    _level(axes, value, name, index + 1)
            axes.set_xlabel((labels or {}).get(x, x.replace("_", " ")))
            axes.set_ylabel((labels or {}).get(metric, metric.replace("_", " ")))
            for name, place in (marks or {}).items():
                axes.axvline(place, color="#888888", linewidth=1.4, linestyle=":", label=name)
            if panels:
                axes.set_title(f"{(labels or {}).get(panels, panels.replace('_', ' '))} {group}", loc="left")
            _scale(axes, points, places, log_x, log_y)
            if areas:  # from zero, or small differences look large
                axes.margins(0.2)
                axes.set_xlim(0, 1.2 * max(_place(point, places) for point in points if point.x is not None))
        legend_below(figure, grid[0][0], title)


class _Point:
    """A figure at its place."""

    def __init__(self, summary: Summary, x: Any, other: Summary | None) -> None:
        self.model, self.kind, self.key = summary.result.model, summary.result.kind, summary.result.figure
        self.x: Any = x if other is None else other.mean
        self.x_deviation = None if other is None else other.spread
        self.is_of_two_metrics = other is not None
        self.y: float = summary.mean or 0.0
        self.y_deviation = summary.spread
        self.items = _items(summary.result)


def _points(summaries: Sequence[Summary], x: str, metric: str) -> list[_Point]:
    """Return the figures of a metric; those that have no place are baselines, or left out."""
    across = {(s.result.model, _items(s.result)): s for s in summaries if s.result.metric == x}
    points = []
    for summary in summaries:
        if summary.result.metric != metric:
            continue
        place = summary.result.get(x)
        other = across.get((summary.result.model, _items(summary.result)))
        if place is not None or other is not None or summary.result.kind == "baseline":
            points.append(_Point(summary, place, other))
    return points


def _items(result: Result) -> tuple[Any, ...]:
    """Return what two metrics of a model share that belong to one point."""
    return (result.task, result.size, result.kind, tuple(sorted(result.setting.items())))


def _area(summaries: Sequence[Summary], point: _Point, area: str) -> float | None:
    """Return what the metric `area` is for the model and the items of a point."""
    for summary in summaries:
        result = summary.result
        if (result.model, result.metric, _items(result)) == (point.model, area, point.items):
            if summary.mean is None or summary.mean <= 0:
                raise ValueError(f"{area} must be positive; {point.model} has {summary.mean}.")
            return summary.mean
    return None


def _draw(
    axes: Axes,
    first: Axes,
    points: Sequence[_Point],
    names: Sequence[str],
    places: Sequence[str],
    areas: Mapping[Any, float | None],
) -> None:
    largest = max((size for size in areas.values() if size), default=1.0)
    lines = not areas and not places and not any(point.is_of_two_metrics for point in points)
    for index, name in enumerate(names):
        color, marker = line(index).values()
        shift = 0.7 * ((index + 0.5) / len(names) - 0.5) if places else 0.0
        for kind in ("measured", "published"):
            own = sorted(
                (p for p in points if (p.model, p.kind) == (name, kind) and p.x is not None),
                key=lambda p: _place(p, places),
            )
            if not own:
                continue
            measured = kind == "measured"
            axes.errorbar(
                [_place(point, places) + shift for point in own],
                [point.y for point in own],
                _bars([point.y_deviation for point in own]),
                _bars([point.x_deviation for point in own]),
                color=color,
                marker=marker if measured else "x",
                linestyle="-" if lines and measured and len(own) > 1 else "none",
                capsize=3,
            )
            # A line without points, so that the legend, which is of the first panel, names models before levels.
            style = "-" if lines and measured else "none"
            label = name if measured else f"{name} (published)"
            first.plot([], [], color=color, marker=marker if measured else "x", linestyle=style, label=label)
            sizes = [areas.get(point.key) or 0.0 for point in own]
            if any(sizes):
                scaled = [LARGEST_AREA * size / largest for size in sizes]
                xs, ys = [_place(point, places) for point in own], [point.y for point in own]
                axes.scatter(xs, ys, scaled, color=color, alpha=0.3, linewidth=0)


def _bars(deviations: Sequence[float | None]) -> list[float] | None:
    """Return lengths of error bars: not a number, which draws none, for one seed; None where all are so, or 0."""
    return [math.nan if each is None else each for each in deviations] if any(deviations) else None


def _draw_baselines(axes: Axes, points: Sequence[_Point], places: Sequence[str]) -> None:
    baselines = [point for point in points if point.kind == "baseline"]
    for index, name in enumerate(dict.fromkeys(point.model for point in baselines)):
        own = [point for point in baselines if point.model == name]
        placed = [point for point in own if point.x is not None]
        if not placed:
            _level(axes, sum(point.y for point in own) / len(own), name, index)
        elif isinstance(placed[0].x, str):
            gray = GRAYS[index % len(GRAYS)]
            xs, ys = [_place(point, places) for point in placed], [point.y for point in placed]
            axes.plot(xs, ys, "_", color=gray, markersize=24, markeredgewidth=2.4, label=name)
        else:
            placed.sort(key=lambda point: point.x)
            xs, ys = [point.x for point in placed], [point.y for point in placed]
            axes.plot(xs, ys, color="#666666", linewidth=1.2, linestyle=dash(index), label=name)


def _level(axes: Axes, value: float, name: str, index: int) -> None:
    axes.axhline(value, color="#666666", linewidth=1.2, linestyle=dash(index), label=f"{name} ({value:.3g})")


def _place(point: _Point, places: Sequence[str]) -> float:
    return float(places.index(point.x)) if isinstance(point.x, str) else float(point.x)


def _scale(axes: Axes, points: Sequence[_Point], places: Sequence[str], log_x: bool, log_y: bool) -> None:
    if places:
        axes.set_xticks(range(len(places)), places)
        return
    if not log_x and all(float(point.x).is_integer() for point in points if point.x is not None):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log_x:
        ticks = sorted({float(point.x) for point in points if point.x is not None})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
    if log_y:
        axes.set_yscale("log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(LogFormatter(minor_thresholds=(1.5, 0.5)))  # labels between powers of ten, too
