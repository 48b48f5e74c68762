"""The loss of a model with a copy head, which needs no logits of the whole vocabulary, and its gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from hf_seqmix import (
    PolyTransformerConfig,
    PolyTransformerForCausalLM,
    TNNConfig,
    TNNForCausalLM,
)
from tests.models.copying import FORMS, make
from tests.models.suite import PADS
from tests.tolerances import assert_close, relative_error


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_blocks_in_a_model_have_the_same_gradients(monkeypatch, form):
    model, ids = make(["tnn"], **form), torch.randint(1, 9, (2, 9))
    model(ids, labels=ids).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    monkeypatch.setattr("hf_seqmix.models.heads.copy_head._BYTES", 1)
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, expected[name], factor=10)


@pytest.mark.parametrize("memory", [None, 1], ids=["whole", "in blocks"])
@pytest.mark.parametrize("given", ["labels", "shift_labels", "items", "packed"])
@pytest.mark.parametrize("mixers", [["tnn", "attention"], ["poly_transformer"]], ids=str)
@pytest.mark.parametrize("form", FORMS[::2], ids=str)
@pytest.mark.one_in(2)
def test_the_loss_without_logits_is_that_of_the_logits(monkeypatch, form, mixers, given, memory):
    """Loss and gradients, with pads and tokens that are not counted, in any form of the labels."""
    if memory is not None:
        monkeypatch.setattr("hf_seqmix.models.heads.copy_head._BYTES", memory)
    model = make(mixers, hidden_dropout=0.0, **form).train()
    mask = torch.tensor([*PADS["inside"], *PADS["left"], *PADS["right"]])
    ids = torch.randint(1, 9, mask.shape)
    labels = torch.where((mask == 1) & (torch.rand(mask.shape) < 0.8), ids, -100)
    call = {
        "labels": {"input_ids": ids, "attention_mask": mask, "labels": labels},
        "shift_labels": {"input_ids": ids, "attention_mask": mask, "shift_labels": labels.roll(-1, 1)},
        "items": {"input_ids": ids, "attention_mask": mask, "labels": labels, "num_items_in_batch": torch.tensor(70)},
        "packed": {
            "input_ids": ids[:1],
            "position_ids": torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3, 4]]),
            "labels": ids[:1],
        },
    }[given]
    found = []
    for skip in (False, True):
        model.zero_grad()
        out = model(**call, skip_logits=skip)
        assert (out.logits is None) == skip
        out.loss.backward()
        found.append((out.loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (loss, gradients), (loss_alone, gradients_alone) = found
    # The library takes losses in float32.
    assert_close(loss_alone.float(), loss.float())
    assert gradients.keys() == gradients_alone.keys()
    for name, gradient in gradients.items():
        assert relative_error(gradient_of := gradients_alone[name], gradient) < 1e-4, (name, gradient_of)


@pytest.mark.parametrize("cache_class", [DynamicCache, StaticCache])
@pytest.mark.parametrize("form", FORMS[::2], ids=str)
def test_the_loss_without_logits_after_earlier_tokens(form, cache_class):
    """A preallocated cache has places after the last token, which no query sees."""
    model, ids = make(["tnn"], **form), torch.randint(1, 9, (2, 9))
    found = []
    for skip in (False, True):
        options = {} if cache_class is DynamicCache else {"max_cache_len": 14}
        cache = cache_class(config=model.config, **options)
        model(ids[:, :4], past_key_values=cache)
        found.append(model(ids[:, 4:], labels=ids[:, 4:], past_key_values=cache, skip_logits=skip).loss)
    assert_close(found[1].float(), found[0].float())


def test_gradients_of_a_function_in_blocks(monkeypatch):
    """Transforms of torch.func take no checkpoints."""
    monkeypatch.setattr("hf_seqmix.models.heads.copy_head._BYTES", 1)
    model, ids = make(["tnn"]), torch.randint(1, 9, (2, 9))
    parameters = dict(model.named_parameters())
    for skip in (False, True):

        def loss(values, skip=skip):
            call = {"labels": ids, "skip_logits": skip, "use_cache": False}
            return torch.func.functional_call(model, values, (ids,), call).loss

        found = torch.func.grad(loss)(parameters)
        model.zero_grad()
        loss(parameters).backward()
        assert relative_error(found["copy_head.q_proj.weight"], model.copy_head.q_proj.weight.grad) < 1e-4


@pytest.mark.parametrize("items", [None, torch.tensor(40)])
def test_what_mixers_add_is_in_the_loss_without_logits(items):
    config = PolyTransformerConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, degree_form="soft",
        degree_penalty=7.0, hidden_dropout=0.0, copy_head=True,
    )  # fmt: skip
    model = PolyTransformerForCausalLM(config).train()
    ids = torch.randint(1, 9, (2, 9))
    options = {} if items is None else {"num_items_in_batch": items}
    losses = [model(ids, labels=ids, skip_logits=skip, **options).loss for skip in (False, True)]
    assert_close(losses[1], losses[0], factor=10)
    assert relative_error(losses[0], model.eval()(ids, labels=ids, **options).loss) > 1e-3


def test_the_loss_without_logits_compiled():
    torch._dynamo.reset()
    config = TNNConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, rpe_hidden_size=8, copy_head=True)
    model, ids = TNNForCausalLM(config).eval(), torch.randint(1, 9, (2, 9))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    found = compiled(ids, labels=ids, skip_logits=True, use_cache=False)
    assert found.logits is None
    assert_close(found.loss, model(ids, labels=ids).loss, factor=10)


def test_shifted_labels_of_another_shape_are_refused():
    model, ids = make(["tnn"]), torch.randint(1, 9, (2, 9))
    for labels in (ids.flatten(), ids[:, 1:]):
        with pytest.raises(ValueError, match=r"with skip_logits it must be that of the input, .2, 9.. Give a label"):
            model(ids, shift_labels=labels, skip_logits=True)


def test_logits_are_skipped_only_where_the_loss_is_the_librarys():
    ids = torch.randint(1, 9, (2, 9))
    for copy_head in (True, False):
        config = TNNConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, hidden_dropout=0.0, copy_head=copy_head)
        model = TNNForCausalLM(config)
        assert model(ids, skip_logits=True).logits.shape == (2, 9, 31)  # no labels
        out, whole = model(ids, labels=ids, skip_logits=True), model(ids, labels=ids)
        assert out.logits is None
        assert_close(out.loss, whole.loss, factor=10)
        model.loss_function = lambda logits, labels, **_: logits.square().mean()
        own = model(ids, labels=ids, skip_logits=True)
        assert_close(own.loss, own.logits.square().mean())


class Tempered(TNNForCausalLM):
    def compute_logits(self, *args: Any, **kwargs: Any) -> Tensor:
        return 2 * super().compute_logits(*args, **kwargs)


class Squared(TNNForCausalLM):
    @property
    def loss_function(self) -> Any:
        return lambda logits, labels, **_: logits.square().mean()


@pytest.mark.parametrize("model_class", [Tempered, Squared])
def test_logits_of_a_subclass_are_not_passed_over(model_class):
    model = model_class(
        TNNConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, hidden_dropout=0.0, copy_head=True)
    )
    ids = torch.randint(1, 9, (2, 9))
    assert torch.equal(model(ids, labels=ids, skip_logits=True).loss, model(ids, labels=ids).loss)
