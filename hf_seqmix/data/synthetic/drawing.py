"""What the synthetic tasks share: their special tokens, and rows that are drawn until none occurs twice."""

from collections.abc import Callable, Mapping

import datasets
import numpy as np

from ..._labels import IGNORED_LABEL

__all__ = ["FILLER_ID", "MASK_ID", "NUM_SPECIAL", "at_least", "distinct", "unique_splits"]

FILLER_ID = 0
MASK_ID = 1
NUM_SPECIAL = 2

Draw = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def at_least(name: str, value: int, low: int) -> None:
    """Raise a `ValueError` that names a setting, where it is below its least value."""
    if value < low:
        raise ValueError(f"{name} is {value}; it must be at least {low}.")


def distinct(rng: np.random.Generator, count: int, population: int, size: int) -> np.ndarray:
    """Draw (count, size) integers below `population`, different from each other within a row, in random order."""
    return rng.random((count, population)).argsort(axis=1)[:, :size]


def unique_splits(
    num_rows: Mapping[str, int], draw: Draw, choices: int, *, causal: bool, seed: int
) -> datasets.DatasetDict:
    """Draw rows until there are enough different rows, and deal them out to the splits."""
    if not num_rows:
        raise ValueError("num_rows names no split; give, for example, {'train': 1000, 'test': 100}.")
    for split, count in num_rows.items():
        at_least(f"num_rows[{split!r}]", count, 1)
    total = sum(num_rows.values())
    if 2 * total > choices:
        raise ValueError(
            f"{total} different rows are asked for, but there are only {choices} to draw from; give at least twice as "
            "many choices (a larger vocabulary, longer rows) or fewer rows."
        )
    rng = np.random.default_rng(seed)
    width, seen = 0, set[bytes]()
    tokens, answers = list[np.ndarray](), list[np.ndarray]()
    while len(tokens) < total:
        for row, is_answer in zip(*draw(total, rng), strict=True):
            width = len(seen)
            seen.add(row.astype(np.int32).tobytes())
            if len(seen) > width and len(tokens) < total:
                tokens.append(row)
                answers.append(is_answer)
    all_tokens, all_answers = np.stack(tokens).astype(np.int32), np.stack(answers)
    columns = {
        "input_ids": all_tokens if causal else np.where(all_answers, np.int32(MASK_ID), all_tokens),
        "labels": np.where(all_answers, all_tokens, np.int32(IGNORED_LABEL)),
    }
    ends = np.cumsum(list(num_rows.values()))
    return datasets.DatasetDict(
        {
            split: datasets.Dataset.from_dict({name: list(rows[end - count : end]) for name, rows in columns.items()})
            for (split, count), end in zip(num_rows.items(), ends, strict=True)
        }
    )
