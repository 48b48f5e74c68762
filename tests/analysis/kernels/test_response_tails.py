"""The tail that a response's ends and kinks predict, and where a network has its kinks."""

import math

import pytest
import torch
from torch import nn

from hf_seqmix.analysis.kernels.response_tails import activation_inputs, kinks, response_at, response_tail
from hf_seqmix.models.fd_tnn.kernel import FrequencyKernel
from hf_seqmix.models.toeplitz.encoder import RelativePositionEncoder


def encoder(channels=2, activation="relu", norm_type="simple_rms", hidden_size=16):
    made = RelativePositionEncoder(channels, hidden_size, 2, activation, norm_type).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made


def by_integration(f, lag, points=200_001):
    """(1 / pi) int_0^pi f(w, t) dw by Simpson's rule."""
    w = torch.linspace(0, math.pi, points, dtype=torch.float64)
    weights = torch.full_like(w, 2.0)
    weights[1::2] = 4.0
    weights[[0, -1]] = 1.0
    return (f(w, lag) * weights).sum(dim=-1) / (3 * (points - 1))


@pytest.mark.parametrize("frequency_input", ["omega", "cosine"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_response_at_is_the_kernels_response(frequency_input, is_causal):
    network = encoder(4, "gelu")
    kernel = FrequencyKernel(network, 7, frequency_input, is_causal)
    frequencies = torch.arange(8, dtype=torch.float64) * (math.pi / 7)
    real, imaginary = response_at(network, frequencies, frequency_input, is_causal)
    expected = kernel.response()
    if is_causal:
        assert imaginary is None
        torch.testing.assert_close(real, expected)
    else:
        torch.testing.assert_close(real, expected.real)
        torch.testing.assert_close(imaginary[:, 1:-1], expected.imag[:, 1:-1])


@pytest.mark.parametrize("norm_type", ["simple_rms", "layer"])
def test_kinks_are_where_the_activations_switch(norm_type):
    network = encoder(norm_type=norm_type)
    before, after = kinks(network, -3.0, 3.0, cells=4096)
    assert len(before) > 10
    assert (after - before).max() < 1e-12
    grid = torch.linspace(-3, 3, 4097, dtype=torch.float64)
    switches = (activation_inputs(network, grid) > 0).diff(dim=0).sum()
    assert len(before) == switches
    # The slope jumps there, and nowhere else.
    slopes = torch.func.vmap(torch.func.jacrev(lambda x: network(x.view(1))[0, 0]))
    jumps = (slopes(after + 1e-9) - slopes(before - 1e-9)).abs()
    assert jumps.median() > 1e-4
    middle = (before.sort().values[1:] + before.sort().values[:-1]) / 2
    apart = before.sort().values.diff() > 1e-5
    smooth = (slopes(middle + 1e-9) - slopes(middle - 1e-9)).abs()[apart]
    assert smooth.max() < 1e-5


class Quadratic(nn.Module):
    """R(w) = w^2 and I(w) = 1 + w, with slopes and ends that are known, in the place of an encoder."""

    def __init__(self):
        super().__init__()
        self.activation = nn.Identity()
        self.dtype = torch.float64

    def forward(self, w):
        return torch.stack([w.square(), 1 + w])


def test_ends_of_a_known_response():
    tail = response_tail(Quadratic(), "omega", is_causal=False)
    torch.testing.assert_close(tail.slopes, torch.tensor([[0.0, 2 * math.pi]], dtype=torch.float64), rtol=0, atol=1e-8)
    torch.testing.assert_close(tail.values, torch.tensor([[1.0, 1 + math.pi]], dtype=torch.float64))
    assert tail.kinks.numel() == 0
    # R and I have no derivatives beyond those, so that the prediction is exact.
    lags = torch.tensor([-5, -2, 1, 3, 40])
    expected = [
        by_integration(lambda w, t: w.square() * torch.cos(w * t) - (1 + w) * torch.sin(w * t), t)
        for t in lags.tolist()
    ]
    torch.testing.assert_close(tail.taps(lags)[0], torch.stack(expected), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("frequency_input", ["omega", "cosine"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_kinks_belong_to_the_tail(frequency_input, is_causal):
    network = encoder(2 if is_causal else 4)
    tail = response_tail(network, frequency_input, is_causal)
    length = 2**14
    taps = FrequencyKernel(network, length, frequency_input, is_causal)(length + 1).detach()
    lags = torch.cat(
        [torch.arange(256, 1025), torch.arange(-1024, -255)] if not is_causal else [torch.arange(256, 1025)]
    )
    measured = taps[:, lags if is_causal else lags + length] * lags.square()
    predicted = tail.taps(lags) * lags.square()
    assert ((measured - predicted).norm(dim=1) / measured.norm(dim=1)).max() < 0.05
    ends_only = tail.taps(lags, with_kinks=False) * lags.square()
    if (
        is_causal or frequency_input == "cosine"
    ):  # a bidirectional kernel of omega has a jump, next to which kinks are small
        assert ((measured - ends_only).norm(dim=1) / measured.norm(dim=1)).min() > 0.2


@pytest.mark.parametrize("frequency_input", ["omega", "cosine"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_units_that_share_a_kink_have_one_jump(frequency_input, is_causal):
    """Without biases, as by `linear_init="normal"`, all of them do: at 0, or at pi / 2."""
    network = RelativePositionEncoder(1 if is_causal else 2, 8, 1, "relu", "none").double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter *= not name.endswith("bias")
    tail = response_tail(network, frequency_input, is_causal)
    assert len(tail.kinks) == (frequency_input == "cosine")
    length, lags = 2**16, torch.arange(300, 340)
    taps = FrequencyKernel(network, length, frequency_input, is_causal)(length + 1).detach()
    measured = taps[:, lags if is_causal else lags + length]
    assert (measured - tail.taps(lags)).norm() < 0.01 * measured.norm()


def test_refusals():
    with pytest.raises(ValueError, match=r"float32; slopes at kinks need float64"):
        response_tail(encoder().float(), "omega")
    with pytest.raises(ValueError, match="frequency_input is 'sine'"):
        response_tail(encoder(), "sine")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_mode_of_the_caller_changes_nothing(mode):
    made = encoder(channels=4)
    expected = response_tail(made, "omega", is_causal=False)
    with mode():
        found = response_tail(made, "omega", is_causal=False)
    for name in ("slopes", "values", "kinks", "jumps", "imaginary_jumps"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=0)
