"""The operator of SKI in one step against the sum of its parts, forward, backward and twice."""

import pytest
import torch

from hf_seqmix.ops.short_convolution.product import short_conv_dense
from hf_seqmix.ops.ski.interpolation import InducingGrid
from hf_seqmix.ops.ski.product import ski_matmul, ski_matmul_dense, sparse_low_rank_matmul
from tests.tolerances import assert_close
from tests.transforms import check_transforms

SIZES = [
    (1, 2, 1, 2, 1),
    (2, 3, 13, 5, 3),
    (1, 4, 37, 7, 17),
    (3, 2, 8, 8, 5),
]  # batch, channels, length, points, taps


def inputs(size: tuple[int, ...], dtype: torch.dtype, last: bool = True) -> tuple[torch.Tensor, ...]:
    batch, channels, length, points, taps = size
    grid = InducingGrid(max(length, points), points)
    x = (
        torch.randn(batch, length, channels, dtype=dtype).mT
        if last
        else torch.randn(batch, channels, length, dtype=dtype)
    )
    kernel = torch.randn(channels, 2 * grid.points(length) - 1, dtype=dtype)
    tensors = [x, torch.randn(channels, taps, dtype=dtype), kernel]
    return *(t.requires_grad_() for t in tensors), grid


def dense(x: torch.Tensor, taps: torch.Tensor, kernel: torch.Tensor, grid: InducingGrid) -> torch.Tensor:
    x, taps, kernel = (t.double() for t in (x, taps, kernel))
    return short_conv_dense(x, taps) + ski_matmul_dense(x, kernel, grid)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # the definition unfolds rows one by one
@pytest.mark.parametrize("size", SIZES)
def test_transforms_of_torch_func(size: tuple[int, ...]) -> None:
    *tensors, grid = inputs(size, torch.float64)
    tensors = [x.detach() for x in tensors]
    check_transforms(lambda *x: sparse_low_rank_matmul(*x, grid), lambda *x: dense(*x, grid), *tensors)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [True, False])
def test_equals_the_dense_sum(size: tuple[int, ...], dtype: torch.dtype, last: bool) -> None:
    *tensors, grid = inputs(size, dtype, last)
    y, expected = sparse_low_rank_matmul(*tensors, grid), dense(*tensors, grid)
    assert y.dtype == dtype
    assert_close(y, expected)
    upstream = torch.randn_like(y)
    actual = torch.autograd.grad(y, tensors, upstream)
    for a, b in zip(actual, torch.autograd.grad(expected, tensors, upstream.double()), strict=True):
        assert_close(a, b, dtype)


@pytest.mark.parametrize(
    "size", [*SIZES[:2], *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[2:])], ids=str
)
def test_derivatives(size: tuple[int, ...]) -> None:
    *tensors, grid = inputs(size, torch.float64)
    assert torch.autograd.gradcheck(lambda *t: sparse_low_rank_matmul(*t, grid), tensors)
    assert torch.autograd.gradgradcheck(lambda *t: sparse_low_rank_matmul(*t, grid), tensors)


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_one_gradient_alone(wanted: int) -> None:
    *tensors, grid = inputs(SIZES[1], torch.float64)
    expected = torch.autograd.grad(dense(*tensors, grid).square().sum(), tensors[wanted])
    alone = [t.detach().requires_grad_(i == wanted) for i, t in enumerate(tensors)]
    for create_graph in (False, True):
        loss = sparse_low_rank_matmul(*alone, grid).square().sum()
        assert_close(torch.autograd.grad(loss, alone[wanted], create_graph=create_graph)[0], expected[0])


def test_nothing_saved_is_overwritten() -> None:
    *tensors, grid = inputs(SIZES[1], torch.float32)
    copies = [t.detach().clone() for t in tensors]
    upstream = torch.ones(2, 13, 3).mT
    sparse_low_rank_matmul(*tensors, grid).backward(upstream)
    for tensor, copy in zip([*tensors, upstream], [*copies, torch.ones(2, 13, 3).mT], strict=True):
        assert torch.equal(tensor, copy)


def test_wrong_shapes_are_refused() -> None:
    x, taps, kernel, grid = inputs(SIZES[1], torch.float32)
    with pytest.raises(ValueError, match="odd number"):
        sparse_low_rank_matmul(x, taps[:, :2], kernel, grid)
    with pytest.raises(ValueError, match="inducing points"):
        sparse_low_rank_matmul(x, taps, kernel[:, 1:], grid)
    assert sparse_low_rank_matmul(x[..., :0], taps, kernel, grid).shape == (2, 3, 0)
    swapped = InducingGrid(8, 256)
    for points in (1, swapped.points(x.shape[-1])):
        with pytest.raises(ValueError, match=r"256 points for 8 tokens.*swapped"):
            sparse_low_rank_matmul(x, taps, torch.ones(3, 2 * points - 1), swapped)


@pytest.mark.parametrize("product", [ski_matmul, ski_matmul_dense])
def test_the_low_rank_part_refuses_what_does_not_fit(product) -> None:
    x, _, kernel, grid = inputs(SIZES[1], torch.float32)
    for wrong, message in (
        ((x.int(), kernel), "real floating-point tensors, got torch.int32"),
        ((x, kernel.int()), "real floating-point tensors, got .*torch.int32"),
        ((x[0], kernel), r"expected x of shape \(batch, channels, length\)"),
        ((x, kernel[0]), r"kernel of shape \(channels, 2 points - 1\)"),
        ((x[..., :0], kernel[:1]), r"got \(2, 3, 0\) and \(1, "),
        ((x, kernel[:, 1:]), "inducing points"),
    ):
        with pytest.raises(ValueError, match=message):
            product(*wrong, grid)
    assert product(x[..., :0], kernel, grid).shape == (2, 3, 0)
