"""Synthetic sequences that test one ability each: recall by content, and copying over a lag."""

import math
from collections.abc import Mapping

import datasets
import numpy as np

from .drawing import FILLER_ID, NUM_SPECIAL, at_least, distinct, unique_splits

__all__ = ["associative_recall", "lagged_copy"]


def associative_recall(
    num_rows: Mapping[str, int],
    *,
    num_pairs: int = 8,
    num_queries: int | None = None,
    vocab_size: int = 64,
    length: int = 64,
    causal: bool = True,
    seed: int = 0,
) -> datasets.DatasetDict:
    r"""Draw rows of multi-query associative recall: pairs of a key and a value, then keys, each asking for its value.

    $k_1 v_1 \dots k_P v_P \; \cdot \; k_{\pi(1)} v_{\pi(1)} \; \cdot\cdot \; k_{\pi(2)} v_{\pi(2)} \dots$

    The dots are fillers in random numbers, so that no fixed lag leads from a query to its answer. The keys of a row
    differ from each other. Values and queried keys are drawn independently, so that earlier answers rule out no later
    answer. Token 0 is the filler, token 1 the mask. Of the other tokens, the first $K = \lfloor (V - 2) / 2 \rfloor$,
    2 to K + 1, are keys, and the rest are values. With many values, guessing a value of the row is right with
    probability about 1 / P.

    Source: Arora et al. 2023, "Zoology" (arXiv 2312.04927). Departures: in the paper each key is queried once, so late
    answers follow in part from earlier answers. The gaps between queries follow a power law there and are uniform
    here. The token after a query is a filler there; here the answer itself follows its query, as in text.

    Args:
        num_rows: split -> number of its rows. No row occurs twice, within a split or in two splits.
        num_pairs: P, pairs a row.
        num_queries: Q, queries a row; P by default.
        vocab_size: V, number of tokens.
        length: tokens a row, at least 2 (pairs + queries).
        causal: make rows for a causal language model, which shifts the labels itself and predicts the answer from the
            query. Otherwise answers are masked, for a masked language model.
        seed: one seed for all splits together.

    Returns:
        Rows of `input_ids` and `labels`, each of `length` integers. Labels are the answers at their places, -100
        elsewhere.

    Raises:
        ValueError: a number is too small, or there are not twice as many different rows as are asked for.
    """
    num_queries = num_pairs if num_queries is None else num_queries
    num_keys = (vocab_size - NUM_SPECIAL) // 2
    num_values = vocab_size - NUM_SPECIAL - num_keys
    at_least("num_pairs", num_pairs, 1)
    at_least("num_queries", num_queries, 1)
    if num_keys < num_pairs:
        raise ValueError(
            f"vocab_size {vocab_size} has {num_keys} keys for {num_pairs} pairs; give at least {2 * num_pairs + 2}."
        )
    free = length - 2 * num_pairs - num_queries  # places of the second part; a query with its answer counts as one
    if free < num_queries:
        raise ValueError(
            f"length {length} is too short for {num_pairs} pairs and {num_queries} queries; give at least"
            f" {2 * (num_pairs + num_queries)}."
        )

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        keys = distinct(rng, count, num_keys, num_pairs) + NUM_SPECIAL
        values = rng.integers(NUM_SPECIAL + num_keys, vocab_size, size=(count, num_pairs))
        asked = rng.integers(num_pairs, size=(count, num_queries))
        # Sorted places among `free`, each moved on by the answers before it.
        places = np.sort(distinct(rng, count, free, num_queries)) + np.arange(num_queries) + 2 * num_pairs
        tokens = np.full((count, length), FILLER_ID)
        tokens[:, 0 : 2 * num_pairs : 2] = keys
        tokens[:, 1 : 2 * num_pairs : 2] = values
        np.put_along_axis(tokens, places, np.take_along_axis(keys, asked, axis=1), axis=1)
        np.put_along_axis(tokens, places + 1, np.take_along_axis(values, asked, axis=1), axis=1)
        is_answer = np.zeros((count, length), dtype=bool)
        np.put_along_axis(is_answer, places + 1, True, axis=1)
        return tokens, is_answer

    choices = math.perm(num_keys, num_pairs) * num_values**num_pairs
    choices *= num_pairs**num_queries * math.comb(free, num_queries)
    return unique_splits(num_rows, draw, choices, causal=causal, seed=seed)


def lagged_copy(
    num_rows: Mapping[str, int],
    *,
    min_lag: int = 16,
    max_lag: int | None = None,
    vocab_size: int = 64,
    length: int = 64,
    causal: bool = True,
    seed: int = 0,
) -> datasets.DatasetDict:
    r"""Draw rows of copying: L random tokens, then the same tokens over and over, $x_t = x_{t-L}$ for $t \ge L$.

    With one lag for all rows, a fixed convolution kernel solves the task. With a lag drawn for each row, a model has
    to find the lag in the sequence. Tokens 0 and 1 are left out, as in [`associative_recall`].

    Args:
        num_rows: split -> number of its rows. No row occurs twice, within a split or in two splits.
        min_lag: lower bound of L, included; L is drawn uniformly. A row whose first tokens repeat by chance may have a
            shorter lag, too.
        max_lag: upper bound of L, included; `min_lag` by default.
        vocab_size: number of tokens.
        length: tokens a row, more than `max_lag`.
        causal: make rows for a causal language model, which shifts the labels itself. Otherwise all tokens after the
            first L are masked, for a masked language model.
        seed: one seed for all splits together.

    Returns:
        Rows of `input_ids` and `labels`, each of `length` integers. Labels are the copies at their places, -100
        elsewhere. With a drawn lag, the first copy of a causal row cannot be known in advance and has no label.

    Raises:
        ValueError: a number is too small, or there are not twice as many different rows as are asked for.
    """
    max_lag = min_lag if max_lag is None else max_lag
    at_least("min_lag", min_lag, 1)
    at_least("max_lag", max_lag, min_lag)
    at_least("vocab_size", vocab_size, NUM_SPECIAL + 1)
    # A first copy without label must be followed by a copy with a label.
    hidden = int(causal and max_lag > min_lag)
    at_least("length", length, max_lag + 1 + hidden)

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        lags = rng.integers(min_lag, max_lag + 1, size=(count, 1))
        first = rng.integers(NUM_SPECIAL, vocab_size, size=(count, length))
        position = np.arange(length)
        tokens = np.take_along_axis(first, position % lags, axis=1)
        return tokens, np.broadcast_to(position, tokens.shape) >= lags + hidden

    # Rows of different lags may be the same; rows of the longest lag are not.
    return unique_splits(num_rows, draw, (vocab_size - NUM_SPECIAL) ** max_lag, causal=causal, seed=seed)
