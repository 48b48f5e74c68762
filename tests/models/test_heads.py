"""Heads: pooling, problem types, pairs of documents, and losses that accumulate exactly."""

import copy
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForMaskedLM, TNNForQuestionAnswering, TNNForTokenClassification
from hf_seqmix import TNNForSequenceClassification as Classifier
from hf_seqmix.models.pooling import pool
from tests.models.suite import perturb
from tests.tolerances import assert_close

VOCAB = 31


def config(**kwargs: Any) -> TNNConfig:
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "expand_ratio": 1, "rpe_hidden_size": 8}
    return TNNConfig(**{**fields, "hidden_dropout": 0.0, "is_causal": False, **kwargs})


@pytest.mark.parametrize("pooling", ["mean", "last", "first"])
def test_pooling_sees_real_tokens_only(pooling):
    hidden = torch.randn(3, 5, 4, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0]])
    pooled = pool(hidden, mask, pooling)
    for row in range(3):
        real = hidden[row][mask[row].bool()]
        expected = {"mean": real.mean(0), "last": real[-1], "first": real[0]}[pooling]
        torch.testing.assert_close(pooled[row], expected)
    torch.testing.assert_close(pool(hidden, None, pooling), pool(hidden, torch.ones(3, 5), pooling))
    assert pool(hidden, torch.zeros(3, 5), pooling).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_of_a_long_sequence_in_half_precision(dtype):
    hidden = torch.full((1, 20_000, 2), 6.0, dtype=dtype)
    mask = torch.ones(1, 20_000)
    mask[0, :5] = 0
    assert pool(hidden, mask, "mean").tolist() == [[6.0, 6.0]]
    assert pool(hidden, None, "mean").tolist() == [[6.0, 6.0]]


@pytest.mark.parametrize("pooling", ["mean", "last", "first"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_padded_row_is_classified_as_the_row_alone(pooling, norm_position):
    model = perturb(Classifier(config(classifier_pooling=pooling, norm_position=norm_position))).double().eval()
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 1, 0]])
    ids = torch.randint(VOCAB, mask.shape)
    logits = model(ids, attention_mask=mask).logits
    for row in range(2):
        assert_close(logits[row], model(ids[row][mask[row].bool()][None]).logits[0])


def test_batch_norm_is_exact_for_padded_rows_in_evaluation():
    model = perturb(Classifier(config(norm_type="batch"))).double()
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 1, 0]])
    ids = torch.randint(VOCAB, mask.shape)
    model(ids, attention_mask=mask)  # moves the running statistics
    model.eval()
    logits = model(ids, attention_mask=mask).logits
    for row in range(2):
        assert_close(logits[row], model(ids[row][mask[row].bool()][None]).logits[0])


@pytest.mark.parametrize(
    ("labels", "fields", "loss"),
    [
        (torch.tensor([0, 2]), {"num_labels": 3}, torch.nn.functional.cross_entropy),
        (torch.tensor([1.5, -2.0]), {"num_labels": 1}, lambda a, b: torch.nn.functional.mse_loss(a[:, 0], b)),
        (torch.tensor([1, 3]), {"num_labels": 1}, lambda a, b: torch.nn.functional.mse_loss(a[:, 0], b.to(a.dtype))),
        (
            torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]),
            {"num_labels": 3},
            torch.nn.functional.binary_cross_entropy_with_logits,
        ),
        (
            torch.tensor([[1, 0], [0, 1]]),
            {"num_labels": 2, "problem_type": "multi_label_classification"},
            lambda a, b: torch.nn.functional.binary_cross_entropy_with_logits(a, b.to(a.dtype)),
        ),
        (
            torch.tensor([[0.5, 2.0], [1.0, -1.0]]),
            {"num_labels": 2, "problem_type": "regression"},
            torch.nn.functional.mse_loss,
        ),
    ],
)
def test_problem_types(labels, fields, loss):
    model = perturb(Classifier(config(**fields))).eval()
    out = model(torch.randint(VOCAB, (2, 6)), labels=labels)
    torch.testing.assert_close(out.loss, loss(out.logits, labels))


def test_pairs_of_documents():
    model = perturb(Classifier(config(num_segments=2, num_labels=2))).double().eval()
    ids = torch.randint(VOCAB, (3, 2, 7))
    mask = torch.ones(3, 2, 7, dtype=torch.long)
    mask[0, 1, 4:] = 0
    logits = model(ids, attention_mask=mask).logits
    head = model.classifier
    for row in range(3):
        a, b = (model.model(ids[row, i][mask[row, i].bool()][None])[0].mean(dim=1) for i in range(2))
        features = torch.cat([a, b, a - b, a * b], dim=-1)
        expected = head.out_proj(torch.nn.functional.gelu(head.dense(features)))
        assert_close(logits[row], expected[0])
    with pytest.raises(ValueError, match=r"num_segments is 2, so inputs must be \(batch, 2, length\), got \(3, 7\)"):
        model(ids[:, 0])


def test_labels_that_are_ignored():
    model = perturb(TNNForTokenClassification(config(num_labels=2))).eval()
    ids = torch.randint(VOCAB, (2, 6))
    labels = torch.tensor([[0, 1, -100, -100, 1, 0]] * 2)
    out = model(ids, labels=labels)
    kept = labels != -100
    torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(out.logits[kept], labels[kept]))


HEADS = {
    "causal": (TNNForCausalLM, {"is_causal": True}),
    "masked": (TNNForMaskedLM, {}),
    "single label": (Classifier, {"num_labels": 3}),
    "multi label": (Classifier, {"num_labels": 3, "problem_type": "multi_label_classification"}),
    "regression": (Classifier, {"num_labels": 1}),
    "token": (TNNForTokenClassification, {"num_labels": 2}),
    "question answering": (TNNForQuestionAnswering, {}),
}


def examples(head: str) -> list[dict[str, Any]]:
    """Eight rows whose numbers of counted labels differ, so that a mean of means is not the mean."""
    rows = []
    for row in range(8):
        ids = torch.randint(VOCAB, (10,))
        example: dict[str, Any] = {"input_ids": ids.tolist()}
        uneven = torch.where(torch.arange(10) < 1 + row, ids, -100)
        if head in ("causal", "masked"):
            example["labels"] = uneven.tolist()
        elif head == "token":
            example["labels"] = torch.where(uneven == -100, -100, ids % 2).tolist()
        elif head == "single label":
            example["labels"] = row % 3
        elif head == "multi label":
            example["labels"] = [float((row >> i) & 1) for i in range(3)]
        elif head == "regression":
            example["labels"] = float(row)
        else:
            example |= {"start_positions": row, "end_positions": row + 1}
        rows.append(example)
    return rows


@pytest.mark.parametrize("head", HEADS)
def test_four_accumulated_batches_equal_one_large_batch(head, tmp_path):
    model_class, fields = HEADS[head]
    model = perturb(model_class(config(**fields)))
    data = Dataset.from_list(examples(head))
    weights = []
    for batch_size, accumulation in ((8, 1), (2, 4)):
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            learning_rate=0.5,
            optim="sgd",
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trained = copy.deepcopy(model)
        Trainer(trained, arguments, train_dataset=data).train()
        weights.append(torch.cat([p.detach().flatten() for p in trained.parameters()]))
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    step = (weights[0] - start).norm()
    assert step > 1e-3
    assert (weights[1] - weights[0]).norm() < 1e-4 * step
