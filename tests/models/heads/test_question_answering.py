"""Answers in a text: their loss, and which positions are none."""

import re
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering

from hf_seqmix import TNNConfig, TNNForQuestionAnswering
from tests.models.suite import perturb

VOCAB = 31


def config(**kwargs: Any) -> TNNConfig:
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "expand_ratio": 1, "rpe_hidden_size": 8}
    return TNNConfig(**{**fields, "hidden_dropout": 0.0, "is_causal": False, **kwargs})


@pytest.mark.parametrize("is_causal", [False, True])
def test_answers_are_found_among_real_tokens_alone(is_causal):
    """A row alone is the reference: its loss, and its scores; an answer at a pad is none."""
    model = perturb(TNNForQuestionAnswering(config(is_causal=is_causal))).eval()
    ids, pads = torch.randint(VOCAB, (2, 6)), torch.zeros(2, 5, dtype=torch.long)
    starts, ends = torch.tensor([1, 2]), torch.tensor([[3], [4]])
    alone = model(ids, start_positions=starts, end_positions=ends)
    for first, parts in ((0, [ids, pads]), (5, [pads, ids])):
        row = torch.cat(parts, dim=1)
        mask = torch.cat([torch.full_like(part, int(part is ids)) for part in parts], dim=1)
        padded = model(row, attention_mask=mask, start_positions=starts + first, end_positions=ends + first)
        torch.testing.assert_close(padded.loss, alone.loss)
        torch.testing.assert_close(padded.start_logits.softmax(1)[:, first : first + 6], alone.start_logits.softmax(1))
        assert (padded.end_logits.softmax(dim=1)[mask == 0] == 0).all()
        pad = torch.full((2,), 8 if first == 0 else 2)
        none = model(row, attention_mask=mask, start_positions=pad, end_positions=pad).loss
        assert none == 0


def test_answers_outside_the_sequence_are_ignored():
    model = perturb(TNNForQuestionAnswering(config())).eval()
    ids = torch.randint(VOCAB, (3, 7))
    loss = [model(ids, start_positions=p, end_positions=p).loss for p in map(torch.tensor, ([3, -1, -5], [3, 7, 99]))]
    torch.testing.assert_close(loss[0], loss[1])
    alone = model(ids[:1], start_positions=torch.tensor([3]), end_positions=torch.tensor([3])).loss
    torch.testing.assert_close(loss[0], alone)
    none = model(ids, start_positions=torch.full((3,), -1), end_positions=torch.full((3,), -1)).loss
    assert none == 0
    none.backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())


def test_the_loss_of_one_side_stays_where_the_other_has_no_answer():
    """Cross entropy is the reference, and the library's head where its loss is a number."""
    model = perturb(TNNForQuestionAnswering(config())).eval()
    bert = BertConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    library = perturb(BertForQuestionAnswering(bert)).eval()
    ids, some, none = torch.randint(VOCAB, (3, 7)), torch.tensor([3, 5, 7]), torch.tensor([7, 99, 7])
    for head in (library, model):  # the model last, whose terms serve below
        scores = head(ids)
        pairs = (scores.start_logits, scores.end_logits)
        start, end = (torch.nn.functional.cross_entropy(x[:2], some[:2]) for x in pairs)
        loss = head(ids, start_positions=some, end_positions=some).loss
        torch.testing.assert_close(loss, (start + end) / 2)
    for given, expected in (((some, none), start), ((none, some), end)):
        loss = model(ids, start_positions=given[0], end_positions=given[1]).loss
        torch.testing.assert_close(loss, expected / 2)
        model.zero_grad()
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        assert model.qa_outputs.weight.grad.any(dim=1).sum() == 1
        # A sum over no answers is a number for the library, too.
        options = {"start_positions": given[0], "end_positions": given[1], "num_items_in_batch": 3}
        reference = model.loss_function(scores.start_logits, scores.end_logits, *given, num_items_in_batch=3)
        torch.testing.assert_close(model(ids, **options).loss, reference)


def test_positions_of_other_integers():
    model = TNNForQuestionAnswering(config()).eval()
    ids, at = torch.randint(VOCAB, (2, 7)), torch.tensor([1, 3])
    expected = model(ids, start_positions=at, end_positions=at).loss
    assert torch.equal(model(ids, start_positions=at.int(), end_positions=at.byte()).loss, expected)


@pytest.mark.parametrize("name", ["start_positions", "end_positions"])
def test_positions_that_are_no_tensor(name):
    given = {"start_positions": torch.tensor([1, 3]), "end_positions": torch.tensor([1, 3])}
    with pytest.raises(TypeError, match=f"{name} is a list; it must be a tensor"):
        TNNForQuestionAnswering(config())(torch.randint(VOCAB, (2, 7)), **{**given, name: [1, 3]})


@pytest.mark.parametrize("name", ["start_positions", "end_positions"])
@pytest.mark.parametrize("shape", [(3,), (2, 2), ()])
def test_another_number_of_positions_than_of_rows(name, shape):
    given = {"start_positions": torch.tensor([1, 3]), "end_positions": torch.tensor([1, 3])}
    given[name] = torch.ones(shape, dtype=torch.long)
    with pytest.raises(ValueError, match=re.escape(f"{name} have shape {shape}, but there are 2 rows")):
        TNNForQuestionAnswering(config())(torch.randint(VOCAB, (2, 7)), **given)


def test_packed_rows_are_refused():
    model = TNNForQuestionAnswering(config()).eval()
    with pytest.raises(ValueError, match=r"several packed sequences.*TNNForQuestionAnswering has one answer"):
        model(torch.randint(VOCAB, (1, 7)), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3]]))
