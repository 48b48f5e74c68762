"""The short convolution against its definition."""

import pytest
import torch

from hf_seqmix.ops.short_convolution.product import short_conv, short_conv_dense, short_conv_step
from tests.tolerances import assert_close

LENGTHS = (1, 2, 3, 13, 16, 17, 64, 97)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("taps", [1, 3, 17, 33])
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_definition(length, taps, dtype):
    x, upstream = (torch.randn(2, 5, length, dtype=torch.float64).to(dtype) for _ in range(2))
    weight = torch.randn(5, taps, dtype=torch.float64).to(dtype)
    values = []
    for function, kind in ((short_conv, dtype), (short_conv_dense, torch.float64)):
        x_, w_ = x.to(kind).requires_grad_(), weight.to(kind).requires_grad_()
        y = function(x_, w_)
        values.append([y.detach(), *torch.autograd.grad(y, (x_, w_), upstream.to(kind))])
    for ours, exact in zip(*values, strict=True):
        assert ours.dtype == dtype
        # Half precision also adds up in half precision where a processor has no better way.
        assert_close(ours, exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("taps", "back"), [(1, 0), (2, 0), (4, 3), (4, 1), (5, 4), (17, 16), (18, 5), (20, 19)])
@pytest.mark.parametrize("length", [1, 3, 40])
def test_off_center_equals_the_definition(length, taps, back, dtype):
    x, upstream = (torch.randn(3, 5, length, dtype=torch.float64).to(dtype) for _ in range(2))
    weight = torch.randn(5, taps, dtype=torch.float64).to(dtype)
    values = []
    for function, kind in ((short_conv, dtype), (short_conv_dense, torch.float64)):
        x_, w_ = x.to(kind).requires_grad_(), weight.to(kind).requires_grad_()
        y = function(x_, w_, back)
        values.append([y.detach(), *torch.autograd.grad(y, (x_, w_), upstream.to(kind))])
    for ours, exact in zip(*values, strict=True):
        assert ours.dtype == dtype
        assert_close(ours, exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("taps", [1, 2, 5, 33])
def test_one_step_is_the_last_output(taps, dtype):
    window = torch.randn(3, taps, 5, dtype=torch.float64).to(dtype)
    weight, upstream = (torch.randn(*size, dtype=torch.float64).to(dtype) for size in ((5, taps), (3, 1, 5)))
    window_, weight_ = window.clone().requires_grad_(), weight.clone().requires_grad_()
    y = short_conv_step(window_, weight_)
    exact_window, exact_weight = window.double().requires_grad_(), weight.double().requires_grad_()
    exact = short_conv_dense(exact_window.transpose(1, 2), exact_weight, taps - 1)[:, :, -1:].transpose(1, 2)
    assert y.dtype == dtype
    assert_close(y, exact, dtype)
    found = torch.autograd.grad(y, (window_, weight_), upstream)
    right = torch.autograd.grad(exact, (exact_window, exact_weight), upstream.double())
    for ours, expected in zip(found, right, strict=True):
        assert_close(ours, expected, dtype)


def test_a_causal_one_by_hand():
    x = torch.tensor([[[1.0, 10.0, 100.0]]], dtype=torch.float64)
    weight = torch.tensor([[2.0, 3.0, 5.0]], dtype=torch.float64)  # lags 2, 1, 0
    assert short_conv(x, weight, 2)[0, 0].tolist() == [5.0, 53.0, 532.0]


def test_by_hand():
    x = torch.tensor([[[1.0, 10.0, 100.0]]], dtype=torch.float64)
    weight = torch.tensor([[2.0, 3.0, 5.0]], dtype=torch.float64)  # lags 1, 0, -1
    assert short_conv(x, weight)[0, 0].tolist() == [53.0, 532.0, 320.0]


@pytest.mark.parametrize(("length", "taps", "back"), [(1, 3, 1), (5, 3, 2), (18, 5, 2), (4, 9, 4), (6, 14, 13)])
def test_gradcheck_and_gradgradcheck(length, taps, back):
    x = torch.randn(2, 2, length, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, taps, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(short_conv, (x, weight, back))
    assert torch.autograd.gradgradcheck(short_conv, (x, weight, back))


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_argument_alone(which):
    inputs = [torch.randn(2, 3, 9, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)]
    inputs[which].requires_grad_()
    (ours,) = torch.autograd.grad(short_conv(*inputs).square().sum(), inputs[which])
    (exact,) = torch.autograd.grad(short_conv_dense(*inputs).square().sum(), inputs[which])
    assert_close(ours, exact)


def test_many_blocks_of_channels():
    x = torch.randn(2, 130, 20, dtype=torch.float64)
    weight = torch.randn(130, 5, dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad(short_conv(x, weight).square().sum(), weight)
    (exact,) = torch.autograd.grad(short_conv_dense(x, weight).square().sum(), weight)
    assert_close(ours, exact)


def test_layouts_in_memory_agree_and_channels_stay_last():
    x = torch.randn(2, 4, 11, dtype=torch.float64)
    weight = torch.randn(4, 3, dtype=torch.float64)
    last = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert_close(short_conv(last, weight), short_conv(x, weight))
    assert short_conv(last, weight).transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_tap_is_a_product(dtype):
    x, weight = torch.randn(2, 7, 3, dtype=dtype).transpose(1, 2), torch.randn(3, 1)
    y = short_conv(x, weight)
    assert torch.equal(y, (x.float() * weight).to(dtype)) and y.stride() == x.stride()


@pytest.mark.parametrize("taps", [4, 17])
def test_transforms_of_torch_func(taps):
    x, weight = torch.randn(3, 2, 9, dtype=torch.float64), torch.randn(2, taps, dtype=torch.float64)

    def loss(weight, x):
        return short_conv(x[None], weight, 3).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
    exact = weight.clone().requires_grad_()
    for row, ours in zip(x, each, strict=True):
        (alone,) = torch.autograd.grad(short_conv_dense(row[None], exact, 3).square().sum(), exact)
        assert_close(ours, alone)


def test_compiles_and_counts_no_pads():
    compiled = torch.compile(short_conv, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 3, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    for ours, exact in zip(
        torch.autograd.grad(compiled(x, weight).square().sum(), (x, weight)),
        torch.autograd.grad(short_conv_dense(x, weight).square().sum(), (x, weight)),
        strict=True,
    ):
        assert_close(ours, exact)


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 5)])
def test_empty_inputs(shape):
    weight = torch.randn(3, 5, requires_grad=True)
    y = short_conv(torch.randn(shape), weight)
    assert y.shape == shape
    y.sum().backward()
    assert not weight.grad.any()


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="weight has 4 taps; a centered convolution needs an odd number"):
        short_conv(torch.randn(1, 2, 5), torch.randn(2, 4))
    with pytest.raises(ValueError, match="back is 4; with 4 taps it must be from 0 to 3"):
        short_conv(torch.randn(1, 2, 5), torch.randn(2, 4), 4)
    with pytest.raises(ValueError, match=r"x is on cpu but weight on meta: move them to one device"):
        short_conv(torch.randn(1, 2, 5), torch.randn(2, 3, device="meta"))
    with pytest.raises(ValueError, match=r"got \(1, 2, 5\) and \(3, 3\)"):
        short_conv(torch.randn(1, 2, 5), torch.randn(3, 3))


@pytest.mark.parametrize("taps", [3, 17])
def test_autocast_does_not_reach_the_convolution(taps):
    x, weight = torch.randn(2, 5, 40, requires_grad=True), torch.randn(5, taps, requires_grad=True)
    expected = short_conv(x, weight)
    gradients = torch.autograd.grad(expected.square().sum(), (x, weight))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = short_conv(x, weight)
        assert torch.equal(y, expected)
        for ours, exact in zip(torch.autograd.grad(y.square().sum(), (x, weight)), gradients, strict=True):
            assert torch.equal(ours, exact)


def test_weights_keep_their_precision_in_half_precision():
    # An even number of equal weights would cancel on alternating signs; what is left is what bfloat16 would round
    # away.
    x = (1 - 2 * (torch.arange(40) % 2)).expand(1, 5, 40).bfloat16()
    weight = 1 + 1e-3 * torch.randn(5, 17)
    weight[:, 0] = 0
    inside = slice(8, 32)  # where all taps meet the input
    exact = short_conv_dense(x.double(), weight.double())[..., inside]
    assert_close(short_conv(x, weight)[..., inside], exact, torch.bfloat16)


@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 4, 1), (4, 3)])
def test_one_step_refuses_windows_that_do_not_fit(shape):
    with pytest.raises(ValueError, match=r"window has shape .* and weight \(3, 4\)"):
        short_conv_step(torch.randn(shape), torch.randn(3, 4))
