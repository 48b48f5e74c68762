"""The two-level transform against the dense matrices and, for long rows, a transform in float64."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hf_seqmix.ops import toeplitz_matmul, toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.kernels import monarch
from hf_seqmix.ops.toeplitz.kernels.monarch import (
    monarch_gradients,
    monarch_kernel_gradient,
    monarch_product,
    monarch_suits,
)
from tests.tolerances import assert_close, relative_error

pytestmark = pytest.mark.usefixtures("poisoned_memory")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def make(
    length: int, causal: bool, dtype: torch.dtype, batch: int = 2, channels: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return g, x and kernel."""
    g, x = torch.randn(2, batch, channels, length).to(DEVICE, dtype)
    return g, x, torch.randn(channels, length if causal else 2 * length - 1).to(DEVICE)


def exact(g: Tensor, x: Tensor, kernel: Tensor, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, dx and dk in float64."""
    function = toeplitz_matmul_dense if x.shape[-1] <= 600 else toeplitz_matmul
    inputs = [t.double().requires_grad_() for t in (x, kernel)]
    y = function(*inputs, causal)
    return y.detach(), *torch.autograd.grad(y, inputs, g.double())


def check(g: Tensor, x: Tensor, kernel: Tensor, causal: bool, **sizes: int) -> None:
    y, dx, dk = exact(g, x, kernel, causal)
    ours = monarch_product(x, kernel, causal, **sizes), *monarch_gradients(g, x, kernel, causal, **sizes)
    for actual, expected in zip(ours, (y, dx, dk), strict=True):
        assert_close(actual, expected, x.dtype)
    assert ours[0].dtype == ours[1].dtype == x.dtype and ours[2].dtype == torch.float32
    assert ours[0].is_contiguous() and ours[1].is_contiguous()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 97, 257])
@pytest.mark.one_in(3)
def test_equals_the_dense_product(length, dtype, causal):
    check(*make(length, causal, dtype, channels=3 if length == 97 and causal else 1), causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [2, 3, 16, 17, 255, 256, 511, 512, 513])
@pytest.mark.one_in(2)
def test_lengths_that_fill_part_of_a_tile(length, causal):
    dtype = DTYPES[(length + causal) % 3]
    check(*make(length, causal, dtype, batch=3 if length == 17 else 1), causal)


# Every way of dividing the work between registers and memory in the gradients.
@pytest.mark.parametrize(
    ("length", "dtype", "causal"),
    [
        (1025, torch.float32, True),
        (2048, torch.bfloat16, False),
        (2048, torch.float16, True),
        (3001, torch.float32, False),
        (4096, torch.float16, False),
        (5000, torch.bfloat16, True),
        (8192, torch.float16, False),
        (12289, torch.float16, True),
        (16384, torch.bfloat16, False),
    ],
)
def test_long_rows(length, dtype, causal):
    check(*make(length, causal, dtype), causal)


@pytest.mark.parametrize(("dtype", "causal"), [(torch.bfloat16, True), (torch.float16, False), (torch.float32, True)])
def test_every_derivative_alone_is_the_one_of_the_pair(dtype, causal):
    g, x, kernel = make(60, causal, dtype)
    dx, dk = monarch_gradients(g, x, kernel, causal)
    assert torch.equal(monarch_product(g, kernel, causal, transpose=True), dx)
    assert torch.equal(monarch_kernel_gradient(g, x, causal), dk)


@pytest.mark.parametrize("causal", [True, False])
def test_non_contiguous_inputs(causal):
    g, x, kernel = make(40, causal, torch.float16, channels=2)
    exactly = exact(g, x, kernel, causal)
    wide = torch.cat([kernel, kernel], dim=1)[:, : kernel.shape[1]]
    for data, taps in (
        (lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), wide),
        (lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), kernel.T.contiguous().T),
    ):
        ours = monarch_product(data(x), taps, causal), *monarch_gradients(data(g), data(x), taps, causal)
        for actual, expected in zip(ours, exactly, strict=True):
            assert_close(actual, expected, torch.float16)
    # The upstream gradient of a sum has no strides at all.
    ones = torch.ones((), device=DEVICE, dtype=torch.float16).expand_as(x)
    dk = monarch_kernel_gradient(ones, x, causal)
    assert_close(dk, exact(ones, x, kernel, causal)[2], torch.float16)


@pytest.mark.parametrize("length", [30, 8192])
def test_parts_of_the_batch_and_blocks_of_channels(length):
    g, x, kernel = make(length, False, torch.float16, batch=5, channels=2)
    assert monarch._split(5, 2, programs=4) == (3, 2)
    check(g, x, kernel, False, programs=4, block_bytes=1)


@pytest.mark.parametrize(("batch", "channels"), [(1, 1), (1, 5000), (7, 3), (64, 768), (9, 1000), (5000, 1)])
def test_parts_hold_the_whole_batch_and_none_is_empty(batch, channels):
    splits, rows = monarch._split(batch, channels)
    assert (splits - 1) * rows < batch <= splits * rows
    assert splits * channels >= min(batch * channels, 1024)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_and_taps_of_any_size(dtype):
    """Each row counts by itself: large and small ones stand side by side."""
    g, x, kernel = make(100, True, dtype, batch=3, channels=2)
    small, large = (1e-3, 1e3) if dtype == torch.float16 else (1e-12, 1e12)
    rows = torch.tensor([1.0, small, large], device=DEVICE)[:, None, None]
    channels = torch.tensor([1.0, small], device=DEVICE)[:, None]
    x, g = (x * rows).to(dtype), (g * rows).to(dtype)
    kernel = kernel * channels / large  # so that nothing exceeds the range of float16
    y = monarch_product(x, kernel, True)
    dx, dk = monarch_gradients(g, x, kernel, True)
    for actual, expected in zip((y, dx), exact(g, x, kernel, True)[:2], strict=True):
        for b in range(3):
            for c in range(2):
                # What float16 cannot hold as a result it rounds.
                if dtype != torch.float16 or expected[b, c].abs().mean() > 1e-3:
                    assert_close(actual[b, c], expected[b, c])
    assert_close(dk, exact(g, x, kernel, True)[2], dtype)


@pytest.mark.parametrize("length", [256, 16384])
def test_spectra_with_the_highest_peak_there_is_fit_float16(length):
    # All of a constant row lies in the first of N frequencies.
    x = torch.ones(1, 1, length, device=DEVICE, dtype=torch.float16)
    kernel = torch.ones(1, length, device=DEVICE)
    check(x, x, kernel, True)


def test_zeros():
    g, x, kernel = make(20, True, torch.bfloat16, batch=2)
    x[0] = 0
    y = monarch_product(x, kernel, True)
    assert not y[0].any() and y[1].all()
    assert not monarch_product(x, torch.zeros_like(kernel), True).any()
    assert not monarch_kernel_gradient(torch.zeros_like(g), x, True).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter
def test_what_is_not_finite_stays_in_its_row(bad):
    _, x, kernel = make(50, True, torch.float32, channels=2)
    expected = monarch_product(x, kernel, True)
    x[0, 1, 20] = bad
    y = monarch_product(x, kernel, True)
    assert not y[0, 1].isfinite().any()
    y[0, 1] = expected[0, 1]
    assert torch.equal(y, expected)


def test_half_precision_loses_no_more_than_it_says():
    g, x, kernel = make(2048, True, torch.float16, batch=4)
    y, _, dk = exact(g, x, kernel, True)
    for actual, expected in ((monarch_product(x, kernel, True), y), (monarch_kernel_gradient(g, x, True), dk)):
        error = (actual.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        assert error < 1e-3
    g, x, kernel = make(2048, True, torch.float32)
    assert relative_error(monarch_product(x, kernel, True), exact(g, x, kernel, True)[0]) < 5e-6


def test_which_lengths_suit(monkeypatch):
    assert all(monarch_suits(n, torch.bfloat16) for n in (1, 16384)) and not monarch_suits(16385, torch.bfloat16)
    assert monarch_suits(4096, torch.float32) and not monarch_suits(4097, torch.float32)
    assert not monarch_suits(16, torch.float64) and not monarch_suits(0, torch.float16)
    for major, shared, longest in ((9, 232448, 16384), (8, 166912, 4096), (8, 101376, 2048)):
        device = SimpleNamespace(major=major, shared_memory_per_block_optin=shared)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, device=device: device)
        suits = [n for n in monarch._PLANS if monarch_suits(n, torch.float16, torch.device("cuda", 0))]
        assert suits[-1] == longest


@pytest.mark.parametrize(("length", "dtype"), [(4097, torch.float32), (16385, torch.float16), (8, torch.float64)])
def test_lengths_and_dtypes_that_do_not_suit(length, dtype):
    x, kernel = torch.ones(1, 1, length, dtype=dtype), torch.ones(1, length)
    with pytest.raises(ValueError, match="do not suit: lengths from 1 to"):
        monarch_product(x, kernel, True)
    with pytest.raises(ValueError, match=str(length)):
        monarch_gradients(x, x, kernel, True)
