"""ListOps: labels against another way of evaluating, the published ranges, no row in two splits."""

import re
import statistics
from collections import Counter

import pytest

from hf_seqmix.data import listops, listops_values
from hf_seqmix.data.lra.listops_tokenizer import listops_tokenizer

INNERMOST = re.compile(r"\[(MIN|MAX|MED|SM)((?: \d)+) \]")
RULES = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(statistics.median(values)),
    "SM": lambda values: sum(values) % 10,
}


def value_by_rewriting(expression: str) -> int:
    """Lists without lists inside are replaced by their values until a digit is left: no stack, no tree."""
    text = " ".join(expression.replace("(", " ").replace(")", " ").split())
    while not text.isdigit():
        shorter = INNERMOST.sub(lambda found: str(RULES[found[1]]([*map(int, found[2].split())])), text)
        assert shorter != text, f"stuck at {text}"
        text = shorter
    return int(text)


def words_of(expression: str) -> list[str]:
    return [word for word in expression.split() if word not in "()"]


def depth_of(expression: str) -> int:
    """Depth of the deepest node: of digits in the innermost list."""
    depth = deepest = 0
    for word in words_of(expression):
        depth += word.startswith("[")
        deepest = max(deepest, depth + (word.isdigit()))
        depth -= word == "]"
    assert depth == 0
    return deepest


def check(rows, min_length: int, max_length: int, max_depth: int, max_args: int) -> None:
    for source, target in zip(rows["Source"], rows["Target"], strict=True):
        assert value_by_rewriting(source) == listops_values(source)[-1][1] == target
        assert min_length < len(words_of(source)) < max_length
        assert depth_of(source) <= max_depth
        assert source.count("(") == source.count(")")
        flat = " ".join(words_of(source))
        while (found := INNERMOST.search(flat)) is not None:
            assert 2 <= len(found[2].split()) <= max_args
            flat = flat[: found.start()] + "0" + flat[found.end() :]


@pytest.mark.parametrize(
    ("bounds", "count"),
    [((500, 2000, 10, 10), 120), ((16, 65, 10, 10), 800), ((3, 30, 3, 3), 300), ((4, 6, 2, 10), 40)],
)
def test_labels_lengths_and_depth(bounds: tuple[int, int, int, int], count: int) -> None:
    names = ("min_length", "max_length", "max_depth", "max_args")
    splits = listops({"train": count, "test": count // 4}, **dict(zip(names, bounds, strict=True)), seed=3)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": count, "test": count // 4}
    for rows in splits.values():
        check(rows, *bounds)


@pytest.mark.slow
def test_a_hundred_thousand_rows_of_the_published_size() -> None:
    splits = listops({"train": 96_000, "validation": 2000, "test": 2000})
    seen: set[str] = set()
    for rows in splits.values():
        check(rows, 500, 2000, 10, 10)
        seen.update(rows["Source"])
    assert len(seen) == 100_000
    assert max(map(depth_of, splits["test"]["Source"])) == 10


def test_parentheses_pair_words_as_in_the_released_files() -> None:
    source = next(s for s in listops({"train": 200}, min_length=3, max_length=8)["train"]["Source"])
    tree = source
    while "(" in tree:  # every pair of parentheses holds exactly two parts
        shorter = re.sub(r"\( [^() ]+ [^() ]+ \)", "x", tree)
        assert shorter != tree, tree
        tree = shorter
    assert tree == "x"
    words = words_of(source)
    assert source.startswith("( " * (len(words) - 1))  # the first operator takes its arguments one after another


def test_no_row_is_in_two_splits_and_a_seed_gives_the_same_rows() -> None:
    rows = {"train": 300, "validation": 100, "test": 100}
    first, again, other = (listops(rows, min_length=3, max_length=9, seed=seed) for seed in (0, 0, 1))
    sources = [source for split in first.values() for source in split["Source"]]
    assert len(set(sources)) == 500
    assert all(first[split]["Source"] == again[split]["Source"] for split in rows)
    assert first["train"]["Source"] != other["train"]["Source"]


def test_operators_digits_and_numbers_of_arguments_are_equally_likely() -> None:
    words = Counter(word for source in listops({"train": 150}, seed=1)["train"]["Source"] for word in words_of(source))
    operators = [words[name] for name in ("[MIN", "[MAX", "[MED", "[SM")]
    digits = [words[str(digit)] for digit in range(10)]
    for counts in (operators, digits):
        mean = sum(counts) / len(counts)
        assert all(abs(count - mean) < 5 * mean**0.5 for count in counts)


def test_the_tokenizer_knows_every_word() -> None:
    tokenizer = listops_tokenizer()
    source = listops({"train": 1})["train"]["Source"][0]
    ids = tokenizer(source)["input_ids"]
    assert len(ids) == len(words_of(source)) + 1 and tokenizer.unk_token_id not in ids


@pytest.mark.parametrize(
    ("expression", "value"),
    [("7", 7), ("[MED 1 2 ]", 1), ("[MED 1 2 3 9 ]", 2), ("[SM 9 9 [MAX 1 5 ] ]", 3), ("( ( ( [MIN 4 ) 2 ) ] )", 2)],
)
def test_values_by_hand(expression: str, value: int) -> None:
    assert listops_values(expression)[-1][1] == value == value_by_rewriting(expression)


def test_what_each_word_is_worth() -> None:
    """A list has its value at the bracket that closes it, and at each digit the value that it has so far."""
    read = listops_values("( ( ( [SM 9 ) ( ( ( [MED 1 ) 4 ) ] ) ) ( ( ( [MAX 0 ) 5 ) ] ) ) ] )")
    words = ["[SM", "9", "[MED", "1", "4", "]", "[MAX", "0", "5", "]", "]"]
    assert read == list(zip(words, [None, 9, None, 1, 2, 2, None, 0, 5, 5, 6], strict=True))


def test_a_digit_is_worth_its_list_so_far() -> None:
    assert [worth for _, worth in listops_values("[SM 9 4 [MIN 3 1 ] 2 ]")] == [None, 9, 3, None, 3, 1, 1, 6, 6]
    for (source,) in ([row["Source"]] for row in listops({"train": 20}, seed=1)["train"]):
        read = listops_values(source)
        for place, (word, worth) in enumerate(read):
            if not word.isdigit():
                continue
            depth, begin = 0, place  # its list begins at the last bracket that is still open
            while depth <= 0 and begin > 0:
                begin -= 1
                depth += read[begin][0].startswith("[") - (read[begin][0] == "]")
            assert worth == value_by_rewriting(" ".join([*(other for other, _ in read[begin : place + 1]), "]"]))


@pytest.mark.parametrize("expression", ["", "[MIN 1", "1 2", "[MIN ]", "[AVG 1 2 ]", "]", "12", "[MAX 1 ] ]", "²"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"[Tt]he expression|closing bracket|is not a word"):
        listops_values(expression)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_depth": 1}, "max_depth must be at least 2"),
        ({"max_args": 1}, "max_args must be at least 2"),
        ({"min_length": 9, "max_length": 10}, "leave none"),
        ({"num_rows": {"train": -1}}, "must not be negative"),
        ({"num_rows": {"train": 5000}, "min_length": 3, "max_length": 5, "max_depth": 2}, "asked for"),
    ],
)
def test_wrong_numbers_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        listops(wrong.pop("num_rows", {"train": 1}), **wrong)
