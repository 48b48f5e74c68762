"""The Toeplitz product by transforms of torch at short and long lengths, forward and backward."""

import pytest
import torch
from scipy.signal import fftconvolve
from torch import Tensor

from hf_seqmix.ops import forced, toeplitz_matmul, toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.fft import fft_gradients, fft_product
from tests.tolerances import assert_close

LONG = [307, 512, 1009, 1024, 2039, 2048, 4093, 4096, 8191, 8192, 16381, 16384]


@pytest.fixture(autouse=True)
def _transforms():
    with forced(toeplitz_causal="fft", toeplitz_bidirectional="fft"):
        yield


def results(x: Tensor, kernel: Tensor, upstream: Tensor, causal: bool) -> tuple[Tensor, ...]:
    x, kernel = x.detach().requires_grad_(), kernel.detach().requires_grad_()
    y = toeplitz_matmul(x, kernel, causal)
    return (y.detach(), *torch.autograd.grad(y, (x, kernel), upstream))


@pytest.mark.parametrize("first", list(range(1, 300, 20)))
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.one_in(3)
def test_every_length_to_300(causal, first, poisoned_empty):
    for length in range(first, first + 20):
        x, upstream = torch.randn(2, 1, 2, length, dtype=torch.float64)
        kernel = torch.randn(2, length if causal else 2 * length - 1, dtype=torch.float64)
        a, b = x.clone().requires_grad_(), kernel.clone().requires_grad_()
        y = toeplitz_matmul_dense(a, b, causal)
        exact = (y.detach(), *torch.autograd.grad(y, (a, b), upstream))
        for dtype in (torch.float64, torch.float32):
            ours = results(x.to(dtype), kernel.to(dtype), upstream.to(dtype), causal)
            for actual, expected in zip(ours, exact, strict=True):
                assert_close(actual, expected, dtype)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", LONG)
def test_long_primes_and_powers_of_two(causal, length, poisoned_empty):
    x, upstream = torch.randn(2, 2, 1, length, dtype=torch.float64)
    kernel = torch.randn(1, length if causal else 2 * length - 1, dtype=torch.float64)

    def convolve(a: Tensor, b: Tensor) -> Tensor:
        """The full convolution over the last dimension, by another library."""
        return torch.from_numpy(fftconvolve(a.numpy(), b.numpy(), axes=-1))

    first = 0 if causal else length - 1  # place of lag 0 among the taps
    y = convolve(x, kernel.expand(2, 1, -1))[..., first : first + length]
    last = kernel.shape[-1] - 1 - first
    dx = convolve(upstream, kernel.flip(-1).expand(2, 1, -1))[..., last : last + length]
    dkernel = convolve(upstream, x.flip(-1)).sum(dim=0)[:, length - 1 - first :]
    for dtype in (torch.float64, torch.float32):
        ours = results(x.to(dtype), kernel.to(dtype), upstream.to(dtype), causal)
        for actual, expected in zip(ours, (y, dx, dkernel), strict=True):
            assert_close(actual, expected, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [True, False])
def test_half_precision(causal, dtype):
    x, upstream = torch.randn(2, 2, 3, 131, dtype=dtype)
    kernel = torch.randn(3, 131 if causal else 261)
    a, b = x.double().requires_grad_(), kernel.double().requires_grad_()
    y = toeplitz_matmul_dense(a, b, causal)
    exact = (y.detach(), *torch.autograd.grad(y, (a, b), upstream.double()))
    ours = results(x, kernel, upstream, causal)
    for actual, expected in zip(ours, exact, strict=True):
        assert_close(actual, expected, dtype)
    assert ours[0].dtype == ours[1].dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
def test_only_the_input_and_the_kernel_are_kept(causal, dtype):
    x = torch.randn(16, 4, 128, dtype=dtype, requires_grad=True)
    kernel = torch.randn(4, 128 if causal else 255, requires_grad=True)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        toeplitz_matmul(x, kernel, causal)
    assert sum(kept.values()) == x.numel() * x.itemsize + kernel.numel() * 4


@pytest.mark.parametrize("keep_layout", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_many_blocks_of_channels(causal, keep_layout, poisoned_empty):
    """Seven channels, three at a time, side by side in memory."""
    x, g = torch.randn(2, 2, 11, 7, dtype=torch.float64).transpose(2, 3).unbind()
    kernel = torch.randn(7, 11 if causal else 21, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), kernel.clone().requires_grad_()
    y = toeplitz_matmul_dense(a, b, causal)
    dx, dkernel = torch.autograd.grad(y, (a, b), g)

    def by_blocks(first: Tensor, second: Tensor, wrt: str) -> Tensor:
        return fft_product(first, second, wrt, causal, keep_layout, block=3)

    assert_close(by_blocks(x, kernel, "output"), y.detach())
    assert_close(by_blocks(g, kernel, "input"), dx)
    assert_close(by_blocks(g, x, "kernel"), dkernel)
    for actual, expected in zip(fft_gradients(g, x, kernel, causal, keep_layout, block=3), (dx, dkernel), strict=True):
        assert_close(actual, expected)
