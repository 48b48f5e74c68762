"""Classifiers: padded rows, problem types, pairs of documents, labels that are ignored."""

import math
from typing import Any

import pytest
import torch

from hf_seqmix import (
    PolyTransformerConfig,
    PolyTransformerForTokenClassification,
    TNNConfig,
    TNNForTokenClassification,
)
from hf_seqmix import TNNForSequenceClassification as Classifier
from tests.models.suite import perturb
from tests.tolerances import assert_close

VOCAB = 31


def config(**kwargs: Any) -> TNNConfig:
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "expand_ratio": 1, "rpe_hidden_size": 8}
    return TNNConfig(**{**fields, "hidden_dropout": 0.0, "is_causal": False, **kwargs})


@pytest.mark.parametrize("pooling", ["mean", "last", "first"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_padded_row_is_classified_as_the_row_alone(pooling, norm_position):
    model = perturb(Classifier(config(classifier_pooling=pooling, norm_position=norm_position))).double().eval()
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 1, 0]])
    ids = torch.randint(VOCAB, mask.shape)
    logits = model(ids, attention_mask=mask).logits
    for row in range(2):
        assert_close(logits[row], model(ids[row][mask[row].bool()][None]).logits[0])


def test_without_a_mask_the_last_token_is_none_of_the_pads():
    model = perturb(Classifier(config(classifier_pooling="last", is_causal=True, pad_token_id=0))).double().eval()
    ids = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 5, 6, 7], [3, 0, 4, 0, 0]])
    logits = model(ids).logits
    for row, length in enumerate((3, 5, 3)):
        assert_close(logits[row], model(ids[row : row + 1, :length]).logits[0])
    assert not torch.equal(logits[0], model(ids, attention_mask=torch.ones_like(ids)).logits[0])


PACKED = {
    "positions": {"position_ids": torch.tensor([[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]])},
    "lengths": {"cu_seq_lens_q": torch.tensor([0, 5, 7, 10])},
    "numbers": {"seq_idx": torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]])},
}


@pytest.mark.parametrize("kind", PACKED)
def test_packed_rows_are_refused_unless_all_but_one_sequence_are_pads(kind):
    model, ids = perturb(Classifier(config())).double().eval(), torch.randint(VOCAB, (2, 5))
    with pytest.raises(ValueError, match=r"several packed sequences.*TNNForSequenceClassification has one answer"):
        model(ids, **PACKED[kind])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    assert_close(model(ids, attention_mask=mask, **PACKED[kind]).logits, model(ids, attention_mask=mask).logits)
    whole = {"position_ids": torch.arange(5)[None], "cu_seq_lens_q": torch.tensor([0, 5, 10])}
    assert_close(model(ids, **whole).logits, model(ids).logits)


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


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_several_labels_have_the_same_loss_in_parts_of_a_batch(problem):
    model = perturb(Classifier(config(num_labels=3, problem_type=problem))).double().eval()
    ids, labels = torch.randint(VOCAB, (5, 6)), torch.rand(5, 3, dtype=torch.float64)
    parts = [model(ids[s], labels=labels[s], num_items_in_batch=labels.numel()).loss for s in (slice(2), slice(2, 5))]
    assert_close(sum(parts), model(ids, labels=labels).loss)


@pytest.mark.parametrize(
    ("num_labels", "problem", "shape"),
    [
        (3, "regression", (3,)),
        (3, "regression", (2, 1)),
        (1, "regression", (3,)),
        (3, "multi_label_classification", (2,)),
        (3, None, (2, 4)),
    ],
)
def test_numbers_that_do_not_fit_are_refused(num_labels, problem, shape):
    model = Classifier(config(num_labels=num_labels, problem_type=problem))
    given = rf"labels have shape \({str(shape)[1:-1]}\), but the model returns \(2, {num_labels}\)"
    with pytest.raises(ValueError, match=given):
        model(torch.randint(VOCAB, (2, 5)), labels=torch.ones(shape))


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_ids_of_classes_that_are_no_integers_are_refused(shape):
    model = Classifier(config(num_labels=3))
    with pytest.raises(
        TypeError, match=r"ids of classes are integers: give labels.long\(\), or, .* of shape \(2, 3\)"
    ):
        model(torch.randint(VOCAB, (2, 5)), labels=torch.ones(shape))


@pytest.mark.parametrize("wrong", [2.0, -1.0, -100.0, float("nan")])
@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
def test_several_labels_outside_0_to_1_are_refused(wrong, problem):
    model = Classifier(config(num_labels=3, problem_type=problem))
    ids, labels = torch.randint(VOCAB, (2, 5)), torch.tensor([[0.0, 1.0, 0.25], [0.0, 0.0, 1.0]])
    assert model(ids, labels=labels).loss.isfinite()
    labels[1, 1] = wrong
    with pytest.raises(ValueError, match=r"labels run from .* of several classes at once each is 0 or 1"):
        model(ids, labels=labels)


def test_zeros_and_ones_as_integers_are_explained():
    with pytest.raises(ValueError, match="for several classes at once, zeros and ones as floating-point"):
        Classifier(config(num_labels=3))(torch.randint(VOCAB, (2, 5)), labels=torch.tensor([[0, 1, 1], [1, 0, 0]]))


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
    wanted = r"num_segments is 2, so {} must be \(batch, 2, length\), got \({}, 7\)"
    for name, wrong in (("input_ids", ids[:, 0]), ("attention_mask", mask[:, 0]), ("position_ids", ids[:1, 0])):
        with pytest.raises(ValueError, match=wanted.format(name, len(wrong))):
            model(**{"input_ids": ids, name: wrong})
    with pytest.raises(TypeError, match="attention_mask is a list; it must be a tensor"):
        model(ids, attention_mask=mask.tolist())


def test_labels_that_are_ignored():
    model = perturb(TNNForTokenClassification(config(num_labels=2))).eval()
    ids = torch.randint(VOCAB, (2, 6))
    labels = torch.tensor([[0, 1, -100, -100, 1, 0]] * 2)
    out = model(ids, labels=labels)
    kept = labels != -100
    torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(out.logits[kept], labels[kept]))


@pytest.mark.parametrize("num_labels", [1, 3])
def test_a_vector_for_each_token(num_labels):
    model = (
        perturb(TNNForTokenClassification(config(num_labels=num_labels, problem_type="regression"))).double().eval()
    )
    inputs = torch.randn(2, 6, 16, dtype=torch.float64)  # continuous
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    labels = torch.randn(2, 6, num_labels, dtype=torch.float64)
    labels[mask == 0] = float("nan")
    out = model(inputs_embeds=inputs, attention_mask=mask, labels=labels)
    real = mask.bool()
    assert_close(out.loss, (out.logits[real] - labels[real]).square().mean())
    out.loss.backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    items = 4 * labels[real].numel()  # of four such batches
    part = model(inputs_embeds=inputs, attention_mask=mask, labels=labels, num_items_in_batch=items).loss
    assert_close(4 * part, out.loss)
    if num_labels == 1:
        assert_close(model(inputs_embeds=inputs, attention_mask=mask, labels=labels.squeeze(-1)).loss, out.loss)
    # As the Trainer has them: pads and what is not to be learned are -100, and all others are counted.
    labels[mask == 0] = -100
    labels[1, 2] = -100
    real = mask.bool()
    real[1, 2] = False
    expected = (out.logits[real] - labels[real]).square().mean()
    items = (labels != -100).sum()
    for given in ({"attention_mask": mask}, {"attention_mask": mask, "num_items_in_batch": items}):
        assert_close(model(inputs_embeds=inputs, labels=labels, **given).loss, expected)
    with pytest.raises(ValueError, match=r"labels have shape \(2, 5, \d\), but the model returns \(2, 6, \d\)"):
        model(inputs_embeds=inputs, labels=labels[:, 1:])


def test_soft_degrees_count_in_the_loss_of_a_regression():
    fields = {"vocab_size": 1, "hidden_size": 16, "num_hidden_layers": 1, "num_labels": 1, "num_attention_heads": 2}
    soft = {"degree": 4, "degree_form": "soft", "degree_penalty": 2.0, "hidden_dropout": 0.0}
    model = PolyTransformerForTokenClassification(
        PolyTransformerConfig(problem_type="regression", **soft, **fields)
    ).train()
    batch = {"inputs_embeds": torch.randn(2, 5, 16), "labels": torch.randn(2, 5)}
    in_training, without = model(**batch).loss, model.eval()(**batch).loss
    torch.testing.assert_close(in_training - without, 2 * (model.model.layers[0].mixer.mean_degree - math.e) ** 2)
