"""Products with the Hessian of a language model: right, or refused, never without some terms."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from hf_seqmix.models.heads import copy_head
from tests.ecosystem.tiny import CAUSAL, tiny_model

IDS = torch.arange(22).view(2, 11) * 7 % 31
STEP = 1e-4


def gradient(model, create_graph=False):
    loss = model(IDS, labels=IDS).loss
    return torch.autograd.grad(loss, model.get_input_embeddings().weight, create_graph=create_graph)[0]


@pytest.fixture(autouse=True)
def attention_by_its_formula():
    """Have attention computed by its formula; torch refuses second derivatives of its fused form."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("model_type", CAUSAL)
def test_a_product_with_the_hessian(model_type, copies):
    model = tiny_model(model_type, copy_head=copies).double()
    weight = model.get_input_embeddings().weight
    direction = torch.randn(weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(0))
    slope = (gradient(model, create_graph=True) * direction).sum()
    if copies or model_type == "ipa":
        with pytest.raises(RuntimeError, match="second derivatives are not implemented"):
            torch.autograd.grad(slope, weight)
        return
    (product,) = torch.autograd.grad(slope, weight)
    ends = []
    for step in (STEP, -2 * STEP):
        with torch.no_grad():
            weight.add_(step * direction)
        ends.append(gradient(model))
    expected = (ends[0] - ends[1]) / (2 * STEP)
    assert (product - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize(("model_type", "fields"), [("ipa", {}), ("tnn", {"copy_head": True})])
def test_first_derivatives_with_a_graph_and_checkpoints(model_type, fields, monkeypatch):
    """A graph of the gradients may be asked for where only the gradients are wanted."""
    model = tiny_model(model_type, **fields).double().train()
    expected = gradient(model)
    monkeypatch.setattr(copy_head, "_BYTES", 1)  # blocks of one query, which are checkpoints
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    torch.testing.assert_close(gradient(model, create_graph=True), expected)
