"""Bits per byte of a language model: comparable whatever the tokenizer."""

import math
from typing import Any

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
Bits per byte = (sum of negative log-likelihoods in nats) / (ln 2 * number of UTF-8 bytes of the scored text). The sum
runs over all tokens of the text and the bytes are those of the text itself, so models with different tokenizers compare;
a mean of per-document ratios, or a number of tokens in the place of the bytes, would not.
"""

_INPUTS = """
Args:
    nll (list of float): summed negative log-likelihood of each document, or of each part of one, in nats.
    num_bytes (list of int): UTF-8 bytes of the same document or part, `len(text.encode("utf-8"))`.
Returns:
    bits_per_byte (float): of all documents together, each weighted by its bytes.
Raises:
    ValueError: no documents, lists of different lengths, numbers that are not finite, a negative nll, or a total of
        bytes that is not positive.
"""


class BitsPerByte(evaluate.Metric):
    """Bits per byte from summed negative log-likelihoods and byte counts."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"nll": datasets.Value("float64"), "num_bytes": datasets.Value("float64")}),
        )

    def _compute(self, nll: Any, num_bytes: Any) -> dict[str, float]:
        nats, counts = _column(nll, "nll"), _column(num_bytes, "num_bytes")
        if np.any(counts != np.floor(counts)):
            raise ValueError("num_bytes must be whole numbers of bytes.")
        total = counts.sum()
        if total <= 0:
            raise ValueError(f"num_bytes adds up to {total:.0f}; there must be at least one byte of text.")
        return {"bits_per_byte": float(nats.sum() / (math.log(2) * total))}


def _column(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty: give at least one document.")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} has NaN, infinite or missing numbers; the model's loss is not usable.")
    if np.any(array < 0):
        raise ValueError(f"{name} has a negative number, {array.min()}; sums of nll and counts are never below zero.")
    return array
