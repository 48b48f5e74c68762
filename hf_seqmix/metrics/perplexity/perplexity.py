"""Perplexity of a language model, per token and per word, from summed negative log-likelihoods."""

import math
from typing import Any

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
Perplexity = exp((sum of negative log-likelihoods in nats) / (number of tokens)). Token perplexities compare only between
models that share a tokenizer; the word perplexity, exp(sum / number of words), compares wherever words are counted alike.
"""

_INPUTS = """
Args:
    nll (list of float): summed negative log-likelihood of each document, or of each part of one, in nats.
    num_tokens (list of int): tokens that the sum runs over.
    num_words (int, or list of int): words of the same text, in all or per document; omitted: no word perplexity.
Returns:
    perplexity (float): per token, of all documents together; infinite where the exponential overflows.
    word_perplexity (float): if `num_words` is given.
Raises:
    ValueError: no documents, lists of different lengths, numbers that are not finite, a negative nll, or a total of
        tokens or words that is not positive.
"""


class Perplexity(evaluate.Metric):
    """Token and word perplexity from summed negative log-likelihoods and counts."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"nll": datasets.Value("float64"), "num_tokens": datasets.Value("float64")}),
        )

    def _compute(self, nll: Any, num_tokens: Any, num_words: Any = None) -> dict[str, float]:
        total = _column(nll, "nll").sum()
        result = {"perplexity": _exp(total / _count(num_tokens, "num_tokens"))}
        if num_words is not None:
            if np.ndim(num_words) == 1 and len(num_words) != len(nll):
                raise ValueError(
                    f"num_words has {len(num_words)} entries for {len(nll)} of nll; give one each, or a total."
                )
            result["word_perplexity"] = _exp(total / _count(num_words, "num_words"))
        return result


def _count(values: Any, name: str) -> float:
    counts = _column(np.atleast_1d(values), name)
    if np.any(counts != np.floor(counts)):
        raise ValueError(f"{name} must be whole numbers.")
    if counts.sum() <= 0:
        raise ValueError(f"{name} adds up to {counts.sum():.0f}; there must be at least one.")
    return float(counts.sum())


def _column(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty: give at least one document.")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} has NaN, infinite or missing numbers; the model's loss is not usable.")
    if np.any(array < 0):
        raise ValueError(f"{name} has a negative number, {array.min()}; sums of nll and counts are never below zero.")
    return array


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
