"""Accuracy of compare_mixers.py's task repetition, by how frequent a word is and how far back it stood."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from matplotlib.figure import Figure

__all__ = ["COUNT_EDGES", "DISTANCE_EDGES", "mean_of_bins", "plot_bins", "score_bins"]

COUNT_EDGES = (0, 1, 100, 400, None)
"""Bounds of the classes of words, by occurrences in the training rows; the last is open."""

DISTANCE_EDGES = (4, 8, 16, 32, 64)


def score_bins(blocks: datasets.Dataset, scores: np.ndarray) -> list[dict[str, Any]]:
    """Score rows by the columns `train_count` and `distance`; nothing for rows without.

    Args:
        blocks: the rows, in the order of the scores.
        scores: (rows, 3), nats, number right and number of predicted tokens of each, as `block_scores` gives them.

    Returns:
        One mapping a bin that has rows: its bounds (the upper ones excluded, None if open), `token_loss`,
        `token_accuracy`, `num_tokens`.
    """
    if not {"train_count", "distance"} <= set(blocks.column_names):
        return []
    count, distance = (np.asarray(blocks[name][:]) for name in ("train_count", "distance"))
    bins = []
    for low, high in pairwise(COUNT_EDGES):
        for near, far in pairwise(DISTANCE_EDGES):
            inside = (count >= low) & (distance >= near) & (distance < far)
            inside &= True if high is None else count < high
            nll, right, num_tokens = scores[inside].astype(np.float64).sum(axis=0)
            if num_tokens:
                bins.append(
                    {
                        "train_count": [low, high],
                        "distance": [near, far],
                        "token_loss": nll / num_tokens if np.isfinite(nll) else None,
                        "token_accuracy": right / num_tokens,
                        "num_tokens": int(num_tokens),
                    }
                )
    return bins


def mean_of_bins(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The mean accuracy and loss of each bin over runs on the same rows; a loss is None where one was not finite."""
    means = []
    for same in zip(*runs, strict=True):
        losses = [entry["token_loss"] for entry in same]
        means.append(
            {
                **same[0],
                "token_accuracy": float(np.mean([entry["token_accuracy"] for entry in same])),
                "token_loss": None if None in losses else float(np.mean(losses)),
            }
        )
    return means


def plot_bins(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """A map of accuracies for each model, classes of words downwards, distances to the right.

    Args:
        rows: of table.json, each with `test_bins`.
        path: image file; the extension gives the format.
        title: above the plot.
    """
    columns = min(5, len(rows))
    height = -(-len(rows) // columns)
    figure = Figure(figsize=(max(2.5 * columns + 1.2, 7), 2.35 * height + 0.9), layout="constrained")
    grid = figure.subplots(height, columns, squeeze=False, sharex=True, sharey=True)
    counts = [
        f"{low}+" if high is None else "never" if high == 1 else f"{low}-{high - 1}"
        for low, high in pairwise(COUNT_EDGES)
    ]
    distances = [f"{near}-{far - 1}" for near, far in pairwise(DISTANCE_EDGES)]
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
    figure.supxlabel("tokens since the first occurrence", fontsize=9)
    figure.supylabel("occurrences in training", fontsize=9)
    if image is not None:
        figure.colorbar(image, ax=list(grid.flat), label="accuracy at the second occurrence", shrink=0.8, pad=0.01)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    figure.savefig(temporary, dpi=150)
    temporary.replace(path)
