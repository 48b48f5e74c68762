"""Corpus figures against sums done by hand."""

import math

import numpy as np
import pytest
import torch
from transformers import EvalPrediction

from hf_seqmix.training import block_scores, corpus_metrics


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_block_scores(causal: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 7).to(dtype)
    labels = torch.randint(0, 7, (3, 5))
    labels[1, 2:] = -100
    labels[2] = -100
    scores = block_scores(logits, labels, causal=causal)
    shift = 1 if causal else 0
    for row in range(3):
        nll, right, count = 0.0, 0, 0
        for t in range(shift, 5):
            label = labels[row, t].item()
            if label != -100:
                logp = logits[row, t - shift].double().log_softmax(-1)
                nll -= logp[label].item()
                right += int(logp.argmax() == label)
                count += 1
        assert scores[row].tolist() == pytest.approx([nll, right, count], abs=1e-5)
    torch.testing.assert_close(block_scores((logits, "cache"), labels, causal=causal), scores)


def test_corpus_metrics_weigh_tokens_not_blocks() -> None:
    scores = np.array([[8.0, 1, 4], [1.0, 1, 1]])
    metrics = corpus_metrics(num_bytes=10)(EvalPrediction(predictions=scores, label_ids=None))
    assert metrics == pytest.approx(
        {
            "token_loss": 9 / 5,
            "perplexity": math.exp(9 / 5),
            "token_accuracy": 2 / 5,
            "num_tokens": 5,
            "bits_per_byte": 9 / math.log(2) / 10,
            "num_bytes": 10,
        }
    )
    assert "bits_per_byte" not in corpus_metrics()(EvalPrediction(predictions=scores, label_ids=None))


def test_a_uniform_model_of_bytes_needs_eight_bits() -> None:
    labels = torch.randint(0, 256, (4, 9))
    scores = block_scores(torch.zeros(4, 9, 256), labels)
    metrics = corpus_metrics(num_bytes=4 * 8)(EvalPrediction(predictions=scores.numpy(), label_ids=None))
    assert metrics["bits_per_byte"] == pytest.approx(8, rel=1e-6)


def test_a_split_in_which_nothing_is_predicted_is_refused() -> None:
    with pytest.raises(ValueError, match="no token is predicted, all labels are -100"):
        corpus_metrics()(EvalPrediction(predictions=np.zeros((2, 3)), label_ids=None))
