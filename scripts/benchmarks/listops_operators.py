"""ListOps by operator: how well a classifier computes MIN, MAX, MED (median) and SM (sum modulo ten)."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import torch
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from hf_seqmix.data import listops
from hf_seqmix.training.results import Result

OPERATORS = ("MIN", "MAX", "MED", "SM")
PLACES = ("outermost", "only")
"""Whether an operator is the first of its expression, or the one operator in it."""

ONE_OPERATOR = 1000
"""Expressions of one operator that a model is scored on."""
ROWS_TO_COUNT = 5000
"""Expressions of each kind that the rule learns from."""
TOKENS_PER_BATCH = 32_768

Scores = dict[str, tuple[float, int]]
"""Operator -> accuracy, and number of expressions."""


def outermost(source: str) -> str:
    """Return the name of an expression's first operator; empty for a digit."""
    found = re.search(r"\[(\w+)", source)
    return found[1] if found else ""


def one_operator(rows: int, seed: int) -> datasets.DatasetDict:
    """Draw expressions of one operator and 2 to 10 digits: `test` to score, and `train` for the rule to count."""
    return listops({"train": ROWS_TO_COUNT, "test": rows}, min_length=3, max_length=13, max_depth=2, seed=seed)


def most_frequent_values(splits: datasets.DatasetDict) -> list[int]:
    """Return for each row of `test` the value that is most frequent on `train` for its outermost operator."""
    values: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for source, value in zip(splits["train"]["Source"], splits["train"]["Target"], strict=True):
        values[outermost(source)][value] += 1
    # An operator that `train` does not have gets no digit.
    return [(values[outermost(source)].most_common(1) or [(-1, 0)])[0][0] for source in splits["test"]["Source"]]


def accuracy_of_outermost(splits: datasets.DatasetDict) -> float:
    """Return the accuracy on `test` of guessing a value from the outermost operator alone, counted on `train`."""
    guesses = most_frequent_values(splits)
    return sum(map(int.__eq__, guesses, splits["test"]["Target"])) / len(guesses)


def by_operator(predictions: Sequence[int], rows: datasets.Dataset) -> Scores:
    """Return the accuracy of predictions for each outermost operator that there is."""
    right: defaultdict[str, list[bool]] = defaultdict(list)
    for prediction, source, target in zip(predictions, rows["Source"], rows["Target"], strict=True):
        right[outermost(source)].append(prediction == target)
    return {name: (sum(right[name]) / len(right[name]), len(right[name])) for name in OPERATORS if name in right}


def operator_results(scores: Scores, place: str, **shared: Any) -> list[Result]:
    """Return scores as results of the metric `operator_accuracy`, told apart by the setting `operator`."""
    setting = shared.pop("setting")
    return [
        Result(
            metric="operator_accuracy",
            value=accuracy,
            setting={**setting, "operator": name, "place": place, "examples": examples},
            **shared,
        )
        for name, (accuracy, examples) in scores.items()
    ]


def digit_names(config: Any) -> list[str]:
    """Return the names of a classifier's labels, in the order of its logits.

    Raises:
        ValueError: they are no digits.
    """
    names = [str(config.id2label[index]) for index in range(config.num_labels)]
    if sorted(names) != [str(digit) for digit in range(10)]:
        raise ValueError(f"its labels are called {', '.join(names)}; those of a ListOps classifier are 0 to 9.")
    return names


@torch.inference_mode()
def predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    device: torch.device,
    batch_size: int | None = None,
) -> list[int]:
    """Return the digit that a classifier says for each expression.

    Args:
        model: whose labels are called 0 to 9, in any order; moved to the device.
        tokenizer: of its texts.
        sources: the expressions.
        device: where to compute.
        batch_size: expressions at a time; chosen from their length by default.

    Raises:
        ValueError: the model's labels are no digits.
    """
    config: Any = model.config
    names = digit_names(config)
    module: Any = model.eval()
    module.to(device)
    collator: Any = DataCollatorWithPadding(tokenizer)
    encoded = [tokenizer(source) for source in sources]
    size = batch_size or max(1, TOKENS_PER_BATCH // max(len(row["input_ids"]) for row in encoded))
    digits: list[int] = []
    for start in range(0, len(encoded), size):
        logits = model(**collator(encoded[start : start + size]).to(device)).logits
        digits += [int(names[index]) for index in logits.argmax(dim=-1).tolist()]
    return digits


def score_operators(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: Mapping[str, datasets.DatasetDict],
    device: torch.device,
) -> dict[str, dict[str, Scores]]:
    """Score a classifier, and the rule of the outermost operator beside it.

    Args:
        model: the classifier.
        tokenizer: of its texts.
        splits: place of the operators, of `PLACES` -> expressions to score (`test`), and to count (`train`).
        device: where to compute.

    Returns:
        "model" and "outermost operator" -> place -> scores.
    """
    found: dict[str, dict[str, Scores]] = {"model": {}, "outermost operator": {}}
    for place, rows in splits.items():
        digits = predict(model, tokenizer, rows["test"]["Source"], device)
        found["model"][place] = by_operator(digits, rows["test"])
        found["outermost operator"][place] = by_operator(most_frequent_values(rows), rows["test"])
    return found
