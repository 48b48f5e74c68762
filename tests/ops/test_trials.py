"""The public Toeplitz products through the Triton kernels: derivatives of both orders, compilation, and trials."""

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops import forced, toeplitz_matmul, toeplitz_matmul_dense, trials
from hf_seqmix.ops.common import backend
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


def test_a_backward_pass_may_wait_for_a_trial(monkeypatch, recwarn):
    """A GPU's backward pass has a thread of autograd, which would wait for itself to differentiate the trial."""
    threads, tried = [], []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            threads.append(torch._C._is_multithreading_enabled())
            return 2 * g

    class Trying(Double):
        @staticmethod
        def backward(ctx, g):
            tried.append(backend._agrees("causal_sum", "torch", g.device, g.dtype, 20))
            return 2 * g

    monkeypatch.setattr(backend, "_tried", {})
    monkeypatch.setattr(trials, "_problems", lambda *_: [trials._Problem([(2, 3, 4)], Double.apply, lambda x: 2 * x)])
    x = torch.ones(3, device="cuda" if torch.cuda.is_available() else "cpu", requires_grad=True)
    Trying.apply(x).sum().backward()
    assert tried == [True] and threads == [False] and not recwarn
    assert torch._C._is_multithreading_enabled()


def test_rows_too_long_for_a_program_are_torchs(monkeypatch):
    monkeypatch.setattr(kernel_module("toeplitz.kernels.monarch"), "monarch_suits", lambda *_: False)
    x, kernel, *_ = make(True)
    with through("monarch"):
        y = toeplitz_matmul(x, kernel)
    assert_close(y, toeplitz_matmul_dense(x.double(), kernel.double()))
