"""The short convolution by its Triton kernel against the definition in float64, on the same rounded inputs."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hf_seqmix.ops import forced, trials
from hf_seqmix.ops.common.invariance import batch_invariant
from hf_seqmix.ops.short_convolution.kernels import streaming
from hf_seqmix.ops.short_convolution.product import short_conv, short_conv_dense
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures("poisoned_memory")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# length, taps, back, batch, channels
SIZES = [
    (1, 1, 0, 1, 1),
    (1, 4, 3, 3, 2),
    (3, 5, 2, 2, 5),
    (31, 4, 3, 2, 65),
    (97, 16, 15, 2, 3),
    (64, 3, 0, 1, 64),
]


def make(length: int, taps: int, batch: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return x and the upstream gradient, channels last in memory, and taps."""
    x, g = (torch.randn(batch, length, channels).to(DEVICE, dtype).transpose(1, 2) for _ in range(2))
    return x, g, torch.randn(channels, taps, device=DEVICE)


def exact(x: Tensor, weight: Tensor, g: Tensor, back: int) -> tuple[Tensor, ...]:
    """Return y, dx and dw."""
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = short_conv_dense(x, weight, back)
    return y.detach(), *torch.autograd.grad(y, (x, weight), g.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.one_in(3)
def test_equals_the_definition(size, dtype):
    length, taps, back, batch, channels = size
    x, g, weight = make(length, taps, batch, channels, dtype)
    y, dx, dweight = exact(x, weight, g, back)
    ours = streaming.short_conv(x, weight, back)
    assert ours.dtype == dtype and ours.transpose(1, 2).is_contiguous()
    assert_close(ours, y)
    assert_close(streaming.short_conv(g, weight.flip(1), taps - 1 - back), dx)
    found = streaming.short_conv_weight_gradient(g, x, taps, back)
    assert found.shape == (channels, taps)
    assert_close(found, dweight)  # summed in float32, and not rounded


def test_channels_first_and_strided_inputs():
    x, g, weight = make(70, 4, 2, 6, torch.float32)
    y, _, dweight = exact(x, weight, g, 3)
    strided = torch.stack([x, g], dim=-1)[..., 0]
    for other in (x.contiguous(), strided):
        assert_close(streaming.short_conv(other, weight, 3), y)
        assert_close(streaming.short_conv_weight_gradient(g.contiguous(), other, 4, 3), dweight)


def test_tiles_that_programs_share(monkeypatch):
    monkeypatch.setattr(streaming, "PROGRAMS", 3)
    x, g, weight = make(65, 5, 3, 7, torch.float32)  # nine tiles of positions, three for each program
    assert_close(streaming.short_conv_weight_gradient(g, x, 5, 4), exact(x, weight, g, 4)[2])


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_empty_inputs(shape):
    x = torch.zeros(shape, device=DEVICE)
    assert streaming.short_conv(x, torch.ones(shape[1], 4, device=DEVICE), 3).shape == shape
    gradient = streaming.short_conv_weight_gradient(x, x, 4, 3)
    assert gradient.shape == (shape[1], 4) and not gradient.any()


def both_orders(function, tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    x, weight, upstream, of_x, of_weight = (t.to(dtype) for t in tensors)
    x.requires_grad_(), weight.requires_grad_(), upstream.requires_grad_()
    y = function(x, weight, 3)
    first = torch.autograd.grad(y, (x, weight), upstream, create_graph=True)
    total = (first[0] * of_x).sum() + (first[1] * of_weight).sum()
    return [y, *first, *torch.autograd.grad(total, (x, weight, upstream))]


def test_first_and_second_derivatives_of_the_public_function():
    tensors = [torch.randn(s, device=DEVICE) for s in [(2, 3, 21), (3, 4), (2, 3, 21), (2, 3, 21), (3, 4)]]
    with forced(short_conv="streaming"):
        ours = both_orders(short_conv, tensors, torch.float32)
    for actual, expected in zip(ours, both_orders(short_conv_dense, tensors, torch.float64), strict=True):
        assert_close(actual, expected)


def calls(monkeypatch) -> list[int]:
    """Return the taps of each call of the kernel from now on."""
    seen: list[int] = []
    convolve = streaming.short_conv
    monkeypatch.setattr(
        streaming, "short_conv", lambda x, weight, back: seen.append(weight.shape[1]) or convolve(x, weight, back)
    )
    return seen


def test_what_the_kernel_serves(monkeypatch):
    seen = calls(monkeypatch)
    x, _, _ = make(40, 4, 2, 3, torch.float32)
    with forced(short_conv="streaming"):
        for taps in (4, 16, 17):
            weight = torch.randn(3, taps, device=DEVICE)
            assert_close(short_conv(x, weight, taps - 1), short_conv_dense(x.double(), weight.double(), taps - 1))
        short_conv(x.double(), torch.randn(3, 4, device=DEVICE), 3)
        with batch_invariant():
            short_conv(x, torch.randn(3, 4, device=DEVICE), 3)
        torch.func.vmap(lambda row: short_conv(row[None], torch.ones(3, 4, device=DEVICE), 3))(x)
    assert seen == [4, 16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.one_in(2)
def test_trials_find_nothing_wrong(dtype):
    assert trials.fault("short_conv", "streaming", torch.device(DEVICE), dtype, 64, lengths=(33,)) is None


def test_trials_find_a_kernel_that_is_wrong(monkeypatch):
    right = streaming.short_conv_weight_gradient
    monkeypatch.setattr(streaming, "short_conv_weight_gradient", lambda *a: right(*a) * 1.001)
    fault = trials.fault("short_conv", "streaming", torch.device(DEVICE), torch.float32, 64, lengths=(33, 40))
    assert fault is not None and "gradient of the argument of shape (5, 4)" in fault
