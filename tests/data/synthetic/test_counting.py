"""Running counts: every label is counted again from the symbols."""

import pytest

from hf_seqmix.data import running_count


@pytest.mark.parametrize(("modulus", "length"), [(2, 3), (2, 33), (5, 40)])
def test_the_label_after_a_symbol_is_the_count_so_far(modulus: int, length: int) -> None:
    counts = {"train": 2, "test": 2} if length == 3 else {"train": 40, "test": 10}
    splits = running_count(counts, modulus=modulus, length=length)
    seen = set()
    for rows in splits.values():
        for row in rows:
            tokens, labels = row["input_ids"], row["labels"]
            assert len(tokens) == len(labels) == length and set(tokens) <= {2, 3} and labels[0] == -100
            count = 0
            for token, label in zip(tokens[:-1], labels[1:], strict=True):
                count += token == 3
                assert label == 4 + count % modulus
                seen.add(label)
    assert seen == set(range(4, 4 + min(modulus, length)))


def test_rows_are_seeded_and_none_occurs_twice() -> None:
    counts = {"train": 100, "test": 50}
    splits, again, other = running_count(counts, seed=3), running_count(counts, seed=3), running_count(counts, seed=4)
    assert len({tuple(tokens) for rows in splits.values() for tokens in rows["input_ids"]}) == 150
    assert all(splits[name].to_dict() == again[name].to_dict() for name in counts)
    assert splits["test"].to_dict() != other["test"].to_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modulus": 1}, "modulus is 1; it must be at least 2"),
        ({"length": 1}, "length is 1; it must be at least 2"),
        ({"length": 3}, "only 8 to draw from"),
    ],
)
def test_counting_refuses_what_has_no_rows(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        running_count({"train": 5}, **options)
