"""Perplexity of a language model by position in the context: does it use what came long before?"""

import math
from typing import Any

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
Tokens are put in buckets by their position in the context, 0 for the first token of a block; the perplexity of a bucket is
exp((sum of its negative log-likelihoods in nats) / (number of its tokens)). Buckets are [edge_i, edge_{i+1}), by default
[0, 1), [1, 2), [2, 4), [4, 8) ... up to the largest position. A model that uses long contexts keeps improving to the right.
"""

_INPUTS = """
Args:
    nll (list of float): negative log-likelihood in nats of each token, or the sum over several tokens at one position.
    positions (list of int): their positions, from 0.
    num_tokens (list of int): tokens that each entry of `nll` sums over; 1 each by default.
    edges (list of int): increasing bucket edges that begin at 0 and end above the largest position.
Returns:
    start (list of int): first position of each bucket that holds a token.
    end (list of int): the position after its last one.
    num_tokens (list of int): its tokens.
    nll (list of float): its sum in nats.
    perplexity (list of float): infinite where the exponential overflows.
Raises:
    ValueError: no tokens, lists of different lengths, numbers that are not finite, a negative position, or edges that do
        not increase from 0 to beyond the largest position.
"""


class PerplexityByPosition(evaluate.Metric):
    """Perplexity in buckets of position, from negative log-likelihoods and positions."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"nll": datasets.Value("float64"), "positions": datasets.Value("float64")}),
        )

    def _compute(self, nll: Any, positions: Any, num_tokens: Any = None, edges: Any = None) -> dict[str, list[Any]]:
        nats, places = _column(nll, "nll"), _column(positions, "positions")
        if np.any(places != np.floor(places)):
            raise ValueError("positions must be whole numbers.")
        counts = np.ones_like(nats) if num_tokens is None else _column(num_tokens, "num_tokens")
        if len(counts) != len(nats):
            raise ValueError(f"num_tokens has {len(counts)} entries for {len(nats)} of nll; give one each.")
        last = int(places.max())
        if edges is None:
            edges = [0, *(2**power for power in range((last).bit_length() + 1))]
        limits = np.asarray(edges, dtype=np.float64)
        if len(limits) < 2 or limits[0] != 0 or limits[-1] <= last or np.any(np.diff(limits) <= 0):
            raise ValueError(
                f"edges must increase from 0 to beyond the largest position, {last}; given {list(edges)}."
            )

        bucket = np.searchsorted(limits, places, side="right") - 1
        sums = np.bincount(bucket, weights=nats, minlength=len(limits) - 1)
        tokens = np.bincount(bucket, weights=counts, minlength=len(limits) - 1)
        used = np.flatnonzero(tokens)
        return {
            "start": [int(limits[i]) for i in used],
            "end": [int(limits[i + 1]) for i in used],
            "num_tokens": [int(tokens[i]) for i in used],
            "nll": [float(sums[i]) for i in used],
            "perplexity": [_exp(sums[i] / tokens[i]) for i in used],
        }


def _column(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty: give at least one token.")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} has NaN, infinite or missing numbers; the model's loss is not usable.")
    if np.any(array < 0):
        raise ValueError(
            f"{name} has a negative number, {array.min()}; nll, positions and counts are never below zero."
        )
    return array


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
