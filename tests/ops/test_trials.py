"""The public Toeplitz products through the Triton kernels: derivatives of both orders, compilation, and trials."""

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops import forced, toeplitz_matmul, toeplitz_matmul_dense, trials
from hf_seqmix.ops.common.backend import kernel_module
from tests.tolerances import assert_close

NAMES = ["tiles", "monarch"]


def through(name: str):
    return forced(toeplitz_causal=name, toeplitz_bidirectional=name)


def make(causal: bool, length: int = 21) -> list[Tensor]:
    """x, kernel, upstream gradient, and weights of the gradients for a second derivative."""
    taps = length if causal else 2 * length - 1
    return [torch.randn(s) for s in [(2, 2, length), (2, taps), (2, 2, length), (2, 2, length), (2, taps)]]


def both_orders(function, causal: bool, tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    x, kernel, upstream, of_x, of_kernel = (t.to(dtype) for t in tensors)
    x.requires_grad_(), kernel.requires_grad_(), upstream.requires_grad_()
    y = function(x, kernel, causal)
    first = torch.autograd.grad(y, (x, kernel), upstream, create_graph=True)
    total = (first[0] * of_x).sum() + (first[1] * of_kernel).sum()
    return [y, *first, *torch.autograd.grad(total, (x, kernel, upstream))]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(2)
def test_first_and_second_derivatives(name, causal, poisoned_empty):
    tensors = make(causal)
    with through(name):
        ours = both_orders(toeplitz_matmul, causal, tensors, torch.float32)
    exact = both_orders(toeplitz_matmul_dense, causal, tensors, torch.float64)
    for actual, expected in zip(ours, exact, strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(2)
def test_compiled(name, causal):
    torch.compiler.reset()
    x, kernel, upstream, *_ = make(causal)
    x.requires_grad_(), kernel.requires_grad_()
    compiled = torch.compile(
        lambda x, kernel: toeplitz_matmul(x * 2, kernel, causal), backend="aot_eager", fullgraph=True
    )
    with through(name):
        y = compiled(x, kernel)
        dx, dkernel = torch.autograd.grad(y, (x, kernel), upstream)
    a, b = x.detach().double().requires_grad_(), kernel.detach().double().requires_grad_()
    exact = toeplitz_matmul_dense(2 * a, b, causal)
    for actual, expected in zip(
        (y, dx, dkernel), (exact, *torch.autograd.grad(exact, (a, b), upstream.double())), strict=True
    ):
        assert_close(actual.detach(), expected.detach())


@pytest.mark.parametrize("op", ["toeplitz_causal", "toeplitz_bidirectional"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(2)
def test_trials_find_nothing_wrong(op, name):
    with torch.inference_mode():
        assert trials.fault(op, name, torch.device("cpu"), torch.float32, 64, lengths=(33, 40)) is None


def test_trials_find_a_kernel_that_is_wrong(monkeypatch):
    tiles = kernel_module("toeplitz.kernels.tiles")
    right = tiles.toeplitz_tiles_kernel_gradient
    # One tap of a thousand is off.
    monkeypatch.setattr(
        tiles, "toeplitz_tiles_kernel_gradient", lambda *a: right(*a).index_fill(1, torch.tensor([7]), 0.0)
    )
    fault = trials.fault("toeplitz_causal", "tiles", torch.device("cpu"), torch.float32, 64, lengths=(33, 40))
    assert fault is not None and "gradient of the argument of shape (2, 33)" in fault


def test_rows_too_long_for_a_program_are_torchs(monkeypatch):
    monkeypatch.setattr(kernel_module("toeplitz.kernels.monarch"), "monarch_suits", lambda *_: False)
    x, kernel, *_ = make(True)
    with through("monarch"):
        y = toeplitz_matmul(x, kernel)
    assert_close(y, toeplitz_matmul_dense(x.double(), kernel.double()))
