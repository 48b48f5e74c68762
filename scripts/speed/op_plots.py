"""Plots of timed operations: time with the memory floor, ratios, and memory, against the length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from hf_seqmix.analysis.figures import COLORS, MARKERS, draw_grid

__all__ = ["label_ends", "names_of", "plot_op", "style_of"]

_FIXED = {"ours": 0, "rfft": 1, "strided": 2, "attention": 3, "floor": 6}
"""Colours that mean the same in every figure."""
_OTHERS = (4, 5, 6)


def names_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the candidates that the rows hold times of, ours first."""
    names = list(dict.fromkeys(key[: -len("_peak_mib")] for row in rows for key in row if key.endswith("_peak_mib")))
    return sorted(names, key=lambda name: name != "ours")


def style_of(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Return colour and marker of a candidate."""
    if name in _FIXED:
        index = _FIXED[name]
    else:
        index = _OTHERS[[other for other in names if other not in _FIXED].index(name) % len(_OTHERS)]
    return {"color": COLORS[index], "marker": MARKERS[index]}


def label_ends(panel: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each line's name beside its last point, moved up where it would stand on another.

    Args:
        panel: with its limits and scales set.
        ends: (x, y, text, colour) of each line.
    """
    placed: list[float] = []
    for x, y, text, color in sorted(ends, key=lambda end: end[1]):
        height = panel.transAxes.inverted().transform(panel.transData.transform((x, y)))[1]
        height = max(height, placed[-1] + 0.055) if placed else height
        placed.append(height)
        panel.annotate(
            text, (1.01, height), xycoords="axes fraction", color=color, va="center", fontsize=9, annotation_clip=False
        )


def plot_op(rows: Sequence[dict[str, Any]], path: Path, title: str, bandwidth: float) -> None:
    """Draw one operation.

    Args:
        rows: of it, one a length in ascending order.
        path: image file.
        title: above the figure.
        bandwidth: bytes a second by which the floor was reckoned.
    """
    names = names_of(rows)
    lengths = [row["length"] for row in rows]
    suffixes = {"_ms": names, "vs_": names[1:], "_saved_mib": names, "_peak_mib": names}
    titles = {
        "_ms": ("Forward and backward", "time (ms)"),
        "vs_": ("Time over that of ours", "times as long"),
        "_saved_mib": ("Kept for the backward pass", "memory (MiB)"),
        "_peak_mib": ("Peak of a step, gradients included", "memory (MiB)"),
    }
    with draw_grid(path, 12, 8, 2, 2) as (figure, panels):
        ends: dict[str, list[tuple[float, float, str, str]]] = {suffix: [] for suffix in suffixes}
        for panel, (suffix, wanted) in zip(panels.flat, suffixes.items(), strict=True):
            drawn = {name: style_of(name, names) for name in wanted}
            if suffix == "_ms":
                drawn["floor"] = {"color": COLORS[6], "linestyle": "--", "linewidth": 1.2}
            for name, style in drawn.items():
                key = f"vs_{name}" if suffix == "vs_" else f"{name}{suffix}"
                mine = [row for row in rows if row.get(key) is not None]
                values = [row[key] for row in mine]
                panel.plot([row["length"] for row in mine], values, **style)
                if mine:
                    text = f"memory at\n{bandwidth / 1e9:.1f} GB/s" if name == "floor" else name.replace("_", " ")
                    ends[suffix].append((mine[-1]["length"], values[-1], text, style["color"]))
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks(lengths, [str(length) for length in lengths])
            panel.minorticks_off()
            panel.yaxis.set_major_formatter("{x:g}")
            panel.set(title=titles[suffix][0], xlabel="length (tokens)", ylabel=titles[suffix][1])
        ratios = panels[0, 1]
        ratios.axhline(1, color="black", linewidth=0.8)
        # A few ticks inside a decade, which is often all there is.
        low, high = ratios.get_ylim()
        ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high]
        ratios.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
        figure.canvas.draw()  # places of labels follow from the limits
        for panel, suffix in zip(panels.flat, suffixes, strict=True):
            label_ends(panel, ends[suffix])
