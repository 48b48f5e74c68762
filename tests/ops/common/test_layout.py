"""Exchanging channels and positions in memory."""

import pytest
import torch

from hf_seqmix.ops import InducingGrid, short_conv, ski_matmul
from hf_seqmix.ops.common.layout import channels_adjacent, positions_adjacent, transposed, write_channels
from hf_seqmix.ops.ski.product import sparse_low_rank_matmul

SIZES = [(1, 1, 1), (2, 1, 5), (2, 7, 1), (3, 5, 13), (2, 32, 17), (1, 96, 31), (2, 64, 128), (2, 33, 64)]


def channels_last(batch: int, channels: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(batch, length, channels).to(dtype).transpose(1, 2)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_positions_become_adjacent(sizes, dtype):
    x = channels_last(*sizes, dtype)
    target = torch.promote_types(dtype, torch.float32)
    y = positions_adjacent(x, target)
    assert y.dtype == target and y.is_contiguous()
    assert torch.equal(y, x.to(target))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["short_conv", "causal", "ski", "both"])
def test_results_may_be_changed_in_place(name, dtype):
    grid, taps, kernel = InducingGrid(9, 4), torch.randn(3, 5, dtype=dtype), torch.randn(3, 7, dtype=dtype)
    products = {
        "short_conv": lambda x: short_conv(x, taps),
        "causal": lambda x: short_conv(x, taps, back=4),
        "ski": lambda x: ski_matmul(x, kernel, grid),
        "both": lambda x: sparse_low_rank_matmul(x, taps, kernel, grid),
    }
    x = torch.randn(2, 3, 9, dtype=dtype, requires_grad=True)
    (expected,) = torch.autograd.grad((3 * products[name](x)).sum(), x)
    y = products[name](x)
    before = y.detach().clone()
    y *= 3
    assert torch.equal(y, 3 * before)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)


@pytest.mark.parametrize("channels", [slice(0, 32), slice(32, 96), slice(3, 8), slice(5, 6)], ids=str)
def test_blocks_of_channels(channels):
    whole = channels_last(2, 96, 37)
    x = whole[:, channels]
    assert torch.equal(positions_adjacent(x, torch.float32), x.contiguous())
    out = torch.full_like(whole, float("nan"))
    full = torch.randn(2, x.shape[1], 80)
    write_channels(out[:, channels], full[..., 21:58])  # a part of longer rows
    expected = torch.full_like(whole, float("nan"))
    expected[:, channels] = full[..., 21:58]
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_results_go_to_either_layout(sizes, dtype):
    y = torch.randn(sizes)
    for out in (torch.empty(sizes, dtype=dtype), torch.empty_like(channels_last(*sizes, dtype))):
        write_channels(out, y)
        assert torch.equal(out, y.to(dtype))


def test_layouts_that_need_no_exchange_are_left_alone():
    x = torch.randn(2, 6, 9)
    assert not channels_adjacent(x)
    assert positions_adjacent(x, torch.float32) is x
    assert channels_adjacent(x.transpose(1, 2))
    # Neither adjacent: an ordinary copy.
    sparse = torch.randn(2, 12, 18)[:, ::2, ::2]
    assert torch.equal(positions_adjacent(sparse, torch.float64), sparse.double())


def test_rows_of_one_signal():
    x = torch.randn(7, 3).expand(4, 7, 3).transpose(1, 2)  # a batch without memory of its own
    assert torch.equal(positions_adjacent(x, torch.float32), x.contiguous())


@pytest.mark.parametrize("sizes", [(1, 1), (1, 6), (6, 1), (7, 13), (65, 64), (0, 3)], ids=str)
def test_matrices_are_transposed(sizes):
    x = torch.randn(sizes)
    for given in (x, x.double(), torch.randn(sizes[::-1]).t(), torch.randn(sizes[0], 2 * sizes[1])[:, ::2]):
        y = transposed(given)
        assert y.is_contiguous() and torch.equal(y, given.t())
        assert torch.equal(torch.func.vmap(transposed)(torch.stack([given, -given]))[1], -given.t())


@pytest.mark.parametrize("sizes", [(3, 4), (5, 1), (1, 5)], ids=str)
def test_transposes_can_be_differentiated(sizes):
    x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(transposed, x)
    assert torch.autograd.gradgradcheck(lambda x: transposed(x).square(), x)
