"""Affine maps of IPA that differ from position to position."""

import pytest
import torch
from torch import Tensor

from hf_seqmix.models.ipa.position_maps import PositionLinear
from tests.largest import Largest
from tests.tolerances import assert_close


def positions_of(kind: str, batch: int, length: int) -> Tensor:
    """One row for all; one for each, of any order, with pads that repeat a position; all of one position."""
    if kind == "shared":
        return torch.arange(length).unsqueeze(0)
    return torch.randint(length, (batch, length)) if kind == "own" else torch.full((batch, length), length - 1)


@pytest.mark.parametrize("kind", ["shared", "own", "one"])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 1), (5, 7), (2, 11)])
def test_by_its_formula(kind, batch, length):
    layer = PositionLinear(11, 3, 5).double()
    layer.bias.data.normal_()
    positions = positions_of(kind, batch, length)
    results = []
    x = torch.randn(batch, length, 3, dtype=torch.float64, requires_grad=True)
    expected = [
        [layer.weight[positions[b % len(positions), i]] @ x[b, i] + layer.bias for i in range(length)]
        for b in range(batch)
    ]
    for out in (layer(x, positions), torch.stack([torch.stack(row) for row in expected])):
        results.append([out, *torch.autograd.grad((out**2).sum(), [x, *layer.parameters()])])
    for actual, wanted in zip(*results, strict=True):
        assert_close(actual, wanted)


@pytest.mark.parametrize("kind", ["shared", "own", "one"])
def test_rows_have_no_weights_of_their_own(kind):
    """Neither pass has a tensor larger than the weight, for which each of 20 rows had one before."""
    layer = PositionLinear(16, 24, 32)
    x = torch.randn(20, 16, 24, requires_grad=True)
    with Largest() as largest:
        layer(x, positions_of(kind, 20, 16)).sum().backward()
    assert 0 < largest.elements <= layer.weight.numel()


def test_compiled():
    torch._dynamo.reset()
    layer = PositionLinear(11, 3, 5).double()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for kind in ("shared", "own"):
        x, positions = torch.randn(4, 9, 3, dtype=torch.float64), positions_of(kind, 4, 9)
        assert_close(compiled(x, positions), layer(x, positions))
