"""Cosines of whole numbers against a wider precision, alone and compiled with the numbers made in the graph."""

import math

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops import real_valued, toeplitz_matmul, toeplitz_matmul_dense
from hf_seqmix.ops.common.trigonometry import cosines
from tests.tolerances import assert_close

# torch's own modules, when a function is first compiled
OF_TORCH = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")

SIZES = [(3, 64, 128), (1, 1, 2), (2, 2, 2), (4, 6, 6)]  # rows, columns, period
FIRST = [-3, 0, 5]


def products(rows: int, columns: int, first: int) -> Tensor:
    return first + torch.arange(rows).unsqueeze(1) * torch.arange(columns)


def exact(steps: Tensor, period: int) -> Tensor:
    return torch.tensor([[math.cos(2 * math.pi * (s % period) / period) for s in row] for row in steps.tolist()])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", FIRST)
def test_cosines_of_products(size: tuple[int, int, int], first: int) -> None:
    rows, columns, period = size
    steps = products(rows, columns, first)
    assert torch.allclose(cosines(steps, period, torch.float32), exact(steps, period), rtol=0, atol=2e-7)


@OF_TORCH
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.one_in(9)
def test_cosines_of_products_in_a_graph(size: tuple[int, int, int], first: int) -> None:
    rows, columns, period = size
    expected = exact(products(rows, columns, first), period)
    torch._dynamo.reset()
    compiled = torch.compile(lambda: cosines(products(rows, columns, first), period, torch.float32))
    assert torch.allclose(compiled(), expected, rtol=0, atol=2e-7)


@OF_TORCH
def test_ordinary_operations_are_compiled() -> None:
    x, kernel = torch.randn(2, 3, 70, dtype=torch.float64), torch.randn(3, 70, dtype=torch.float64)
    torch._dynamo.reset()
    with real_valued():
        assert_close(torch.compile(toeplitz_matmul)(x, kernel), toeplitz_matmul_dense(x, kernel))
