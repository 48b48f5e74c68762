"""Scores of compare_mixers.py by how frequent what is predicted was in training, and how far back it stood."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedModel

from hf_seqmix._labels import IGNORED_LABEL
from hf_seqmix.analysis.text.repeated_pairs import PairCounts, PairScore, recall_gap, score_pairs

__all__ = [
    "COUNT_EDGES",
    "DISTANCE_EDGES",
    "gap_of_bins",
    "mean_of_bins",
    "pair_scores",
    "score_bins",
    "score_pair_bins",
]

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


def score_pair_bins(model: PreTrainedModel, train: datasets.Dataset, blocks: datasets.Dataset) -> list[dict[str, Any]]:
    """Score the tokens of a text by their pairs: see `hf_seqmix.analysis.text.repeated_pairs`.

    Args:
        model: a causal language model.
        train: all rows of the training text, whose pairs are counted, whether or not a run comes to them.
        blocks: rows to score, with `labels` that are -100 on padding.

    Returns:
        One mapping a class of tokens, as `score_bins` returns them, without `token_accuracy`.
    """
    counts = PairCounts.of(train.with_format("numpy")["input_ids"][:])
    documents = [
        np.asarray(row["input_ids"])[: 1 + max(np.flatnonzero(np.asarray(row["labels"]) != IGNORED_LABEL), default=0)]
        for row in blocks
    ]
    return [
        {
            "train_count": list(score.train_count),
            "distance": list(score.distance),
            "token_loss": score.nll / score.num_tokens,
            "num_tokens": score.num_tokens,
        }
        for score in score_pairs(model, documents, counts, context_length=max(map(len, documents)), progress=False)
    ]


def pair_scores(bins: Sequence[Mapping[str, Any]]) -> list[PairScore]:
    """Return classes of tokens as `score_pairs` does, losses summed."""
    return [
        PairScore(
            tuple(entry["train_count"]),
            tuple(entry["distance"]),
            entry["token_loss"] * entry["num_tokens"],
            round(entry["num_tokens"]),
        )
        for entry in bins
    ]


def gap_of_bins(bins: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return by how many nats a model is behind another one at recalled tokens and at all others, of the same rows.

    Returns:
        `recall`, `others`, the `share` of the whole gap that recalled tokens make up, the share of `tokens` they are,
        and `common`, of pairs that are common in training, if there are any; nothing where no token is recalled.
    """
    own = pair_scores(bins)
    if not any(score.is_recall for score in own):
        return {}
    gap = recall_gap(own, pair_scores(others))
    common = {} if gap.common is None else {"common": gap.common}
    parts = {"recall": gap.recall, "others": gap.others, "share": gap.share_of_total, "tokens": gap.share_of_tokens}
    return parts | common


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
