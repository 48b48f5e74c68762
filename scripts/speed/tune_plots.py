"""The plot of `tune.py`: time relative to the best against the length."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from op_plots import label_ends

from hf_seqmix.analysis.figures import COLORS, MARKERS, draw_grid

__all__ = ["plot_points"]

MOST = 8.0
"""Times the best beyond which nothing is drawn."""


def plot_points(points: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw a panel for each operation and dtype.

    Args:
        points: what `tune.measure` returns, with the implementation "in_force" in each.
        path: image file.
        title: above the figure.
    """
    keys = list(dict.fromkeys((point["op"], point["dtype"]) for point in points))
    columns = min(2, len(keys))
    lines = -(-len(keys) // columns)
    with draw_grid(path, 6.6 * columns, 4.4 * lines + 0.4, lines, columns) as (figure, panels):
        for panel in panels.flat[len(keys) :]:
            panel.set_visible(False)
        ends: list[list[tuple[float, float, str, str]]] = []
        for panel, key in zip(panels.flat, keys, strict=False):
            mine = [point for point in points if (point["op"], point["dtype"]) == key]
            ends.append(_draw(panel, mine))
            panel.set_title(f"{key[0]}, {key[1]}")
        figure.suptitle(f"{title}; rings: in force, dotted: other constants", x=0.01, ha="left", fontsize=9)
        figure.canvas.draw()  # places of labels follow from the limits
        for panel, labels in zip(panels.flat, ends, strict=False):
            label_ends(panel, labels)


def _draw(panel: Any, points: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, str, str]]:
    best = {point["length"]: min(point["ms"].values()) for point in points}
    names = list(dict.fromkeys(name for point in points for name in point["ms"]))
    bases = {name: base for point in points for name, base in point["bases"].items()}
    own = [name for name in names if name not in bases]
    ends = []
    hidden = []
    early: list[tuple[float, float]] = []
    for name in names:
        relative = [
            (point["length"], point["ms"][name] / best[point["length"]]) for point in points if name in point["ms"]
        ]
        # Another constant has the colour of its implementation, thin and dotted.
        index = own.index(bases.get(name, name))
        style: dict[str, Any] = {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}
        if name in bases:
            style |= {"linestyle": ":", "linewidth": 1.0, "marker": "", "alpha": 0.8}
        panel.plot(*zip(*relative, strict=True), **style)
        if name in bases:
            continue
        seen = [(length, ratio) for length, ratio in relative if ratio <= MOST]
        text = name.replace("_", " ")
        if not seen:
            hidden.append(text)
        elif seen[-1][0] == points[-1]["length"]:
            ends.append((*seen[-1], text, style["color"]))
        else:  # it leaves the panel, or is not tried further
            x, y = seen[-1]
            below = sum(other == x and 0.85 < at / y < 1.18 for other, at in early)
            early.append(seen[-1])
            panel.annotate(
                text, (x, y), (8, -4 - 12 * below), textcoords="offset points", color=style["color"], fontsize=9
            )
    rings = [
        (point["length"], point["ms"][point["in_force"]] / best[point["length"]])
        for point in points
        if point["in_force"] in point["ms"]
    ]
    if rings:
        panel.plot(*zip(*rings, strict=True), "o", markersize=11, fillstyle="none", color="black", markeredgewidth=1)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_ylim(0.93, MOST)
    panel.set_yticks([1, 1.5, 2, 3, 4, 6, 8], ["1", "1.5", "2", "3", "4", "6", "8"])
    panel.set_xticks(list(best), [str(length) for length in best])
    panel.minorticks_off()
    beyond = f"; beyond: {', '.join(hidden)}" if hidden else ""
    panel.set(xlabel=f"length (tokens){beyond}", ylabel="time over the best")
    return ends
