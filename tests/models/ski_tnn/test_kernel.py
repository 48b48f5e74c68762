"""The piecewise-linear kernel over the inverse time warp."""

import math

import pytest
import torch

from hf_seqmix import InverseTimeWarpKernel


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
        expected = table[:, low] + (place - low) * (table[:, low + 1] - table[:, low])
        torch.testing.assert_close(kernel(torch.tensor([lag], dtype=torch.float64))[:, 0].detach(), expected)


def test_lag_zero_is_the_last_knot_of_the_past_and_infinity_is_zero():
    kernel = make()
    values = kernel(torch.tensor([0.0, 1e4, -1e4]))
    torch.testing.assert_close(values[:, 0], kernel.past_knots[:, -1].float().double())
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


def test_initial_scale_keeps_outputs_on_the_scale_of_inputs():
    torch.manual_seed(0)
    kernel = InverseTimeWarpKernel(256, 32, math.exp(-5 / 512), length_scale=512)
    taps = kernel(torch.arange(-511, 512) * 1.0)
    gain = taps.square().sum(dim=1).mean().sqrt()  # of white noise
    assert 0.5 < gain < 2


@pytest.mark.parametrize("decay", [0.0, 1.0, 1.5, -0.1])
def test_a_warp_that_is_none_is_refused(decay):
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, such as exp\(-5 / length\)"):
        make(decay=decay)


def test_knots_are_needed():
    with pytest.raises(ValueError, match="num_knots is 0; at least 1"):
        make(knots=0)
