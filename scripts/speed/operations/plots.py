"""Plots of timed operations and of their implementations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timing.labels import End, label_ends

from hf_seqmix.analysis.plots.figures import COLORS, MARKERS, draw_grid, token_ticks

__all__ = ["names_of", "plot_op", "plot_points"]

MOST = 8.0
"""Times the best beyond which `plot_points` draws nothing."""

_FIXED = {"ours": 0, "rfft": 1, "strided": 2, "attention": 3, "floor": 6}
"""Colors that mean the same in every figure."""
_OTHERS = (4, 5, 6)


def names_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the candidates that the rows hold times of, ours first."""
    names = list(dict.fromkeys(key[: -len("_peak_mib")] for row in rows for key in row if key.endswith("_peak_mib")))
    return sorted(names, key=lambda name: name != "ours")


def style_of(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Return color and marker of a candidate."""
    if name in _FIXED:
        index = _FIXED[name]
    else:
        index = _OTHERS[[other for other in names if other not in _FIXED].index(name) % len(_OTHERS)]
    return {"color": COLORS[index], "marker": MARKERS[index]}


def plot_op(rows: Sequence[dict[str, Any]], path: Path, title: str, bandwidth: float) -> None:
    """Draw one operation: time with the memory floor, ratios, and memory, against the length.

    Args:
        rows: of it, one a length in ascending order.
        path: image file.
        title: above the figure.
        bandwidth: bytes a second by which the floor was reckoned.
    """
    names = names_of(rows)
    lengths = [row["length"] for row in rows]
    # What a panel shows: the key of a candidate, title, label of the axis, candidates.
    panels_of = (
        ("{}_ms", "Forward and backward", "time (ms)", names),
        ("vs_{}", "Time over that of ours", "times as long", names[1:]),
        ("{}_saved_mib", "Kept for the backward pass", "memory (MiB)", names),
        ("{}_peak_mib", "Peak of a step, gradients included", "memory (MiB)", names),
    )
    with draw_grid(path, 12, 8, 2, 2, title) as (figure, panels):
        ends: list[list[End]] = []
        for panel, (key, heading, label, wanted) in zip(panels.flat, panels_of, strict=True):
            drawn = {name: style_of(name, names) for name in wanted}
            if key == "{}_ms":
                drawn["floor"] = {"color": COLORS[6], "linestyle": "--", "linewidth": 1.2}
            ends.append([])
            for name, style in drawn.items():
                points = [(row["length"], row[key.format(name)]) for row in rows if row.get(key.format(name))]
                if points:
                    panel.plot(*zip(*points, strict=True), **style)
                    text = f"memory at\n{bandwidth / 1e9:.1f} GB/s" if name == "floor" else name.replace("_", " ")
                    ends[-1].append((*points[-1], text, style["color"]))
            token_ticks(panel, lengths, title=heading, ylabel=label)
            panel.yaxis.set_major_formatter("{x:g}")
        ratios = panels[0, 1]
        ratios.axhline(1, color="black", linewidth=0.8)
        # A few ticks inside a decade, which is often all there is.
        low, high = ratios.get_ylim()
        ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high]
        ratios.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        figure.canvas.draw()  # places of labels follow from the limits
        for panel, labels in zip(panels.flat, ends, strict=True):
            label_ends(panel, labels)


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
    title += "; rings: in force, dotted: other constants"
    with draw_grid(path, 6.6 * columns, 4.4 * lines + 0.4, lines, columns, title) as (figure, panels):
        for panel in panels.flat[len(keys) :]:
            panel.set_visible(False)
        ends: list[list[End]] = []
        for panel, key in zip(panels.flat, keys, strict=False):
            mine = [point for point in points if (point["op"], point["dtype"]) == key]
            ends.append(_draw(panel, mine))
            panel.set_title(f"{key[0]}, {key[1]}")
        figure.canvas.draw()  # places of labels follow from the limits
        for panel, labels in zip(panels.flat, ends, strict=False):
            label_ends(panel, labels)


def _draw(panel: Any, points: Sequence[Mapping[str, Any]]) -> list[End]:
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
        # Another constant has the color of its implementation, thin and dotted.
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
    beyond = f"; beyond: {', '.join(hidden)}" if hidden else ""
    token_ticks(panel, list(best), xlabel=f"length (tokens){beyond}", ylabel="time over the best")
    panel.set_ylim(0.93, MOST)
    panel.set_yticks([1, 1.5, 2, 3, 4, 6, 8], ["1", "1.5", "2", "3", "4", "6", "8"])
    return ends
