"""Recall among noise and with changing values: every row is solved from its inputs alone."""

from typing import Any

import pytest

from hf_seqmix.data import changing_recall, noisy_recall

MASK, IGNORED = 1, -100


def answers_of(row: dict[str, Any]) -> dict[int, int]:
    return {place: label for place, label in enumerate(row["labels"]) if label != IGNORED}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("pairs", "queries", "length"), [(1, None, 4), (1, None, 33), (4, 2, 31), (3, None, 12)])
def test_a_pair_among_noise_is_found(causal: bool, pairs: int, queries: int | None, length: int) -> None:
    vocab = 32  # ten keys, 2 to 11, ten values, 12 to 21, ten tokens of noise
    rows = noisy_recall(
        {"train": 50}, num_pairs=pairs, num_queries=queries, vocab_size=vocab, length=length, causal=causal
    )["train"]
    starts = set()
    for row in rows:
        tokens, answers = row["input_ids"], answers_of(row)
        assert list(answers) == list(range(length - 2 * (queries or pairs) + 1, length, 2))
        first = min(answers) - 1
        memory = {}
        for place, token in enumerate(tokens[:first]):
            if 2 <= token < 12:
                memory[token] = tokens[place + 1]
                starts.add(place)
        assert len(memory) == pairs and all(12 <= value < 22 for value in memory.values())
        assert sum(token >= 22 for token in tokens[:first]) == first - 2 * pairs
        assert len({tokens[place - 1] for place in answers}) == len(answers)
        assert answers == {place: memory[tokens[place - 1]] for place in answers}
        assert all(tokens[place] == (answers[place] if causal else MASK) for place in answers)
    if length > 12:
        assert len(starts) > 5


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("pairs", "rounds"), [(1, 1), (3, 4), (5, 2)])
def test_the_last_value_is_the_answer(causal: bool, pairs: int, rounds: int) -> None:
    rows = changing_recall({"train": 50}, num_pairs=pairs, num_rounds=rounds, vocab_size=40, causal=causal)["train"]
    changed = 0
    for row in rows:
        tokens, answers = row["input_ids"], answers_of(row)
        assert len(tokens) == 4 * pairs * rounds and len(answers) == pairs * rounds
        memory: dict[int, int] = {}
        for place in range(0, len(tokens), 2):
            key, value = tokens[place], tokens[place + 1]
            assert 2 <= key < 21
            if place + 1 in answers:
                assert answers[place + 1] == memory[key]
                assert value == (memory[key] if causal else MASK)
            else:
                changed += memory.get(key, value) != value
                assert 21 <= value < 40
                memory[key] = value
        assert len(memory) == pairs
    assert (changed > 0) == (rounds > 1)


@pytest.mark.parametrize("generate", [noisy_recall, changing_recall])
def test_rows_are_seeded_and_none_occurs_twice(generate: Any) -> None:
    counts = {"train": 100, "test": 50}
    splits, again, other = generate(counts, seed=3), generate(counts, seed=3), generate(counts, seed=4)
    assert len({tuple(tokens) for rows in splits.values() for tokens in rows["input_ids"]}) == 150
    assert all(splits[name].to_dict() == again[name].to_dict() for name in counts)
    assert splits["test"].to_dict() != other["test"].to_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_pairs": 0}, "num_pairs is 0"),
        ({"num_queries": 0}, "num_queries is 0"),
        ({"num_pairs": 2, "num_queries": 3}, "num_queries is 3; give at most one a pair, of which there are 2"),
        ({"num_pairs": 4, "vocab_size": 13}, "vocab_size is 13; it must be at least 14"),
        ({"num_pairs": 2, "length": 7}, "length is 7; it must be at least 8"),
    ],
)
def test_noisy_recall_refuses_what_has_no_rows(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noisy_recall({"train": 1}, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_pairs": 0}, "num_pairs is 0"),
        ({"num_rounds": 0}, "num_rounds is 0"),
        ({"num_pairs": 4, "vocab_size": 9}, "vocab_size is 9; it must be at least 10"),
    ],
)
def test_changing_recall_refuses_what_has_no_rows(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changing_recall({"train": 1}, **options)
