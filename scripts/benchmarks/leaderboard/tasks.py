"""The synthetic tasks of `run_benchmarks.py leaderboard`: what small models learn, and what they are tested on."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets

from hf_seqmix import __version__
from hf_seqmix._files import whole_files
from hf_seqmix.data import (
    associative_recall,
    changing_recall,
    lagged_copy,
    noisy_recall,
    rare_word_repetition,
    running_count,
)

DrawRows = Callable[..., datasets.DatasetDict]
"""Draws the rows of splits: takes split -> number of rows, `seed`, and `causal=False` for a masked model."""

RARE = 100
"""Occurrences in the training rows, below which a word is rare."""
SPARE = 4
"""Times as many test rows of repetition are drawn as are kept of each class of words."""


@dataclass(frozen=True)
class Task:
    """A synthetic task.

    Attributes:
        title: what it asks of a model.
        vocab_size: number of tokens.
        length: tokens of a training row.
        training: kinds of rows that are learned, as many of each.
        cases: name -> rows that are tested, in the order of the tables; or between how many occurrences of its word
            in the training rows a test row of the first kind has.
        masked: whether there is a form for masked models.
    """

    title: str
    vocab_size: int
    length: int
    training: tuple[DrawRows, ...]
    cases: Mapping[str, DrawRows | tuple[int, float]]
    masked: bool = False


def _recall(num_pairs: int) -> DrawRows:
    return partial(associative_recall, num_pairs=num_pairs, vocab_size=34, length=32)


def _noisy(num_pairs: int, length: int) -> DrawRows:
    return partial(noisy_recall, num_pairs=num_pairs, vocab_size=32, length=length)


def _count(modulus: int, length: int) -> DrawRows:
    return partial(running_count, modulus=modulus, length=length)


TASKS: dict[str, Task] = {
    "recall": Task(
        "the values of keys, by number of pairs",
        34,
        32,
        tuple(map(_recall, (2, 4, 8))),
        {f"{pairs} pairs": _recall(pairs) for pairs in (2, 4, 8)},
        masked=True,
    ),
    "changing": Task(
        "the last of a key's values",
        34,
        36,
        (partial(changing_recall, num_pairs=3, num_rounds=3, vocab_size=34),),
        {"3 rounds": partial(changing_recall, num_pairs=3, num_rounds=3, vocab_size=34)},
        masked=True,
    ),
    "needle": Task(
        "pairs among noise, up to 16 times the trained length",
        32,
        32,
        (_noisy(1, 32), _noisy(4, 32)),
        {
            "4 pairs, 32 tokens": _noisy(4, 32),
            **{f"1 pair, {length} tokens": _noisy(1, length) for length in (32, 128, 512)},
        },
        masked=True,
    ),
    "repetition": Task(
        "the word that followed a cue, by how rare it is",
        138,
        48,
        (partial(rare_word_repetition, length=48),),
        {
            "frequent words": (RARE, math.inf),
            "rare words": (1, RARE),
            "words never seen": (0, 1),
        },
    ),
    "copy": Task(
        "the token a drawn number of places before",
        34,
        48,
        (partial(lagged_copy, min_lag=8, max_lag=16, vocab_size=34, length=48),),
        {
            f"{length} tokens": partial(lagged_copy, min_lag=8, max_lag=16, vocab_size=34, length=length)
            for length in (48, 192)
        },
        masked=True,
    ),
    "parity": Task(
        "whether a symbol occurred an odd number of times",
        6,
        32,
        (_count(2, 32),),
        {f"{length} tokens": _count(2, length) for length in (32, 128, 512)},
    ),
    "counter": Task(
        "how often a symbol occurred, modulo 5",
        9,
        32,
        (_count(5, 32),),
        {f"{length} tokens": _count(5, length) for length in (32, 128, 512)},
    ),
}


def tasks_of(objective: str) -> list[str]:
    """Return the names of the tasks that models of an objective can learn."""
    return [name for name, task in TASKS.items() if objective == "causal" or task.masked]


def write_rows(name: str, objective: str, num_rows: int, held_out: int, folder: Path) -> dict[str, Path]:
    """Write the rows of a task, unless that was done before: "train", "validation" and each case.

    Args:
        name: of the task.
        objective: "causal" or "masked".
        num_rows: that are learned.
        held_out: rows of the validation split, and of each case.
        folder: where a folder of the task goes, named after what the rows depend on.

    Returns:
        Split or case -> its Parquet file.
    """
    task = TASKS[name]
    words = repr((__version__, name, objective, num_rows, held_out))
    target = folder / f"{name}-{objective}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
    names = {"train": "train", "validation": "validation"}
    names |= {case: case.replace(" ", "-").replace(",", "") for case in task.cases}
    files = {split: target / f"{stem}.parquet" for split, stem in names.items()}
    if all(path.is_file() for path in files.values()):
        return files
    tables = _draw(task, {} if objective == "causal" else {"causal": False}, num_rows, held_out)
    with whole_files(target, last=files["validation"].name) as aside:
        for split, rows in tables.items():
            rows.select_columns(["input_ids", "labels"]).to_parquet(str(aside / files[split].name))
    return files


def _draw(task: Task, options: Mapping[str, Any], num_rows: int, held_out: int) -> dict[str, datasets.Dataset]:
    kinds = len(task.training)
    counts = {"train": -(-num_rows // kinds), "validation": -(-held_out // kinds)}
    classes = any(isinstance(case, tuple) for case in task.cases.values())
    if classes:  # from the same words as the training rows, which count them
        counts["test"] = SPARE * len(task.cases) * held_out
    drawn = [draw(counts, seed=0, **options) for draw in task.training]
    tables = {
        split: datasets.concatenate_datasets([kind[split] for kind in drawn]).shuffle(seed=0).flatten_indices()
        for split in ("train", "validation")
    }
    for name, case in task.cases.items():
        if isinstance(case, tuple):
            rows = drawn[0]["test"].filter(_occurs, fn_kwargs={"least": case[0], "below": case[1]})
            tables[name] = rows.take(min(held_out, len(rows)))
        else:
            tables[name] = case({"test": held_out}, seed=1, **options)["test"]
    return tables


def _occurs(row: Mapping[str, Any], least: int, below: float) -> bool:
    return bool(least <= row["train_count"] < below)
