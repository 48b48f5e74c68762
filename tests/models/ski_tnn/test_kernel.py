"""The piecewise-linear kernel over the inverse time warp."""

import math

import pytest
import torch

from hf_seqmix import InverseTimeWarpKernel
from hf_seqmix.ops import batch_invariant


def make(knots: int = 5, decay: float = 0.9) -> InverseTimeWarpKernel:
    return InverseTimeWarpKernel(3, knots, decay, length_scale=16).double()


@pytest.mark.parametrize("knots", [1, 2, 5, 32])
def test_piecewise_linear_by_its_definition(knots):
    kernel = make(knots)
    # Knot values from x = -1 to x = 1, 0 at x = 0.
    zero = torch.zeros(3, 1, dtype=torch.float64)
    table = torch.cat([kernel.future_knots.flip(-1), zero, kernel.past_knots], dim=1).detach()
    for lag in (0.0, 1.0, 2.5, 7.0, 30.0, -1.0, -2.5, -40.0):
        x = math.copysign(0.9 ** abs(lag), lag if lag else 1.0)
        place = (x + 1) * knots
        low = min(int(place), 2 * knots - 1)
        expected = (table[:, low] + (place - low) * (table[:, low + 1] - table[:, low])) / 4  # sqrt(16) positions
        torch.testing.assert_close(kernel(torch.tensor([lag], dtype=torch.float64))[:, 0].detach(), expected)


def test_lag_zero_is_the_last_knot_of_the_past_and_infinity_is_zero():
    kernel = make()
    values = kernel(torch.tensor([0.0, 1e4, -1e4]))
    torch.testing.assert_close(values[:, 0], kernel.past_knots[:, -1].float().double() / 4)
    assert values[:, 1:].abs().max() < 1e-100


def test_gradients():
    kernel = make(4)
    lags = torch.tensor([0.0, 3.0, -3.0, 11.0], dtype=torch.float64)

    def evaluate(past, future):
        return torch.func.functional_call(kernel, {"past_knots": past, "future_knots": future}, (lags,))

    assert torch.autograd.gradcheck(evaluate, (kernel.past_knots, kernel.future_knots))


def test_float32_in_half_precision():
    kernel = InverseTimeWarpKernel(2, 8, math.exp(-5 / 512), 512).to(torch.bfloat16)
    lags = torch.arange(512) * 1.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = kernel(lags)
    assert values.dtype == torch.float32
    # Between knots every lag has a value of its own: bfloat16 would tell a third of them apart.
    assert len(values[0].unique()) > 500


@pytest.mark.parametrize("length", [64, 512, 4096])
def test_initial_outputs_are_no_larger_than_inputs_at_any_length(length):
    torch.manual_seed(0)
    kernel = InverseTimeWarpKernel(256, 32, math.exp(-5 / length), length_scale=length)
    taps = kernel(torch.arange(1 - length, length) * 1.0)
    constant = taps.sum(dim=1).square().mean().sqrt()  # what a constant becomes, the worst that can happen
    assert 0.2 < constant < 1
    assert taps.square().sum(dim=1).mean().sqrt() < constant  # and white noise


@pytest.mark.parametrize("decay", [0.0, 1.0, 1.5, -0.1])
def test_a_warp_that_is_none_is_refused(decay):
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, such as exp\(-5 / length\)"):
        make(decay=decay)


def test_each_channel_has_the_decay_of_its_block():
    decays = [0.6, 0.9, 0.99]
    kernel = InverseTimeWarpKernel(7, 5, decays, length_scale=16).double()
    lags = torch.tensor([0.0, 1.0, 2.5, 40.0, -1.0, -7.5], dtype=torch.float64)
    values = kernel(lags)
    for channel, decay in enumerate([0.6, 0.6, 0.6, 0.9, 0.9, 0.99, 0.99]):
        alone = InverseTimeWarpKernel(7, 5, decay, length_scale=16).double()
        alone.load_state_dict(kernel.state_dict())
        torch.testing.assert_close(values[channel], alone(lags)[channel])
    values.square().sum().backward()
    assert kernel.past_knots.grad.count_nonzero() > 0 and kernel.future_knots.grad.isfinite().all()


@pytest.mark.parametrize("decay", [0.9, [0.5, 0.9, 0.97]], ids=str)
def test_in_a_fixed_order_the_number_of_points_does_not_matter(decay):
    kernel = InverseTimeWarpKernel(24, 32, decay, length_scale=16)
    with torch.no_grad(), batch_invariant():
        whole = kernel(torch.arange(-31, 32) * 1.5)
        for points in (1, 2, 3, 5, 6, 17):
            assert torch.equal(kernel(torch.arange(1 - points, points) * 1.5), whole[:, 32 - points : 31 + points])


def test_more_decays_than_channels_are_refused():
    with pytest.raises(ValueError, match="there are 4 decays, but 3 channels"):
        InverseTimeWarpKernel(3, 5, [0.9] * 4, length_scale=16)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        InverseTimeWarpKernel(3, 5, [0.9, 1.0], length_scale=16)


def test_knots_are_needed():
    with pytest.raises(ValueError, match="num_knots is 0; at least 1"):
        make(knots=0)


def test_the_scale_changes_the_steps_of_the_knots_and_not_how_the_kernel_begins():
    lags = torch.arange(-63, 64) * 1.0
    kernels = {}
    for scaled in (False, True):
        torch.manual_seed(0)
        kernels[scaled] = InverseTimeWarpKernel(8, 5, 0.9, 64, scaled)
    torch.testing.assert_close(kernels[True](lags), kernels[False](lags))
    torch.testing.assert_close(kernels[True].past_knots, 8 * kernels[False].past_knots)
    slopes = {
        scaled: torch.autograd.grad(kernel(lags).sum(), kernel.past_knots)[0] for scaled, kernel in kernels.items()
    }
    torch.testing.assert_close(8 * slopes[True], slopes[False])
