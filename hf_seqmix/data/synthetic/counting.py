"""Synthetic sequences whose answers are a running state: counts, and parity."""

from collections.abc import Mapping

import datasets
import numpy as np

from ..._labels import IGNORED_LABEL
from .drawing import NUM_SPECIAL, at_least, unique_splits

__all__ = ["running_count"]

OFF_ID = NUM_SPECIAL
ON_ID = NUM_SPECIAL + 1
FIRST_COUNT_ID = NUM_SPECIAL + 2


def running_count(
    num_rows: Mapping[str, int], *, modulus: int = 2, length: int = 64, seed: int = 0
) -> datasets.DatasetDict:
    r"""Draw rows of two symbols; after each the number of one of them so far is asked for, modulo m.

    $y_t = \left(\sum_{s \le t} x_s\right) \bmod m, \qquad x_t \in \{0, 1\}$

    With m = 2 that is parity. The answer at a place depends on every symbol before it, and never becomes an input. So
    a model has to keep the state itself, or to count anew at every place. Symbols are tokens 2 and 3, counts tokens 4
    to m + 3; tokens 0 and 1 are left out, as in [`associative_recall`].

    Args:
        num_rows: split -> number of its rows. No row occurs twice, within a split or in two splits.
        modulus: m.
        length: tokens a row, at least 2.
        seed: one seed for all splits together.

    Returns:
        Rows of `input_ids` and `labels`, each of `length` integers, for a causal model, which shifts the labels
        itself: the label at place t + 1 is the count up to place t. The first label is -100.

    Raises:
        ValueError: a number is too small, or there are not twice as many different rows as are asked for.
    """
    at_least("modulus", modulus, 2)
    at_least("length", length, 2)

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        tokens = rng.integers(OFF_ID, ON_ID + 1, size=(count, length))
        return tokens, np.ones_like(tokens, dtype=bool)

    def label(batch: dict[str, list[list[int]]]) -> dict[str, np.ndarray]:
        symbols = np.asarray(batch["input_ids"])
        counts = (symbols == ON_ID).cumsum(axis=1) % modulus + FIRST_COUNT_ID
        labels = np.full_like(symbols, IGNORED_LABEL)
        labels[:, 1:] = counts[:, :-1]
        return {"labels": labels}

    splits = unique_splits(num_rows, draw, 2**length, causal=True, seed=seed)
    return splits.map(label, batched=True)
