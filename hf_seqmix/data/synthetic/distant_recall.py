"""Synthetic recall that is harder than one list of pairs: pairs among noise, and pairs whose values change."""

import math
from collections.abc import Mapping

import datasets
import numpy as np

from .drawing import NUM_SPECIAL, at_least, distinct, unique_splits

__all__ = ["changing_recall", "noisy_recall"]


def noisy_recall(
    num_rows: Mapping[str, int],
    *,
    num_pairs: int = 4,
    num_queries: int | None = None,
    vocab_size: int = 64,
    length: int = 64,
    causal: bool = True,
    seed: int = 0,
) -> datasets.DatasetDict:
    r"""Draw rows of recall among noise: pairs of a key and a value at random places, then queries at the end.

    $\cdots\, k_1 v_1 \cdots k_2 v_2 \cdots\cdots\; k_{\pi(1)} v_{\pi(1)}\; k_{\pi(2)} v_{\pi(2)} \dots$

    The dots are tokens of a third kind, drawn independently. With one pair the task is the needle in a haystack: a
    model trained on short rows is tested on long ones. Token 0 is left out, token 1 is the mask. Of the other tokens
    the first third are keys, the second third values, and the rest noise.

    Source: Hsieh et al. 2024, "RULER" (arXiv 2404.06654), needles in noise. Departure: keys, values and noise are
    single tokens.

    Args:
        num_rows: split -> number of its rows. No row occurs twice, within a split or in two splits.
        num_pairs: P, pairs a row, whose keys differ.
        num_queries: Q, queries a row, of different keys; P by default.
        vocab_size: number of tokens.
        length: tokens a row, at least 2 (pairs + queries).
        causal: make rows for a causal language model, which shifts the labels itself. Otherwise answers are masked.
        seed: one seed for all splits together.

    Returns:
        Rows of `input_ids` and `labels`, each of `length` integers; labels are the answers at their places, -100
        elsewhere.

    Raises:
        ValueError: a number is too small, or there are not twice as many different rows as are asked for.
    """
    num_queries = num_pairs if num_queries is None else num_queries
    at_least("num_pairs", num_pairs, 1)
    at_least("num_queries", num_queries, 1)
    third = (vocab_size - NUM_SPECIAL) // 3
    at_least("vocab_size", vocab_size, NUM_SPECIAL + 3 * max(num_pairs, 1))
    if num_queries > num_pairs:
        raise ValueError(f"num_queries is {num_queries}; give at most one a pair, of which there are {num_pairs}.")
    at_least("length", length, 2 * (num_pairs + num_queries))
    keys_from, values_from, noise_from = (NUM_SPECIAL + third * kind for kind in range(3))
    end = length - 2 * num_queries

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        keys = distinct(rng, count, third, num_pairs) + keys_from
        values = rng.integers(values_from, noise_from, size=(count, num_pairs))
        tokens = rng.integers(noise_from, vocab_size, size=(count, length))
        # Sorted places among those left when each pair counts as one, each moved on by the pairs before it.
        places = np.sort(distinct(rng, count, end - num_pairs, num_pairs)) + np.arange(num_pairs)
        np.put_along_axis(tokens, places, keys, axis=1)
        np.put_along_axis(tokens, places + 1, values, axis=1)
        asked = distinct(rng, count, num_pairs, num_queries)
        tokens[:, end::2] = np.take_along_axis(keys, asked, axis=1)
        tokens[:, end + 1 :: 2] = np.take_along_axis(values, asked, axis=1)
        is_answer = np.zeros((count, length), dtype=bool)
        is_answer[:, end + 1 :: 2] = True
        return tokens, is_answer

    # Fewer than there are: at one choice of places and queries.
    choices = math.perm(third, num_pairs) * third ** (end - num_pairs)
    return unique_splits(num_rows, draw, choices, causal=causal, seed=seed)


def changing_recall(
    num_rows: Mapping[str, int],
    *,
    num_pairs: int = 4,
    num_rounds: int = 3,
    vocab_size: int = 64,
    causal: bool = True,
    seed: int = 0,
) -> datasets.DatasetDict:
    r"""Draw rows of recall in rounds: in each the same keys get new values, and are asked for.

    $k_1 v_1 \dots k_P v_P\; k_{\pi(1)} v_{\pi(1)} \dots k_{\pi(P)} v_{\pi(P)}\;\; k_1 v'_1 \dots$

    A model that adds up what it has seen of a key answers with an old value as often as with the last one; a model
    that forgets, or that weighs by distance, does not. The order of pairs and of queries is drawn in each round, and a
    query follows each key once.

    Args:
        num_rows: split -> number of its rows. No row occurs twice, within a split or in two splits.
        num_pairs: P, keys a row.
        num_rounds: R; a row has 4 P R tokens.
        vocab_size: number of tokens: 0 is left out, 1 is the mask, half of the others are keys, the rest values.
        causal: make rows for a causal language model, which shifts the labels itself. Otherwise answers are masked.
        seed: one seed for all splits together.

    Returns:
        Rows of `input_ids` and `labels`, each of 4 P R integers; labels are the answers at their places, -100
        elsewhere.

    Raises:
        ValueError: a number is too small, or there are not twice as many different rows as are asked for.
    """
    at_least("num_pairs", num_pairs, 1)
    at_least("num_rounds", num_rounds, 1)
    at_least("vocab_size", vocab_size, NUM_SPECIAL + 2 * num_pairs)
    half = (vocab_size - NUM_SPECIAL) // 2
    values_from = NUM_SPECIAL + half

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        keys = distinct(rng, count, half, num_pairs) + NUM_SPECIAL
        values = rng.integers(values_from, vocab_size, size=(count, num_rounds, num_pairs))
        tokens = np.empty((count, num_rounds, 2, num_pairs, 2), dtype=np.int64)
        for part in range(2):
            order = rng.random((count, num_rounds, num_pairs)).argsort(axis=2)
            tokens[:, :, part, :, 0] = np.take_along_axis(keys[:, None].repeat(num_rounds, axis=1), order, axis=2)
            tokens[:, :, part, :, 1] = np.take_along_axis(values, order, axis=2)
        is_answer = np.zeros(tokens.shape, dtype=bool)
        is_answer[:, :, 1, :, 1] = True
        return tokens.reshape(count, -1), is_answer.reshape(count, -1)

    choices = math.perm(half, num_pairs) * (vocab_size - values_from) ** (num_rounds * num_pairs)
    return unique_splits(num_rows, draw, choices, causal=causal, seed=seed)
