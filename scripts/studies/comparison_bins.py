"""Accuracy of compare_mixers.py's task repetition, by how frequent a word is and how far back it stood."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import datasets
import numpy as np

__all__ = ["COUNT_EDGES", "DISTANCE_EDGES", "mean_of_bins", "score_bins"]

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
    """Return the mean accuracy and loss of each bin over runs on the same rows; None for losses not all finite."""
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
