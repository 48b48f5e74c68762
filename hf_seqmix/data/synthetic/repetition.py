"""Synthetic text in which words occur twice: can a model repeat a word that is rare or absent in training?"""

import math
from collections.abc import Mapping

import datasets
import numpy as np

from ..._labels import IGNORED_LABEL
from .drawing import NUM_SPECIAL

__all__ = ["rare_word_repetition"]

_TRIES = 1000


def rare_word_repetition(
    num_rows: Mapping[str, int],
    *,
    num_words: int = 128,
    num_cues: int = 8,
    num_pairs: int = 6,
    length: int = 64,
    min_distance: int = 4,
    max_distance: int | None = None,
    exponent: float = 2.0,
    unseen: float = 0.0625,
    seed: int = 0,
) -> datasets.DatasetDict:
    r"""Draw rows of words in which each of a few cues occurs twice, D tokens apart, before the same word.

    $\dots\, c\, w \,\dots\, c\, w \,\dots$

    Words are drawn independently from Zipf's law, $p(\text{rank } r) \propto r^{-s}$. Cues occur only in such pairs,
    so nothing but the cue tells the next word. The last words, by rank, never occur in training. A model that answers
    from frequencies fails at rare words; a model that looks back does not.

    In training, all second occurrences are scored. Their words follow Zipf's law, too, so that rare words are rarely
    repeated. In the other splits one second occurrence a row is scored. Its word is drawn evenly from four classes
    (unseen words, and the seen words in thirds of their ranks), its distance log-uniformly. Tokens 0 and 1 are left
    out, cues are 2 to K + 1, and words follow in order of rank.

    Source: Shamsi, Hua, Williams 2023 (arXiv 2306.12317) say that their model is weaker than attention at repeating an
    uncommon word seen earlier. They describe no task; this task is our own.

    Args:
        num_rows: split -> number of its rows; "train" must be among the splits.
        num_words: number of words, seen and unseen.
        num_cues: K, number of cues.
        num_pairs: cues a row, each of which occurs twice.
        length: tokens a row.
        min_distance: lower bound of D, included; 2 for pairs other than the first of a row that has no room for them.
        max_distance: upper bound of D, included; `length` - 2 by default.
        exponent: s of Zipf's law.
        unseen: share of the words that do not occur in training.
        seed: one seed for all splits together.

    Returns:
        Rows of `input_ids` and `labels` (-100 where nothing is scored), `length` integers each, for a causal model,
        which shifts the labels itself. Splits other than "train" also have `distance`, and `train_count`: how often
        the scored word occurs in the training rows.

    Raises:
        ValueError: a number is too small, rows are too short for their pairs, or there is no training split.
    """
    max_distance = length - 2 if max_distance is None else max_distance
    num_seen = num_words - round(unseen * num_words)
    for name, value, low in (
        ("num_pairs", num_pairs, 1),
        ("num_cues", num_cues, num_pairs),
        ("min_distance", min_distance, 2),
        ("max_distance", max_distance, min_distance),
        ("number of words seen in training", num_seen, 3),
    ):
        if value < low:
            raise ValueError(f"{name} is {value}; it must be at least {low}.")
    if not 0 < unseen < 1 or num_seen == num_words:
        raise ValueError(f"unseen is {unseen}; at least one of the {num_words} words must be left out of training.")
    if length < max_distance + 2 or length < 8 * num_pairs:
        raise ValueError(
            f"length {length} is too short for {num_pairs} pairs at distances up to {max_distance}; give at least "
            f"{max(max_distance + 2, 8 * num_pairs)}."
        )
    if num_rows.get("train", 0) < 1 or min(num_rows.values()) < 1:
        raise ValueError(
            f"num_rows is {dict(num_rows)}; name a 'train' split, whose counts say which words are rare, and give"
            " each split at least 1 row."
        )
    rng = np.random.default_rng(seed)
    first_word = NUM_SPECIAL + num_cues
    probabilities = np.arange(1, num_seen + 1) ** -float(exponent)
    probabilities /= probabilities.sum()
    thirds = [(num_seen * third // 3, num_seen * (third + 1) // 3) for third in range(3)]
    classes = np.array([*thirds, (num_seen, num_words)])

    splits = {}
    counts = np.zeros(num_words, dtype=np.int64)
    # Training rows first: the others say how often their words occur there.
    for split in sorted(num_rows, key=lambda name: name != "train"):
        count, training = num_rows[split], split == "train"
        tokens = rng.choice(num_seen, size=(count, length), p=probabilities) + first_word
        words = rng.choice(num_seen, size=(count, num_pairs), p=probabilities)
        if not training:
            low, high = classes[rng.integers(len(classes), size=count)].T
            words[:, 0] = rng.integers(low, high)
        distances = np.exp(rng.uniform(math.log(min_distance), math.log(max_distance + 1), size=(count, num_pairs)))
        distances = distances.astype(np.int64)
        cues = rng.random((count, num_cues)).argsort(axis=1)[:, :num_pairs] + NUM_SPECIAL
        starts = _starts(distances, length, rng)
        rows = np.arange(count)[:, None]
        for offset in (0, distances):
            tokens[rows, starts + offset] = cues
            tokens[rows, starts + offset + 1] = words + first_word
        labels = np.full_like(tokens, IGNORED_LABEL)
        scored = slice(None) if training else slice(1)
        again = (starts + distances + 1)[:, scored]
        labels[rows, again] = words[:, scored] + first_word
        columns = {"input_ids": list(tokens.astype(np.int32)), "labels": list(labels.astype(np.int32))}
        if training:
            counts = np.bincount(tokens[tokens >= first_word] - first_word, minlength=num_words)
        else:
            columns |= {"distance": list(distances[:, 0]), "train_count": list(counts[words[:, 0]])}
        splits[split] = datasets.Dataset.from_dict(columns)
    return datasets.DatasetDict({split: splits[split] for split in num_rows})


def _starts(distances: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the places of the first cues, so that no two cues and words of a row share a place.

    Args:
        distances: (rows, pairs); where a row has no room, the distances of all but its first pair shrink in place.
        length: tokens a row.
        rng: the source of randomness.

    Returns:
        (rows, pairs).
    """
    starts = np.empty_like(distances)
    left = np.arange(len(distances))
    for attempt in range(_TRIES):
        chosen = rng.integers(0, length - 1 - distances[left])
        ends = chosen + distances[left]
        places = np.sort(np.concatenate([chosen, chosen + 1, ends, ends + 1], axis=1), axis=1)
        fits = (np.diff(places, axis=1) > 0).all(axis=1)
        starts[left[fits]] = chosen[fits]
        left = left[~fits]
        if not len(left):
            return starts
        if attempt % 20 == 19:
            shorter = distances[left, 1:] - rng.integers(0, 3, size=(len(left), distances.shape[1] - 1))
            distances[left, 1:] = np.maximum(shorter, 2)
    raise ValueError(f"no room was found for {distances.shape[1]} pairs in rows of {length} tokens: give longer rows.")
