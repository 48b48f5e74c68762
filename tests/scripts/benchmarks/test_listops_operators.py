"""What is measured of ListOps classifiers by operator."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from hf_seqmix.data import listops, listops_values


@pytest.fixture(scope="module")
def operators(script_module: Callable[[str], ModuleType]) -> Any:
    return script_module("benchmarks.listops_operators")


def table(*rows: tuple[str, int]) -> Dataset:
    return Dataset.from_dict({"Source": [source for source, _ in rows], "Target": [target for _, target in rows]})


def test_expressions_of_one_operator(operators: Any) -> None:
    splits = operators.one_operator(300, seed=1)
    sources = splits["test"]["Source"]
    assert all(source.count("[") == 1 for source in sources)
    assert {operators.outermost(source) for source in sources} == set(operators.OPERATORS)
    digits = [sum(word.isdigit() for word in source.replace("]", " ").split()) for source in sources]
    assert min(digits) == 2 and max(digits) == 10
    assert [listops_values(source)[-1][1] for source in sources] == list(splits["test"]["Target"])
    assert not set(sources) & set(splits["train"]["Source"])


def test_accuracy_of_each_outermost_operator(operators: Any) -> None:
    rows = table(("( ( [SM 9 ) 9 ) ]", 8), ("[MIN 4 [SM 1 2 ] ]", 3), ("[SM 1 1 ]", 2), ("7", 7))
    assert operators.by_operator([8, 3, 5, 7], rows) == {"MIN": (1.0, 1), "SM": (0.5, 2)}


def test_the_rule_knows_the_outermost_operator_alone(operators: Any) -> None:
    train = table(("[MIN 1 [MAX 2 3 ] ]", 1), ("[MIN 1 1 ]", 1), ("[MIN 3 3 ]", 3), ("[MAX 8 9 ]", 9))
    test = table(("[MIN 0 5 ]", 0), ("[MIN 5 1 ]", 1), ("[MAX 9 1 ]", 9), ("[SM 1 2 ]", 3))
    splits = DatasetDict({"train": train, "test": test})
    assert operators.most_frequent_values(splits) == [1, 1, 9, -1]
    assert operators.accuracy_of_outermost(splits) == 0.5


def test_a_sum_is_level_for_the_rule_and_an_extreme_is_not(operators: Any) -> None:
    splits = listops({"train": 3000, "test": 2000}, min_length=16, max_length=65, seed=3)
    scores = operators.by_operator(operators.most_frequent_values(splits), splits["test"])
    assert scores["SM"][0] < 0.15 and min(scores["MIN"][0], scores["MAX"][0]) > 0.4
    shared = {"task": "listops", "model": "rule", "setting": {"data": "d"}, "kind": "baseline"}
    results = operators.operator_results(scores, "outermost", **shared)
    assert [r.get("operator") for r in results] == ["MIN", "MAX", "MED", "SM"]
    assert {r.get("place") for r in results} == {"outermost"} and sum(r.get("examples") for r in results) == 2000
