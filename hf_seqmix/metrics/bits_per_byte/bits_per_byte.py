"""Bits per byte of a language model: comparable whatever the tokenizer."""

import math
from typing import Any

from hf_seqmix.metrics import base


class BitsPerByte(base.BaseMetric):
    """Bits per byte = (sum of negative log-likelihoods in nats) / (ln 2 * number of UTF-8 bytes of the scored text).

    The sum runs over all tokens of the text, and the bytes are those of the text itself, so that models with different
    tokenizers compare. A mean of per-document ratios, or a number of tokens in the place of the bytes, would not
    compare.

    Args:
        nll (list of float): summed negative log-likelihood of each document, or of each part of one, in nats.
        num_bytes (list of int): UTF-8 bytes of the same document or part, `len(text.encode("utf-8"))`.

    Returns:
        bits_per_byte (float): of all documents together, each weighted by its bytes.

    Raises:
        ValueError: no documents, lists of different lengths, numbers that are not finite, a negative nll, or a total
            of bytes that is not positive.
    """

    columns = {"nll": "number", "num_bytes": "number"}

    def _compute(self, nll: Any, num_bytes: Any) -> dict[str, float]:
        nats = base.not_negative(nll, "nll").sum()
        return {"bits_per_byte": float(nats / (math.log(2) * base.counted(num_bytes, "num_bytes", "byte")))}
