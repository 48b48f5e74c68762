"""Pictures of `run_benchmarks.py leaderboard`, for a reader who looks at nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from hf_seqmix.analysis.plots.figures import COLORS, draw_row, legend_below

KINDS = {"mixer": COLORS[0], "hybrid": COLORS[1], "control": COLORS[6]}
"""Kind of a model -> its color."""
CONTROLS = ("short_conv", "attention", "llama", "llama_scaled", "gpt", "bert", "modernbert")
LETTER, LINE = 4.7, 10.0
"""Points that a letter of a name and a line of names take."""
DARK = 0.55
"""Share of the range above which the numbers of a heat map are white."""


@dataclass(frozen=True)
class Point:
    """A mean over seeds, with its standard deviation; None for one seed."""

    mean: float
    spread: float | None = None


def kind_of(model: str) -> str:
    """Return "control", "hybrid" or "mixer"."""
    if model in CONTROLS:
        return "control"
    mixed = "attention" in model or model == "four_mixers"
    return "hybrid" if mixed else "mixer"


def plot_ranking(values: Mapping[str, Mapping[str, Point]], path: Path, label: str) -> None:
    """Draw models as rows, best first, with a marker for each column and error bars.

    Args:
        values: model -> column, such as a budget or a length -> figure, less is better. Sorted by the first column.
        path: PNG file.
        label: of the axis.
    """
    columns = list(dict.fromkeys(column for of in values.values() for column in of))
    names = sorted(values, key=lambda name: values[name][columns[0]].mean if columns[0] in values[name] else np.inf)
    with draw_row(path, 8, 1.3 + 0.27 * len(names)) as (figure, (axes,)):
        for index, column in enumerate(columns):
            rows = [row for row, name in enumerate(names) if column in values[name]]
            points = [values[names[row]][column] for row in rows]
            axes.errorbar(
                [point.mean for point in points],
                rows,
                xerr=[point.spread or 0.0 for point in points],
                color=COLORS[index % len(COLORS)],
                marker="osD^v"[index % 5],
                linestyle="none",
                capsize=3,
                label=column,
            )
        axes.set_yticks(range(len(names)), names)
        for tick, name in zip(axes.get_yticklabels(), names, strict=True):
            tick.set_color(KINDS[kind_of(name)])
        axes.invert_yaxis()
        axes.set_xlabel(label)
        if len(columns) > 1:
            legend_below(figure, axes)


def plot_against(
    places: Mapping[str, float], values: Mapping[str, Point], path: Path, x: str, y: str, log_x: bool = True
) -> None:
    """Draw models as named points with error bars, colored by kind.

    Args:
        places: model -> place to the right.
        values: model -> figure upwards.
        path: PNG file.
        x: label of the axis.
        y: label of the axis.
        log_x: whether the axis to the right is logarithmic.
    """
    names = [name for name in values if name in places]
    with draw_row(path, 8, 5.2) as (figure, (axes,)):
        if log_x:
            axes.set_xscale("log")
        for kind, color in KINDS.items():
            own = [name for name in names if kind_of(name) == kind]
            if own:
                axes.errorbar(
                    [places[name] for name in own],
                    [values[name].mean for name in own],
                    yerr=[values[name].spread or 0.0 for name in own],
                    color=color,
                    marker="o",
                    linestyle="none",
                    capsize=3,
                    label=kind,
                )
        axes.margins(0.12)
        axes.set(xlabel=x, ylabel=y)
        legend_below(figure, axes)
        figure.draw_without_rendering()  # from here on all has its place
        figure.set_layout_engine("none")
        _write_names(72 / figure.dpi, axes, [(name, places[name], values[name].mean) for name in names])


def _write_names(scale: float, axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write each name beside its point: right or left of it, or some lines up or down, where there is room.

    Args:
        scale: points a pixel.
        axes: where the points are drawn.
        points: name and place of each.
    """
    spots = [scale * axes.transData.transform((x, y)) for _, x, y in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in spots]
    window = axes.get_window_extent()
    first, last = scale * window.x0, scale * window.x1
    for (name, *place), (x, y) in sorted(zip(points, spots, strict=True), key=lambda entry: -entry[1][1]):
        width = LETTER * len(name)
        boxes = []
        for step in (0, 1, -1, 2, -2, 3, -3, 4, -4):
            for left in (x + 6, x - 6 - width):
                bottom = y + LINE * (step - 0.5)
                boxes.append((left, bottom, left + width, bottom + LINE))
        inside = [box for box in boxes if box[0] > first and box[2] < last]
        free = [box for box in inside if not any(_overlap(box, other) for other in taken)]
        box = (free or inside or boxes)[0]
        taken.append(box)
        far = abs(box[1] + LINE / 2 - y) > LINE
        axes.annotate(
            name,
            xy=(place[0], place[1]),
            xytext=(box[0] - x, box[1] + LINE / 2 - y),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=KINDS[kind_of(name)],
            arrowprops={"arrowstyle": "-", "color": "#BBBBBB", "linewidth": 0.6} if far else None,
        )


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def plot_heat(values: Mapping[str, Mapping[str, float]], path: Path, label: str) -> None:
    """Draw shares of right answers as a table of colors: a row a model, a column a case, best models first."""
    cases = list(dict.fromkeys(case for of in values.values() for case in of))
    names = sorted(values, key=lambda name: -np.mean([values[name].get(case, 0.0) for case in cases]))
    table = np.array([[values[name].get(case, np.nan) for case in cases] for name in names])
    with draw_row(path, 3.0 + 0.4 * len(cases), 2.6 + 0.27 * len(names)) as (figure, (axes,)):
        image = axes.imshow(table, cmap="cividis_r", vmin=0.0, vmax=1.0, aspect="auto")
        axes.set_xticks(range(len(cases)), cases, rotation=55, ha="right", rotation_mode="anchor", fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        for tick, name in zip(axes.get_yticklabels(), names, strict=True):
            tick.set_color(KINDS[kind_of(name)])
        axes.grid(visible=False)
        for (row, column), share in np.ndenumerate(table):
            if not np.isnan(share):
                color = "white" if share > DARK else "black"
                axes.text(column, row, f"{share:.2f}", ha="center", va="center", color=color, fontsize=7)
        figure.colorbar(image, ax=axes, label=label, shrink=0.6)
