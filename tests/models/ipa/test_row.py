"""IPA's row operation."""

import pytest
import torch

from hf_seqmix import PiecewiseRow
from tests.modules.wrapped import Wrapped
from tests.tolerances import assert_close


def make(**kwargs: int) -> PiecewiseRow:
    row = PiecewiseRow(6, 20, 4, **kwargs).double()
    for parameter in row.parameters():
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    return row


class Packed(torch.nn.Module):
    """As torch quantizes linear layers: the weight is a method."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = [layer]

    def weight(self) -> torch.Tensor:
        return self.layer[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer[0](x)


def test_layers_whose_weight_is_a_method_are_taken():
    row, x = make(), torch.randn(2, 3, 6, dtype=torch.float64)
    expected = row(x)
    row.up_proj = Packed(row.up_proj)
    assert_close(row(x), expected)


def test_is_a_sum_of_gated_affine_maps():
    """That is, of a block-gated feed-forward: sum over centers of g^p (C^p x + d^p), each map of rank 5."""
    row, x = make(), torch.randn(2, 3, 6, dtype=torch.float64)
    gates = torch.softmax(x @ row.gate_proj.weight.T + row.gate_proj.bias, dim=-1)
    expected = row.down_proj.bias.expand_as(x).clone()
    for p in range(4):
        units = slice(5 * p, 5 * p + 5)
        into, out = row.up_proj.weight[units], 4 * row.down_proj.weight[:, units]
        affine = x @ (out @ into).T + out @ row.up_proj.bias[units]
        expected += gates[..., p : p + 1] * affine
    assert_close(row(x), expected)


def test_equal_gates_are_an_ungated_feed_forward():
    row, x = make(), torch.randn(2, 3, 6, dtype=torch.float64)
    row.gate_proj.weight.data.zero_()
    row.gate_proj.bias.data.fill_(3.0)
    assert_close(row(x), row.down_proj(row.up_proj(x)))


def test_each_position_alone():
    row, x = make(), torch.randn(2, 7, 6, dtype=torch.float64)
    assert_close(row(x)[:, 2:5], row(x[:, 2:5]))
    assert row(x[:, :0]).shape == (2, 0, 6)


def test_a_wrapper_may_stand_for_a_layer():
    row, x = make(), torch.randn(2, 7, 6, dtype=torch.float64)
    expected = row(x)
    row.up_proj, row.gate_proj, row.down_proj = map(Wrapped, (row.up_proj, row.gate_proj, row.down_proj))
    assert torch.equal(row(x), expected)


def test_parameters():
    row, n, h, p = make(), 6, 20, 4
    assert sum(x.numel() for x in row.parameters()) == 2 * n * h + h + n + n * p + p


@pytest.mark.parametrize("centers", [0, 3])
def test_centers_must_divide_the_units(centers):
    with pytest.raises(ValueError, match=f"num_centers is {centers}; it must divide intermediate_size 20"):
        PiecewiseRow(6, 20, centers)
