"""Plots of compare_mixers.py: models at equal size, and their accuracies by bins."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

from hf_seqmix.analysis.plots.figures import COLORS, draw_grid

from .bins import COUNT_EDGES, DISTANCE_EDGES

__all__ = ["plot_bins", "plot_comparison"]

# The family with which a model's name begins, and what tells its variants apart.
FAMILY_COLORS = dict(zip(("tnn", "cosine", "ski_tnn", "ipa", "omega", "poly", "attention"), COLORS, strict=True))
VARIANT_MARKERS = dict(
    zip(
        ("relu", "silu", "gelu", "p", "j", "prod", "mix", "none", "shift", "copy", "2", "3", "4", "5"),
        "os^os^vP<>os^v",
        strict=True,
    )
)


def plot_comparison(rows: Sequence[Mapping[str, Any]], metric: str, label: str, path: Path, title: str) -> None:
    """Draw each seed's test figure with the mean, and the sweep of the learning rate beside it, one color a model.

    Args:
        rows: a model each, of `summary_of`.
        metric: which figure.
        label: what it is called.
        path: image file; the extension gives the format.
        title: above the plot.
    """
    size = 11, 1.6 + 0.42 * max(len(rows), 5)
    with draw_grid(path, *size, 1, 2, title, width_ratios=[1.25, 1]) as (figure, ((left, right),)):
        for place, row in enumerate(rows):
            _draw_model(left, right, row, place, metric, _limits(rows, metric))
        left.set_yticks(range(len(rows)), [row["model"] for row in rows])
        left.set_ylim(len(rows) - 0.5, -0.5)
        left.set_xlim(*_limits(rows, metric))
        left.xaxis.set_major_locator(MaxNLocator(6))
        left.set_xlabel(f"test {label}: each seed, and their mean")
        left.grid(axis="y", visible=False)
        tried = sorted({rate for row in rows for rate, _ in row["sweep"]})
        right.set_xscale("log")
        right.xaxis.set_major_locator(FixedLocator(tried))
        right.xaxis.set_minor_locator(NullLocator())
        right.xaxis.set_minor_formatter(NullFormatter())
        right.set_xticks(tried, [f"{rate:g}" for rate in tried], fontsize=8.5)
        right.set(xlabel="learning rate", ylabel=f"validation {label}, first seed")
        if len(rows) > 1:
            figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", fontsize=8.5)


def _draw_model(
    left: Axes, right: Axes, row: Mapping[str, Any], place: int, metric: str, limits: tuple[float, float]
) -> None:
    """Draw the seeds and the sweep of a model; an arrow stands for a mean beyond the limits."""
    low, high = limits
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


def _limits(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[float, float]:
    """Return what the axis shows: all accuracies, else every seed.

    Models so far off that the others could not be told apart are left out; an arrow stands for each.
    """
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
    color = FAMILY_COLORS.get(variant[0] if variant and variant[0] in FAMILY_COLORS else family, "#999999")
    return {"color": color, "marker": VARIANT_MARKERS.get(variant[-1] if variant else "", "D")}


def plot_bins(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw a map of accuracies for each model, classes of words downwards, distances to the right.

    Args:
        rows: a model each, with `test_bins`.
        path: image file; the extension gives the format.
        title: above the plot.
    """
    columns = min(5, len(rows))
    height = -(-len(rows) // columns)
    counts = [
        f"{low}+" if high is None else "never" if high == 1 else f"{low}-{high - 1}"
        for low, high in pairwise(COUNT_EDGES)
    ]
    distances = [f"{near}-{far - 1}" for near, far in pairwise(DISTANCE_EDGES)]
    size = max(2.5 * columns + 1.2, 7), 2.35 * height + 0.9
    with draw_grid(path, *size, height, columns, title, sharex=True, sharey=True) as (figure, grid):
        image = None
        for place, axes in enumerate(grid.flat):
            if place >= len(rows):
                axes.set_visible(False)
                continue
            values = np.full((len(counts), len(distances)), np.nan)
            for entry in rows[place]["test_bins"]:
                where = COUNT_EDGES.index(entry["train_count"][0]), DISTANCE_EDGES.index(entry["distance"][0])
                values[where] = entry["token_accuracy"]
            image = axes.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
            for (i, j), value in np.ndenumerate(values):
                if np.isfinite(value):
                    axes.text(
                        j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color="w" if value < 0.6 else "k"
                    )
            axes.set_title(rows[place]["model"], fontsize=10)
            axes.set_xticks(range(len(distances)), distances, fontsize=8)
            axes.set_yticks(range(len(counts)), counts, fontsize=8)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.grid(visible=False)
        figure.supxlabel("tokens since the first occurrence", fontsize=9)
        figure.supylabel("occurrences in training", fontsize=9)
        if image is not None:
            figure.colorbar(image, ax=list(grid.flat), label="accuracy at the second occurrence", shrink=0.8, pad=0.01)
