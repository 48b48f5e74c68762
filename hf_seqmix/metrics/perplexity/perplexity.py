"""Perplexity of a language model, per token and per word, from summed negative log-likelihoods."""

from typing import Any

import numpy as np

from hf_seqmix.metrics import base


class Perplexity(base.BaseMetric):
    """Perplexity = exp((sum of negative log-likelihoods in nats) / (number of tokens)).

    Token perplexities compare only between models that share a tokenizer. The word perplexity, exp(sum / number of
    words), compares wherever words are counted alike.

    Args:
        nll (list of float): summed negative log-likelihood of each document, or of each part of one, in nats.
        num_tokens (list of int): tokens that the sum runs over.
        num_words (int, or list of int): words of the same text, in all or per document; omitted: no word perplexity.

    Returns:
        perplexity (float): per token, of all documents together; infinite where the exponential overflows.
        word_perplexity (float): if `num_words` is given.

    Raises:
        ValueError: no documents, lists of different lengths, numbers that are not finite, a negative nll, or a total
            of tokens or words that is not positive.
    """

    columns = {"nll": "number", "num_tokens": "number"}

    def _compute(self, nll: Any, num_tokens: Any, num_words: Any = None) -> dict[str, float]:
        total = base.not_negative(nll, "nll").sum()
        result = {"perplexity": base.exponential(total / base.counted(num_tokens, "num_tokens", "token"))}
        if num_words is not None:
            if np.ndim(num_words) == 1 and len(num_words) != len(nll):
                raise ValueError(
                    f"num_words has {len(num_words)} entries for {len(nll)} of nll; give one each, or a total."
                )
            result["word_perplexity"] = base.exponential(total / base.counted(num_words, "num_words", "word"))
        return result
