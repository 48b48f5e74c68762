"""Held-out figures of a language model, exact over blocks of unequal numbers of predicted tokens."""

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction

from .._labels import IGNORED_LABEL
from .spelling import allowed_names

__all__ = ["LOWER_IS_BETTER", "METRIC_KEYS", "block_scores", "check_best_metric", "corpus_metrics"]

# What a metric calls its number, where that is not its own name.
METRIC_KEYS = {"pearson": "pearsonr", "spearman": "spearmanr", "squad": "f1"}

LOWER_IS_BETTER = ("bits_per_byte", "mse", "perplexity")
"""Numbers of which less is better, although their names do not end in "loss", which is how the library tells."""


def check_best_metric(name: str | None, known: Collection[str]) -> None:
    """Refuse a number that no evaluation gives, before training, as what the best model is chosen by.

    Args:
        name: `metric_for_best_model`, with or without "eval_"; None for none.
        known: numbers that an evaluation gives besides the loss.

    Raises:
        ValueError: there is no such number.
    """
    allowed = ["loss", *known]
    if name is not None and name.removeprefix("eval_") not in allowed:
        raise ValueError(
            f"--metric-for-best-model is {name}, which no evaluation gives; {allowed_names([name], allowed)}"
        )


def block_scores(
    logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor, *, causal: bool = True
) -> torch.Tensor:
    r"""Return the sum of $-\ln p$, the number right and the number of the predicted tokens of each block.

    Meant as `preprocess_logits_for_metrics` of a `Trainer`: three numbers a block are gathered instead of the logits.

    Args:
        logits (`(batch, length, vocabulary)`): the model's; of a tuple, the first entry.
        labels (`(batch, length)`): -100 where nothing is predicted; a causal model's logits at t predict the label at
            t + 1.
        causal: whether the model is causal.

    Returns:
        `(batch, 3)`, float32, in nats and counts.
    """
    if isinstance(logits, tuple):
        logits = logits[0]
    if causal:
        logits, labels = logits[:, :-1], labels[:, 1:]
    scores = []
    # One block at a time: float32 log-probabilities of a whole batch would double the peak memory.
    for block, label in zip(logits, labels, strict=True):
        predicted = label != IGNORED_LABEL
        block, label = block[predicted].float(), label[predicted]
        nll = torch.nn.functional.cross_entropy(block, label, reduction="sum")
        right = (block.argmax(dim=-1) == label).sum()
        scores.append(torch.stack([nll, right.to(nll.dtype), predicted.sum().to(nll.dtype)]))
    return torch.stack(scores)


def corpus_metrics(num_bytes: int | None = None) -> Callable[[EvalPrediction], dict[str, Any]]:
    r"""Return a `compute_metrics` for a `Trainer` that sums [`block_scores`] over the corpus.

    Gives `token_loss` (nats a predicted token), `perplexity` $= e^{\text{loss}}$, `token_accuracy`, `num_tokens`, and
    with `num_bytes` $B$, the UTF-8 bytes of the text that was predicted, `bits_per_byte` $= \sum -\log_2 p \,/\, B$.
    """

    def compute(prediction: EvalPrediction) -> dict[str, Any]:
        nll, right, num_tokens = np.asarray(prediction.predictions, dtype=np.float64).sum(axis=0).tolist()
        if not num_tokens:
            raise ValueError("no token is predicted, all labels are -100: give a longer text, or mask more of it.")
        with np.errstate(over="ignore"):  # infinite for a model that has exploded
            perplexity = float(np.exp(nll / num_tokens))
        metrics = {
            "token_loss": nll / num_tokens,
            "perplexity": perplexity,
            "token_accuracy": right / num_tokens,
            "num_tokens": int(num_tokens),
        }
        if num_bytes is not None:
            metrics |= {"bits_per_byte": nll / math.log(2) / num_bytes, "num_bytes": num_bytes}
        return metrics

    return compute
