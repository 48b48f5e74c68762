"""Synthetic tasks: every row is solved from its inputs alone by a checker that knows only the task's rules."""

from typing import Any

import pytest

from hf_seqmix.data import associative_recall, lagged_copy

FILLER, MASK, IGNORED = 0, 1, -100


def recalled(row: dict[str, Any], num_pairs: int, num_keys: int, causal: bool) -> tuple[dict[int, int], int]:
    """Answers by place, read off the inputs: what followed a key among the pairs; and how many keys are asked for."""
    tokens = row["input_ids"]
    memory = dict(zip(tokens[0 : 2 * num_pairs : 2], tokens[1 : 2 * num_pairs : 2], strict=True))
    assert len(memory) == num_pairs
    assert all(2 <= key < 2 + num_keys for key in memory)
    answers = {}
    place = 2 * num_pairs
    while place < len(tokens):
        if tokens[place] == FILLER:
            place += 1
            continue
        answers[place + 1] = memory[tokens[place]]
        assert causal or tokens[place + 1] == MASK
        place += 2
    return answers, len(answers)


def answers_of(row: dict[str, Any]) -> dict[int, int]:
    return {place: label for place, label in enumerate(row["labels"]) if label != IGNORED}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("num_pairs", "num_queries", "vocab_size", "length"), [(1, 1, 64, 5), (4, 7, 35, 31), (8, None, 64, 32)]
)
def test_every_answer_follows_from_the_pairs(
    causal: bool, num_pairs: int, num_queries: int | None, vocab_size: int, length: int
) -> None:
    splits = associative_recall(
        {"train": 50, "test": 7},
        num_pairs=num_pairs,
        num_queries=num_queries,
        vocab_size=vocab_size,
        length=length,
        causal=causal,
    )
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 50, "test": 7}
    for row in [*splits["train"], *splits["test"]]:
        assert len(row["input_ids"]) == len(row["labels"]) == length
        assert all(0 <= token < vocab_size for token in row["input_ids"])
        expected, count = recalled(row, num_pairs, (vocab_size - 2) // 2, causal)
        assert answers_of(row) == expected
        assert count == (num_queries or num_pairs)


def test_a_causal_label_is_the_input_at_its_place_so_that_the_model_can_shift_it() -> None:
    causal = associative_recall({"train": 20}, causal=True)["train"]
    masked = associative_recall({"train": 20}, causal=False)["train"]
    for one, other in zip(causal, masked, strict=True):
        assert one["labels"] == other["labels"]
        for place, label in answers_of(one).items():
            assert one["input_ids"][place] == label
            assert other["input_ids"][place] == MASK


def test_no_lag_and_no_guess_gives_the_answers() -> None:
    rows = associative_recall({"train": 400}, num_pairs=4, vocab_size=64, length=32)["train"]
    total = sum(len(answers_of(row)) for row in rows)
    for lag in range(1, 32):
        hits = sum(
            row["input_ids"][place - lag] == label
            for row in rows
            for place, label in answers_of(row).items()
            if place >= lag
        )
        assert hits / total < 0.3, lag
    # Neither does leaving out what has been answered: each pair is asked for independently.
    repeated = sum(len(set(answers_of(row).values())) < 3 for row in rows)
    assert repeated > 100


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("min_lag", "max_lag", "length"), [(1, None, 2), (16, None, 64), (5, None, 11), (3, 9, 30), (1, 2, 5)]
)
def test_copies_follow_from_the_first_tokens(causal: bool, min_lag: int, max_lag: int | None, length: int) -> None:
    options: dict[str, Any] = {"min_lag": min_lag, "max_lag": max_lag, "vocab_size": 500, "length": length}
    rows = lagged_copy({"train": 60}, causal=causal, **options)["train"]
    lags = set()
    for row in rows:
        tokens, answers = row["input_ids"], answers_of(row)
        start = min(answers)
        assert list(answers) == list(range(start, length))
        # In a causal row of unknown lag, the first copy has no label but is seen.
        lag = start - 1 if causal and max_lag is not None else start
        lags.add(lag)
        assert all(label == tokens[place % lag] for place, label in answers.items())
        assert all(2 <= token < 500 for token in tokens[:lag])
        if causal:
            assert tokens == [tokens[place % lag] for place in range(length)]
        else:
            assert set(tokens[lag:]) == {MASK}
    assert lags == set(range(min_lag, (max_lag or min_lag) + 1))


@pytest.mark.parametrize("generate", [associative_recall, lagged_copy])
def test_rows_are_seeded_and_none_occurs_twice(generate: Any) -> None:
    counts = {"train": 300, "validation": 100, "test": 100}
    splits = generate(counts, seed=3)
    again, other = generate(counts, seed=3), generate(counts, seed=4)
    rows = {name: [tuple(tokens) for tokens in split["input_ids"]] for name, split in splits.items()}
    assert len(set().union(*rows.values())) == 500
    assert all(splits[name].to_dict() == again[name].to_dict() for name in counts)
    assert splits["test"].to_dict() != other["test"].to_dict()


def test_a_small_space_is_drawn_without_repetition() -> None:
    # 2 tokens, lag 5: 32 rows.
    rows = lagged_copy({"a": 8, "b": 8}, min_lag=5, vocab_size=4, length=9)
    assert len({tuple(tokens) for split in rows.values() for tokens in split["input_ids"]}) == 16
    with pytest.raises(ValueError, match="17 different rows are asked for, but there are only 32"):
        lagged_copy({"a": 17}, min_lag=5, vocab_size=4, length=9)
    # 1 key, 1 value, one query at one of 3 places
    with pytest.raises(ValueError, match="only 3 to draw from"):
        associative_recall({"a": 2}, num_pairs=1, vocab_size=4, length=6)
    assert len(associative_recall({"a": 1}, num_pairs=1, vocab_size=4, length=6)["a"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_pairs": 0}, "num_pairs is 0"),
        ({"num_queries": 0}, "num_queries is 0"),
        ({"num_pairs": 8, "vocab_size": 17}, "at least 18"),
        ({"num_pairs": 4, "num_queries": 3, "length": 13}, "give at least 14"),
    ],
)
def test_recall_refuses_what_has_no_rows(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        associative_recall({"train": 1}, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_lag": 0}, "min_lag is 0"),
        ({"min_lag": 5, "max_lag": 4}, "max_lag is 4; it must be at least 5"),
        ({"min_lag": 5, "length": 5}, "length is 5; it must be at least 6"),
        ({"min_lag": 4, "max_lag": 5, "length": 6}, "length is 6; it must be at least 7"),
        ({"vocab_size": 2}, "vocab_size is 2"),
    ],
)
def test_copying_refuses_what_has_no_rows(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lagged_copy({"train": 1}, **options)


def test_splits_must_be_named_and_not_empty() -> None:
    with pytest.raises(ValueError, match="names no split"):
        associative_recall({})
    with pytest.raises(ValueError, match=r"num_rows\['test'\] is 0"):
        associative_recall({"train": 1, "test": 0})
