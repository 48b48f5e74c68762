"""The plot of compare_mixers.py."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

__all__ = ["plot_comparison"]

# Okabe and Ito's colours; the families a model's name begins with, and what tells its variants apart.
COLORS = {
    "tnn": "#0072B2",
    "attention": "#000000",
    "ski_tnn": "#009E73",
    "omega": "#E69F00",
    "cosine": "#D55E00",
    "ipa": "#CC79A7",
    "poly": "#56B4E9",
}
MARKERS = {
    "relu": "o",
    "silu": "s",
    "gelu": "^",
    "p": "o",
    "j": "s",
    "prod": "^",
    "mix": "v",
    "none": "P",
    "shift": "<",
}
MARKERS |= {"copy": ">", "2": "o", "3": "s", "4": "^", "5": "v"}


def plot_comparison(rows: Sequence[Mapping[str, Any]], metric: str, label: str, path: Path, title: str) -> None:
    """Each seed's test figure with the mean, and the sweep of the learning rate beside it, one colour a model.

    Args:
        rows: of table.json.
        metric: which figure.
        label: what it is called.
        path: image file; the extension gives the format.
        title: above the plot.
    """
    figure = Figure(figsize=(11, 1.6 + 0.42 * max(len(rows), 5)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    low, high = _limits(rows, metric)
    for place, row in enumerate(rows):
        style = _style(row["model"])
        score = row[f"test_{metric}"]
        values = [value for value in score["by_seed"].values() if value is not None]
        left.plot(values, [place] * len(values), linestyle="none", alpha=0.55, markersize=6, **style)
        if score["mean"] is not None:
            if not low <= score["mean"] <= high:
                sign, edge = (1, 0.97) if score["mean"] > high else (-1, 0.03)
                left.annotate(
                    "",
                    (edge + 0.03 * sign, place),
                    (edge - 0.05 * sign, place),
                    xycoords=("axes fraction", "data"),
                    arrowprops={"arrowstyle": "->", "color": style["color"], "linewidth": 1.6},
                )
            left.plot([score["mean"]] * 2, [place - 0.28, place + 0.28], color=style["color"], linewidth=2.2)
            spread = "" if score["sd"] is None else f" ± {score['sd']:.4f}"
            left.annotate(
                f"{score['mean']:.4f}{spread}",
                (1.01, place),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=8.5,
            )
        swept = [(rate, scores[metric]) for rate, scores in row["sweep"] if scores[metric] is not None]
        if swept:
            rates, figures = zip(*swept, strict=True)
            right.plot(rates, figures, label=row["model"], linewidth=1.4, markersize=5, **style)
    left.set_yticks(range(len(rows)), [row["model"] for row in rows])
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.set_xlim(low, high)
    left.xaxis.set_major_locator(MaxNLocator(6))
    left.set_xlabel(f"test {label}: each seed, and their mean")
    left.grid(axis="x", color="#E5E5E5")
    tried = sorted({rate for row in rows for rate, _ in row["sweep"]})
    right.set_xscale("log")
    right.xaxis.set_major_locator(FixedLocator(tried))
    right.xaxis.set_minor_locator(NullLocator())
    right.xaxis.set_minor_formatter(NullFormatter())
    right.set_xticks(tried, [f"{rate:g}" for rate in tried], fontsize=8.5)
    right.set_xlabel("learning rate")
    right.set_ylabel(f"validation {label}, first seed")
    right.grid(color="#E5E5E5")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    if len(rows) > 1:
        figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8.5)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    figure.savefig(temporary, dpi=150)
    temporary.replace(path)


def _limits(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[float, float]:
    """What the axis shows: all accuracies; else every seed, but of models so far off that the others could not be told apart,
    which get an arrow."""
    if metric.endswith("accuracy"):
        return -0.03, 1.03
    scores = [row[f"test_{metric}"] for row in rows if row[f"test_{metric}"]["mean"] is not None]
    if not scores:
        return 0.0, 1.0
    middle = statistics.median(score["mean"] for score in scores)
    typical = statistics.median(abs(score["mean"] - middle) for score in scores)
    shown = [score for score in scores if abs(score["mean"] - middle) <= 8 * typical] or scores
    values = [value for score in shown for value in score["by_seed"].values() if value is not None]
    margin = 0.06 * (max(values) - min(values)) or 0.01 * abs(middle) or 1.0
    return min(values) - margin, max(values) + margin


def _style(model: str) -> dict[str, Any]:
    family, *variant = model.split("-")
    color = COLORS.get(variant[0] if variant and variant[0] in COLORS else family, "#999999")
    return {"color": color, "marker": MARKERS.get(variant[-1] if variant else "", "D")}
