"""ListOps of the Long Range Arena: nested lists of digits, and the digit to which each list evaluates."""

import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import datasets
from tqdm.auto import tqdm

__all__ = ["listops", "listops_values"]

OPERATOR_PROBABILITY = 0.25
FEW = 10_000  # fewer rows are drawn without a progress bar


def _median(values: list[int]) -> int:
    return int(statistics.median(values))  # rounded down


def _sum_modulo_ten(values: list[int]) -> int:
    return sum(values) % 10


OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": _sum_modulo_ten,
}
NAMES = tuple(OPERATORS)
END = "]"


def listops(
    num_rows: Mapping[str, int],
    *,
    min_length: int = 500,
    max_length: int = 2000,
    max_depth: int = 10,
    max_args: int = 10,
    seed: int = 0,
) -> datasets.DatasetDict:
    r"""Draw expressions such as `( ( ( [MAX 2 ) 9 ) ] )` and their values, by the recipe of the Long Range Arena.

    A node above the depth `max_depth` is an operator with probability 1/4, otherwise a digit. A node at that depth is
    a digit. An operator is one of MIN, MAX, MED (median, rounded down) and SM (sum modulo ten), all equally likely. An
    operator has 2 to `max_args` arguments, all numbers equally likely. A tree is kept if $min\_length < length <
    max\_length$ and if the tree did not occur before. The length counts operators, digits and closing brackets, but no
    parentheses.

    Source: Nangia and Bowman 2018 (arXiv 1804.06028); Tay et al. 2021 (arXiv 2011.04006). The defaults are the
    released settings of Tay et al., which have 96,000, 2,000 and 2,000 rows. The distribution is the published
    distribution; the rows are not the published rows, which were drawn without a seed. Lengths of a few dozen make an
    easier task, and results on that task are no results of the benchmark.

    Args:
        num_rows: split -> number of its rows. No row occurs twice, within a split or in two splits.
        min_length: lower bound of the length, excluded.
        max_length: upper bound of the length, excluded.
        max_depth: depth of a tree at most; a lone digit has depth 1.
        max_args: arguments of an operator at most.
        seed: one seed for all splits together.

    Returns:
        Rows of `Source`, the expression with the parentheses of the released files, and `Target`, its value, 0 to 9.

    Raises:
        ValueError: a number is too small, or there seem to be fewer such rows than are asked for.
    """
    for name, value, least in (("max_depth", max_depth, 2), ("max_args", max_args, 2), ("min_length", min_length, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}; given {value}.")
    if max_length < min_length + 2:
        raise ValueError(
            f"lengths lie between min_length and max_length, both excluded: {min_length} and {max_length} leave none."
        )
    negative = {split: number for split, number in num_rows.items() if number < 0}
    if negative:
        raise ValueError(f"num_rows must not be negative; given {negative}.")
    total = sum(num_rows.values())
    trees = _trees(random.Random(seed), _Shape(min_length, max_length, max_depth, max_args))
    new = _without_repeats(trees, total)
    drawn = iter(tqdm(new, total=total, desc="ListOps", unit=" rows", disable=total < FEW))
    splits = {}
    for split, number in num_rows.items():
        rows = list(itertools.islice(drawn, number))
        columns = {"Source": [source for source, _ in rows], "Target": [target for _, target in rows]}
        features = datasets.Features({"Source": datasets.Value("string"), "Target": datasets.Value("int64")})
        splits[split] = datasets.Dataset.from_dict(columns, features=features)
    return datasets.DatasetDict(splits)


def listops_values(expression: str) -> list[tuple[str, int | None]]:
    """Return the words of an expression, without parentheses, and what each is worth when it has been read.

    A digit is worth what its list would be if the list ended there: in "[SM 9 4 2 ]" the digits are worth 9, 3 and 5.
    A closing bracket is worth the value of the list that it closes, an operator nothing. So long lists are learned by
    way of short ones. The last word is worth the value of the expression.

    Raises:
        ValueError: the text is not one expression: a word is unknown, a bracket is missing, a list is empty, or more
            words follow.
    """
    stack: list[tuple[str, list[int]]] = []
    read: list[tuple[str, int | None]] = []
    for word in expression.replace("(", " ").replace(")", " ").split():
        if read and not stack:
            raise ValueError(f"the expression has ended before {word!r}.")
        if word in OPERATORS:
            stack.append((word, []))
            read.append((word, None))
            continue
        if word == END:
            if not stack or not stack[-1][1]:
                raise ValueError("a closing bracket has no operator, or its operator no arguments.")
            operator, arguments = stack.pop()
            worth = OPERATORS[operator](arguments)
            if stack:
                stack[-1][1].append(worth)
        elif len(word) == 1 and word in "0123456789":
            worth = int(word)
            if stack:
                operator, arguments = stack[-1]
                arguments.append(worth)
                worth = OPERATORS[operator](arguments)
        else:
            raise ValueError(f"{word!r} is not a word of ListOps: {', '.join(NAMES)}, {END} and digits are.")
        read.append((word, worth))
    if not read or stack:
        raise ValueError("the expression is empty or lacks a closing bracket.")
    return read


@dataclass(frozen=True)
class _Shape:
    """The bounds of a tree."""

    min_length: int
    max_length: int
    max_depth: int
    max_args: int


class _TooLongError(Exception):
    """The growing tree is too long to be kept."""


def _trees(rng: random.Random, shape: _Shape) -> Iterator[tuple[str, int]]:
    """Draw trees for ever; yield the words and the value of a tree within the bounds, ("", -1) for any other tree."""
    while True:
        words: list[str] = []
        try:
            value, length = _grow(rng, shape, 1, 0, words)
        except _TooLongError:
            yield "", -1
            continue
        yield (" ".join(words), value) if length > shape.min_length else ("", -1)


def _grow(rng: random.Random, shape: _Shape, depth: int, length: int, words: list[str]) -> tuple[int, int]:
    """Append a subtree's words and return its value and the tree's length so far."""
    if depth >= shape.max_depth or rng.random() > OPERATOR_PROBABILITY:
        if length + 1 >= shape.max_length:
            raise _TooLongError
        digit = rng.randrange(10)
        words.append(str(digit))
        return digit, length + 1
    count = rng.randint(2, shape.max_args)
    operator = NAMES[rng.randrange(4)]
    # Every argument closes a parenthesis that opened before the operator, and the closing bracket does too.
    words.append("( " * (count + 1) + operator)
    values = []
    length += 2  # the operator and its closing bracket
    for _ in range(count):
        value, length = _grow(rng, shape, depth + 1, length, words)
        words.append(")")
        values.append(value)
    words.append(f"{END} )")
    return OPERATORS[operator](values), length


def _without_repeats(trees: Iterator[tuple[str, int]], total: int) -> Iterator[tuple[str, int]]:
    """Yield different trees.

    Raises:
        ValueError: none of a million draws was new.
    """
    seen: set[str] = set()
    in_vain = 0
    while len(seen) < total:
        source, value = next(trees)
        if value < 0 or source in seen:
            in_vain += 1
            if in_vain > 1_000_000:
                raise ValueError(
                    f"{total} different rows are asked for, and after {len(seen)} a million draws gave no other; "
                    "allow more lengths, depths or arguments."
                )
            continue
        in_vain = 0
        seen.add(source)
        yield source, value
