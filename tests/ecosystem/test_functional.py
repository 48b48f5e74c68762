"""Transforms of `torch.func` over whole models: gradients a sample, and derivatives along a direction."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.ecosystem.tiny import EVERY, tiny_model
from tests.tolerances import assert_close

pytestmark = pytest.mark.ecosystem

Parameters = dict[str, Tensor]


def make(family: str) -> tuple[Any, Parameters, Tensor, Tensor]:
    """Return a loss of (parameters, one row of ids, its label), parameters, and three rows with their labels."""
    model = tiny_model(family, "ForSequenceClassification").double().eval()

    def loss(parameters: Parameters, ids: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, parameters, (ids[None],)).logits
        return nn.functional.cross_entropy(logits, label[None])

    parameters = {name: x.detach() for name, x in model.named_parameters()}
    return loss, parameters, torch.randint(300, (3, 13)), torch.tensor([0, 1, 1])


def by_autograd(loss: Any, parameters: Parameters, ids: Tensor, label: Tensor) -> Parameters:
    leaves = {name: x.clone().requires_grad_() for name, x in parameters.items()}
    found = torch.autograd.grad(loss(leaves, ids, label), list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's attention, row by row
@pytest.mark.parametrize("family", EVERY)
def test_gradients_a_sample(family: str) -> None:
    loss, parameters, ids, labels = make(family)
    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, ids, labels)
    for place in range(len(ids)):
        expected = by_autograd(loss, parameters, ids[place], labels[place])
        for name, exact in expected.items():
            assert_close(found[name][place], exact, factor=100)


@pytest.mark.parametrize("family", EVERY)
def test_derivatives_along_a_direction(family: str) -> None:
    loss, parameters, ids, labels = make(family)
    direction = {name: torch.randn_like(x) for name, x in parameters.items()}
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has no forward mode
        value, along = jvp(lambda p: loss(p, ids[0], labels[0]), (parameters,), (direction,))
    expected = by_autograd(loss, parameters, ids[0], labels[0])
    assert_close(value, loss(parameters, ids[0], labels[0]), factor=100)
    assert_close(along, sum((expected[name] * x).sum() for name, x in direction.items()), factor=100)
