"""A short convolution plus a structured kernel interpolation, with padding and packing."""

import pytest
import torch

from hf_seqmix import InverseTimeWarpKernel, SKIOperator
from hf_seqmix.ops.layout import token_layout
from hf_seqmix.ops.short_convolution.product import short_conv_dense
from hf_seqmix.ops.ski.interpolation import InducingGrid, interpolation_matrix
from hf_seqmix.ops.toeplitz.product import toeplitz_matrix
from tests.tolerances import assert_close


def make(max_length: int = 20, points: int = 5, degree: int = 1) -> SKIOperator:
    kernel = InverseTimeWarpKernel(3, points, 0.8, max_length)
    return SKIOperator(kernel, InducingGrid(max_length, points, degree), 3).double()


def dense(operator: SKIOperator, values: torch.Tensor) -> torch.Tensor:
    """conv(x) + W A W^T x from dense matrices, the inducing matrix evaluated entry by entry."""
    matrix = interpolation_matrix(values.shape[1], operator.grid)
    points = matrix.shape[1]
    lags = torch.arange(1 - points, points, dtype=torch.float64) * operator.grid.spacing
    inducing = toeplitz_matrix(operator.kernel(lags), points, causal=False)
    low_rank = torch.einsum("ip,cpq,jq,bjc->bic", matrix, inducing, matrix, values)
    return low_rank + short_conv_dense(values.transpose(1, 2), operator.conv_weight).transpose(1, 2)


@pytest.mark.parametrize("degree", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 13, 20, 21, 47])
def test_equals_the_dense_operator(length, degree):
    operator = make(degree=degree)
    values = torch.randn(2, length, 3, dtype=torch.float64)
    assert_close(operator(values, token_layout(None, 2, length)), dense(operator, values))


def test_one_point_a_token_is_the_exact_toeplitz_matrix():
    operator = make(12, 12)
    values = torch.randn(1, 12, 3, dtype=torch.float64)
    taps = operator.kernel(torch.arange(-11, 12, dtype=torch.float64))
    exact = torch.einsum("cij,bjc->bic", toeplitz_matrix(taps, 12, causal=False), values)
    exact = exact + short_conv_dense(values.transpose(1, 2), operator.conv_weight).transpose(1, 2)
    assert_close(operator(values, token_layout(None, 1, 12)), exact)


@pytest.mark.parametrize("degree", [1, 3])
@pytest.mark.parametrize(
    "mask",
    [
        [[0, 0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1]],
        [[1, 1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1, 0, 0]],
        [[1, 0, 0, 1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 0]],
    ],
    ids=["left", "both", "inside"],
)
def test_a_padded_row_equals_the_row_alone(mask, degree):
    """Inducing points are counted from the first real token, wherever it stands."""
    operator = make(degree=degree)
    mask = torch.tensor(mask)
    values = torch.randn(2, 9, 3, dtype=torch.float64)
    out = operator(values, token_layout(mask, 2, 9))
    for row in range(2):
        real = mask[row].bool()
        assert_close(out[row][real], dense(operator, values[row][real][None])[0])


def test_a_mask_is_a_layout():
    operator, values = make(), torch.randn(2, 7, 3, dtype=torch.float64)
    assert_close(operator(values), dense(operator, values))
    mask = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 0]])
    assert_close(operator(values, mask), operator(values, token_layout(mask, 2, 7)))
    with pytest.raises(TypeError, match="attention_mask is a list; it must be a tensor"):
        operator(values, mask.tolist())


def test_packed_sequences_equal_each_alone():
    operator = make()
    values = torch.randn(1, 12, 3, dtype=torch.float64)
    layout = token_layout(None, 1, 12, seq_idx=torch.tensor([[0] * 5 + [1] + [2] * 6]))
    expected = torch.cat([dense(operator, part) for part in values.split([5, 1, 6], dim=1)], dim=1)
    assert_close(operator(values, layout), expected)


def test_taps_begin_near_their_token_and_keep_the_size_of_inputs():
    kernel = InverseTimeWarpKernel(4000, 5, 0.8, 20)
    sizes = SKIOperator(kernel, InducingGrid(20, 5), 5).conv_weight.square().mean(dim=0)
    total = 1 + 2 / 4 + 2 / 9  # of 1 / (1 + distance)^2
    expected = torch.tensor([1 / 9, 1 / 4, 1, 1 / 4, 1 / 9]) / total
    torch.testing.assert_close(sizes.detach(), expected, rtol=0.1, atol=0)


def test_caches_and_even_convolutions_are_refused():
    with pytest.raises(ValueError, match="a bidirectional mixer has no cache"):
        make()(torch.randn(1, 3, 3), token_layout(None, 1, 3), object())
    with pytest.raises(ValueError, match="conv_kernel_size is 4; it must be odd"):
        SKIOperator(InverseTimeWarpKernel(3, 5, 0.8, 20), InducingGrid(20, 5), 4)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float32, torch.float64])
def test_lags_are_as_exact_as_the_weights(default):
    """Lags of 19 / 6 tokens, which neither half nor single precision holds."""
    operator, values = make(20, 7), torch.randn(2, 20, 3, dtype=torch.float64)
    expected = dense(operator, values)
    torch.set_default_dtype(default)
    try:
        out = operator(values, token_layout(None, 2, 20))
    finally:
        torch.set_default_dtype(torch.float32)
    assert (out - expected).abs().max() / expected.abs().max() < 1e-12


def test_shorter_inputs_meet_fewer_points_at_the_same_spacing():
    """A departure: the paper lays all points over the actual length."""
    operator, values = make(20, 5), torch.randn(2, 13, 3, dtype=torch.float64)
    grid = operator.grid
    assert (grid.spacing, grid.points(20), grid.points(13), grid.points(2)) == (4.75, 5, 4, 2)
    assert torch.equal(interpolation_matrix(13, grid), interpolation_matrix(20, grid)[:13, :4])
    stretched = SKIOperator(operator.kernel, InducingGrid(13, 5), 3).double()
    stretched.conv_weight = operator.conv_weight
    out, other = (each(values, token_layout(None, 2, 13)) for each in (operator, stretched))
    assert_close(out, dense(operator, values))
    assert (other - out).abs().max() / out.abs().max() > 0.01
