"""Structured kernel interpolation against dense W A W^T."""

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops.ski.interpolation import (
    InducingGrid,
    interpolate,
    interpolate_adjoint,
    interpolation_matrix,
)
from hf_seqmix.ops.ski.product import ski_matmul, ski_matmul_dense
from tests.tolerances import assert_close

GRIDS = [(2, 2), (17, 5), (16, 16), (100, 7), (50, 40), (257, 33), (64, 64)]
DEGREES = [1, 3]


def lengths(max_length: int) -> list[int]:
    return sorted({1, 2, 3, 5, max_length - 1, max_length, max_length + 1, 3 * max_length + 1})


@pytest.fixture(params=GRIDS, ids=str)
def sizes(request) -> tuple[int, int]:
    return request.param


@pytest.mark.parametrize("degree", DEGREES)
def test_constants_and_the_identity_map_are_interpolated_exactly(sizes, degree):
    grid = InducingGrid(*sizes, degree)
    for length in lengths(grid.max_length):
        matrix = interpolation_matrix(length, grid)
        points = torch.arange(matrix.shape[1], dtype=torch.float64) * grid.spacing
        assert (matrix.sum(dim=1) - 1).abs().max() < 1e-14
        torch.testing.assert_close(matrix @ points, torch.arange(length, dtype=torch.float64), rtol=1e-13, atol=1e-12)
        assert (matrix != 0).sum(dim=1).max() <= degree + 1


def test_cubic_interpolation_is_exact_for_cubics_and_linear_is_not():
    tokens = torch.arange(60, dtype=torch.float64)
    for degree in DEGREES:
        grid = InducingGrid(100, 20, degree)
        matrix = interpolation_matrix(60, grid)
        points = torch.arange(matrix.shape[1], dtype=torch.float64) * grid.spacing
        error = (matrix @ (points / 60) ** 3 - (tokens / 60) ** 3).abs().max()
        assert error < 1e-13 if degree == 3 else error > 1e-3


@pytest.mark.parametrize("degree", DEGREES)
def test_each_token_meets_the_points_beside_it(degree):
    grid = InducingGrid(31, 7, degree)  # a point every 5 tokens
    matrix = interpolation_matrix(31, grid)
    assert matrix.shape[1] == (7 if degree == 1 else 8)
    for token in range(0, 31, 5):
        expected = torch.zeros(matrix.shape[1], dtype=torch.float64)
        expected[token // 5] = 1
        torch.testing.assert_close(matrix[token], expected, rtol=0, atol=1e-15)
    if degree == 1:
        torch.testing.assert_close(matrix[12, 2:4], torch.tensor([0.6, 0.4], dtype=torch.float64))


def test_the_papers_grid_at_full_length():
    grid = InducingGrid(512, 32)
    assert grid.points(512) == 32
    assert grid.spacing == 511 / 31
    assert [grid.points(n) for n in (1, 2, 17, 18, 511, 513)] == [1, 2, 2, 3, 32, 33]


@pytest.mark.parametrize("degree", DEGREES)
def test_weights_of_a_token_do_not_depend_on_the_length(sizes, degree):
    grid = InducingGrid(*sizes, degree)
    longest = interpolation_matrix(3 * grid.max_length + 1, grid)
    for length in lengths(grid.max_length):
        matrix = interpolation_matrix(length, grid)
        assert torch.equal(matrix, longest[:length, : matrix.shape[1]])
        assert not longest[:length, matrix.shape[1] :].any()


@pytest.mark.parametrize("degree", DEGREES)
def test_products_equal_the_dense_ones(sizes, degree):
    grid = InducingGrid(*sizes, degree)
    for length in lengths(grid.max_length):
        matrix = interpolation_matrix(length, grid)
        points = matrix.shape[1]
        x = torch.randn(2, 3, length, dtype=torch.float64)
        z = torch.randn(2, 3, points, dtype=torch.float64)
        kernel = torch.randn(3, 2 * points - 1, dtype=torch.float64)
        assert_close(interpolate_adjoint(x, grid), x @ matrix)
        assert_close(interpolate(z, length, grid), z @ matrix.t())
        assert_close(ski_matmul(x, kernel, grid), ski_matmul_dense(x, kernel, grid))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [1, 16, 97, 400])
def test_forward_and_backward_in_every_dtype(dtype, length):
    grid = InducingGrid(97, 23)
    x, upstream = (torch.randn(2, 3, length, dtype=torch.float64).to(dtype) for _ in range(2))
    kernel = torch.randn(3, 2 * grid.points(length) - 1, dtype=torch.float64)
    kernel = kernel.to(torch.promote_types(dtype, torch.float32))

    def gradients(function, x: Tensor, kernel: Tensor) -> list[Tensor]:
        x, kernel = x.detach().requires_grad_(), kernel.detach().requires_grad_()
        y = function(x, kernel, grid)
        return [y.detach(), *torch.autograd.grad(y, (x, kernel), upstream.to(y.dtype))]

    ours = gradients(ski_matmul, x, kernel)
    exact = gradients(ski_matmul_dense, x.double(), kernel.double())
    for actual, expected in zip(ours, exact, strict=True):
        assert_close(actual, expected, dtype)
    assert ours[0].dtype == ours[1].dtype == dtype and ours[2].dtype == kernel.dtype


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("length", [1, 2, 11])
def test_gradcheck_and_gradgradcheck(length, degree):
    grid = InducingGrid(7, 4, degree)
    x = torch.randn(2, 1, length, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(1, 2 * grid.points(length) - 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: ski_matmul(a, b, grid), (x, kernel))
    assert torch.autograd.gradgradcheck(lambda a, b: ski_matmul(a, b, grid), (x, kernel))


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.one_in(2)
def test_traced_products_are_the_same_for_all_lengths(degree):
    grid = InducingGrid(40, 9, degree)

    def product(x: Tensor, knots: Tensor) -> Tensor:
        points = grid.points(x.shape[-1])
        return ski_matmul(x, knots[:, : 2 * points - 1], grid)

    torch._dynamo.reset()
    compiled = torch.compile(product, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (9, 40, 55):
        x = torch.randn(2, 3, length, dtype=torch.float64, requires_grad=True)
        knots = torch.randn(3, 60, dtype=torch.float64, requires_grad=True)
        ours = torch.autograd.grad(compiled(x, knots).square().sum(), (x, knots))
        exact = torch.autograd.grad(product(x, knots).square().sum(), (x, knots))
        for actual, expected in zip(ours, exact, strict=True):
            assert_close(actual, expected)


def test_unused_memory_is_never_read(poisoned_empty):
    grid = InducingGrid(97, 23)
    x = torch.randn(2, 3, 97, dtype=torch.float64)
    kernel = torch.randn(3, 45, dtype=torch.float64)
    assert_close(ski_matmul(x, kernel, grid), ski_matmul_dense(x, kernel, grid))


def test_nothing_of_the_size_of_w_is_kept():
    grid = InducingGrid(512, 64)
    x = torch.randn(4, 8, 512, requires_grad=True)
    kernel = torch.randn(8, 127, requires_grad=True)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        ski_matmul(x, kernel, grid)
    assert sum(t.numel() for t in saved) <= 4 * 8 * 64 + kernel.numel()


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 5)])
def test_empty_inputs(shape):
    y = ski_matmul(torch.randn(shape), torch.randn(3, 3), InducingGrid(5, 2))
    assert y.shape == shape


def test_bad_arguments_are_refused():
    grid = InducingGrid(20, 5)
    with pytest.raises(ValueError, match=r"20 tokens meet 5 inducing points: \(3, 9\) is needed, lags from -4 to 4"):
        ski_matmul(torch.randn(1, 3, 20), torch.randn(3, 8), grid)
    with pytest.raises(ValueError, match="values has 4 points, but 20 tokens meet 5"):
        interpolate(torch.randn(1, 3, 4), 20, grid)
