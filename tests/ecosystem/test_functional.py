"""Transforms of `torch.func` over whole models: gradients a sample, and derivatives along a direction."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model
from tests.tolerances import assert_close

pytestmark = pytest.mark.ecosystem

Parameters = dict[str, Tensor]


def make(
    family: str, suffix: str = "ForSequenceClassification", **overrides: Any
) -> tuple[Any, Parameters, Tensor, Tensor]:
    """Return a loss of (parameters, one row of ids, its label), parameters, and three rows with their labels."""
    model = tiny_model(family, suffix, **overrides).double().eval()

    def loss(parameters: Parameters, ids: Tensor, label: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = functional_call(model, parameters, (ids[None], None if mask is None else mask[None])).logits
        return nn.functional.cross_entropy(logits.flatten(0, -2), label.view(-1))

    parameters = {name: x.detach() for name, x in model.named_parameters()}
    ids = torch.randint(300, (3, 13))
    return loss, parameters, ids, ids if suffix == "ForCausalLM" else torch.tensor([0, 1, 1])


def by_autograd(loss: Any, parameters: Parameters, *row: Tensor) -> Parameters:
    leaves = {name: x.clone().requires_grad_() for name, x in parameters.items()}
    found = torch.autograd.grad(loss(leaves, *row), list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's attention, row by row
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("family", "suffix", "overrides"),
    [
        *[(family, "ForSequenceClassification", {}) for family in EVERY],
        *[(family, "ForCausalLM", {}) for family in CAUSAL],
        ("poly_transformer", "ForCausalLM", {"mixing": "triangular"}),
    ],
)
def test_gradients_a_sample(family: str, suffix: str, overrides: dict[str, Any], masked: bool) -> None:
    loss, parameters, ids, labels = make(family, suffix, **overrides)
    masks = torch.tensor([[0] * 3 + [1] * 10, [1] * 13, [1] * 4 + [0] + [1] * 5 + [0] * 3])
    rows = (ids, labels, masks) if masked else (ids, labels)
    found = vmap(grad(loss), in_dims=(None, *[0] * len(rows)))(parameters, *rows)
    for place in range(len(ids)):
        expected = by_autograd(loss, parameters, *[given[place] for given in rows])
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
