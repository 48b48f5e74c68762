"""Rows in which words come twice, checked by what the task promises."""

import numpy as np
import pytest

from hf_seqmix.data import rare_word_repetition

SIZES = {"train": 300, "validation": 40, "test": 200}
FIELDS = {"num_words": 64, "exponent": 1.5, "num_cues": 4, "num_pairs": 2, "length": 32, "unseen": 0.125}


def arrays(split):
    return {name: np.array(split[name]) for name in split.column_names}


def test_what_followed_a_cue_follows_it_again():
    splits = rare_word_repetition(SIZES, **FIELDS)
    assert {name: len(rows) for name, rows in splits.items()} == SIZES
    for split, rows in splits.items():
        for tokens in arrays(rows)["input_ids"]:
            places = np.flatnonzero((tokens >= 2) & (tokens < 6))
            assert len(places) == 4
            for cue in np.unique(tokens[places]):
                first, second = np.flatnonzero(tokens == cue)
                assert tokens[first + 1] == tokens[second + 1] >= 6, split


def test_the_scored_word_is_a_second_occurrence_at_the_distance_given():
    rows = arrays(rare_word_repetition(SIZES, **FIELDS)["test"])
    for tokens, labels, distance in zip(rows["input_ids"], rows["labels"], rows["distance"], strict=True):
        (place,) = np.flatnonzero(labels != -100)
        assert labels[place] == tokens[place] == tokens[place - distance]
        assert tokens[place - 1] == tokens[place - 1 - distance] < 6
        assert 4 <= distance <= 30


def test_pairs_without_room_come_closer_but_for_the_first():
    full = {**FIELDS, "num_cues": 6, "num_pairs": 4, "min_distance": 8}
    distances = []
    for rows in rare_word_repetition(SIZES, **full).values():
        for tokens in arrays(rows)["input_ids"]:
            places = [np.flatnonzero(tokens == cue) for cue in range(2, 8)]
            distances += [second - first for first, second in filter(len, places)]
        assert "distance" not in rows.column_names or min(rows["distance"]) >= 8
    assert 2 <= min(distances) < 8


def test_counts_are_those_of_the_training_rows_and_unseen_words_have_none():
    splits = rare_word_repetition(SIZES, **FIELDS)
    train, test = arrays(splits["train"]), arrays(splits["test"])
    scored = train["labels"] != -100
    assert (scored.sum(axis=1) == 2).all()
    assert (train["labels"][scored] == train["input_ids"][scored]).all()
    word = np.array([labels[labels != -100][0] for labels in test["labels"]])
    expected = np.bincount(train["input_ids"].ravel(), minlength=70)[word]
    assert (test["train_count"] == expected).all()
    assert ((test["train_count"] == 0) == (word >= 6 + 56)).all()
    share = (test["train_count"] == 0).mean()
    assert 0.15 < share < 0.35  # one of four classes
    # Words in order of rank: the first third is by far the most frequent.
    assert train["input_ids"].max() < 6 + 56
    counts = np.bincount(train["input_ids"].ravel(), minlength=62)[6:62]
    assert counts[:18].sum() > 5 * counts[18:].sum() > 0


def test_the_seed_decides():
    first, again, other = (rare_word_repetition(SIZES, **FIELDS, seed=seed)["train"][0] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_cues": 1}, "num_cues is 1; it must be at least 2"),
        ({"min_distance": 1}, "min_distance is 1; it must be at least 2"),
        ({"max_distance": 3}, "max_distance is 3; it must be at least 4"),
        ({"length": 12}, "length 12 is too short for 2 pairs at distances up to 10; give at least 16"),
        ({"length": 20, "max_distance": 30}, "length 20 is too short .* give at least 32"),
        ({"unseen": 0.0}, "unseen is 0.0; at least one of the 64 words"),
        ({"num_rows": {"test": 3}}, "name a 'train' split"),
        ({"num_rows": {"train": 3, "test": 0}}, "give each split at least 1 row"),
    ],
)
def test_bad_sizes_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        rare_word_repetition(**{"num_rows": SIZES, **FIELDS, **fields})


def test_both_bounds_of_the_distance_are_reached():
    rows = arrays(rare_word_repetition(SIZES, **FIELDS, max_distance=6)["test"])
    assert set(rows["distance"]) == {4, 5, 6}
