"""The linear recurrent network: recurrence, exact kernels, best readout, gradients, complexity, bad input."""

import math

import pytest
import torch
from torch.func import functional_call

from hf_seqmix.analysis.rates import (
    LinearRNN,
    LinearTarget,
    exact_floors,
    exchange_ends,
    permute,
    recurrent_complexity,
)

DOUBLE = torch.float64


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_the_impulse_response_is_the_recurrence(length):
    net = LinearRNN(2, 5).double()
    x = torch.randn(3, length, 2, dtype=DOUBLE)
    state, wanted = torch.zeros(3, 5, dtype=DOUBLE), []
    for t in range(length):
        state = state @ net.recurrent.T + x[:, t] @ net.input.T
        wanted.append(state @ net.readout)
    torch.testing.assert_close(net(x), torch.stack(wanted, dim=1), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(net.states(x) @ net.readout, net(x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("gain", [1.0, 3**0.5])
def test_the_gain_is_that_of_the_spectral_radius(gain):
    torch.manual_seed(0)
    net = LinearRNN(1, 200, recurrent_gain=gain)
    assert torch.linalg.eigvals(net.recurrent.detach()).abs().max().item() == pytest.approx(gain / 3**0.5, rel=0.1)
    assert net.input.abs().max() <= 200**-0.5 and net.readout.abs().max() <= 200**-0.5


@pytest.mark.parametrize("shape", [(1,), (7,), (32,), (5, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_shift_register_holds_any_kernel_exactly(shape, dtype):
    taps = torch.randn(shape, dtype=dtype)
    net = LinearRNN.from_taps(taps)
    assert torch.equal(net.taps(len(taps)), taps.reshape(len(taps), -1))
    longer = net.taps(len(taps) + 4)
    assert torch.equal(longer[: len(taps)], taps.reshape(len(taps), -1)) and not longer[len(taps) :].any()


@pytest.mark.parametrize("target", [LinearTarget.from_kernel(), permute(LinearTarget.from_kernel(), mode="kernel")])
def test_no_error_at_the_original_and_at_the_permuted_kernel(target):
    x, y = target.draw(20, torch.Generator().manual_seed(0), DOUBLE)
    net = LinearRNN.from_taps(torch.tensor(target.taps, dtype=DOUBLE))
    assert (net(x) - y).square().mean().item() < 1e-28
    with torch.no_grad():
        net.readout.uniform_()
    assert net.fit_readout(x, y) < 1e-25
    torch.testing.assert_close(net.taps(32)[:, 0], torch.tensor(target.taps, dtype=DOUBLE), rtol=0, atol=1e-11)


def test_the_best_readout_at_permuted_inputs_is_the_best_filter():
    target = permute(LinearTarget.from_kernel(length=7), exchange_ends(7, 2))
    x, y = target.draw(20_000, torch.Generator().manual_seed(0), DOUBLE)
    net = LinearRNN.from_taps(torch.zeros(7, dtype=DOUBLE))
    error = net.fit_readout(x, y)
    assert error == pytest.approx((net(x) - y).square().mean().item(), rel=1e-9)
    assert error == pytest.approx(exact_floors(target)["causal_filter_without_bias"].mse, rel=0.02)


def test_fitting_in_single_precision():
    target = LinearTarget.from_kernel(length=11)
    x, y = target.draw(200, torch.Generator().manual_seed(0))
    net = LinearRNN(1, 16)
    before = (net(x) - y).square().mean().item()
    error = net.fit_readout(x, y)
    assert net.readout.dtype == torch.float32 and error < 1e-4 * before


def test_initialization():
    net = LinearRNN()
    bound = 128**-0.5
    for value in net.parameters():
        assert 0.8 * bound < value.abs().max() <= bound
    radius = torch.linalg.eigvals(net.recurrent.detach()).abs().max().item()
    assert radius == pytest.approx(3**-0.5, abs=0.1)
    assert net(torch.ones(1, 2000, 1)).isfinite().all()


def test_gradients():
    net = LinearRNN(2, 3).double()
    names, values = zip(*net.named_parameters(), strict=True)
    x = torch.randn(2, 5, 2, dtype=DOUBLE, requires_grad=True)

    def call(inputs, *parameters):
        return functional_call(net, dict(zip(names, parameters, strict=True)), (inputs,))

    assert torch.autograd.gradcheck(call, (x, *values))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearRNN(1, 0), "hidden_size is 0"),
        (lambda: LinearRNN.from_taps(torch.zeros(0)), r"shape \(0,\); give \(lags,\) or"),
        (lambda: LinearRNN()(torch.zeros(2, 3, 2)), r"shape \(2, 3, 2\); give \(batch, length, 1\)"),
        (lambda: LinearRNN().fit_readout(torch.zeros(2, 3, 1), torch.zeros(2, 3, 1)), "one target for each token"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("decay_time", [0.5, 1.0, 4.0])
def test_the_complexity_of_an_exponential_kernel(decay_time):
    taps = 3 * torch.exp(-torch.arange(300, dtype=DOUBLE) / decay_time)
    # The infimum of b is the decay time, and the supremum is at lag 0.
    assert recurrent_complexity(taps, decay_time) == pytest.approx((1 + decay_time, 3))
    # Behind a delay, the supremum is at its end: e^(delay / C1) times as much.
    behind = torch.cat([taps.new_zeros(7), -taps])
    c1, c2 = recurrent_complexity(behind, decay_time)
    assert (c1, c2) == pytest.approx((1 + decay_time, 3 * math.exp(7 / (1 + decay_time))))


def test_the_complexity_of_a_kernel_that_ends():
    taps = torch.tensor([0.5, 1.0, 0.0], dtype=DOUBLE)
    assert recurrent_complexity(taps, 0) == pytest.approx((1, math.e))
    assert recurrent_complexity(taps, 5) == recurrent_complexity(taps, 0)  # nothing is left to fall
    with pytest.raises(ValueError, match=r"shape \(1, 3\); give \(lags,\)"):
        recurrent_complexity(taps[None], 1)
    for wrong in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="decay_time is"):
            recurrent_complexity(taps, wrong)
