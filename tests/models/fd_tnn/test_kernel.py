"""Taps whose frequency response is an encoder of the frequency."""

import math

import pytest
import torch
from torch import Tensor

from hf_seqmix import FrequencyKernel, RelativePositionEncoder

INPUTS = ("omega", "cosine")


def make(
    last: int = 9,
    is_causal: bool = True,
    frequency_input: str = "omega",
    activation: str = "relu",
    max_lag: int | None = None,
) -> FrequencyKernel:
    encoder = RelativePositionEncoder(3 if is_causal else 6, 8, 2, activation)
    return FrequencyKernel(encoder, last, frequency_input, is_causal, max_lag).double()


def response_of(taps: Tensor, first_lag: int, omega: Tensor) -> Tensor:
    """sum_t k[t] exp(-i omega t), term by term."""
    lags = first_lag + torch.arange(taps.shape[1], dtype=torch.float64)
    angles = lags[:, None] * omega
    return taps.to(torch.complex128) @ torch.complex(angles.cos(), -angles.sin())


@pytest.mark.parametrize("frequency_input", INPUTS)
@pytest.mark.parametrize("last", [1, 2, 9, 16])
def test_causal_taps_have_the_encoders_response(last, frequency_input):
    kernel = make(last, frequency_input=frequency_input)
    omega = torch.arange(last + 1).double() * (math.pi / last)
    expected = kernel.encoder(omega.cos() if frequency_input == "cosine" else omega)
    torch.testing.assert_close(response_of(kernel(last + 1), 0, omega).real, expected)


@pytest.mark.parametrize("frequency_input", INPUTS)
@pytest.mark.parametrize("last", [1, 2, 9, 16])
def test_bidirectional_taps_have_the_encoders_response(last, frequency_input):
    kernel = make(last, is_causal=False, frequency_input=frequency_input)
    omega = torch.arange(last + 1).double() * (math.pi / last)
    real, imaginary = kernel.encoder(omega.cos() if frequency_input == "cosine" else omega).chunk(2)
    if frequency_input == "cosine":
        imaginary = imaginary * omega.sin()
    imaginary = imaginary * ((torch.arange(last + 1) % last) != 0)
    assert torch.equal(kernel.response().imag[:, [0, last]], torch.zeros(3, 2, dtype=torch.float64))
    spectrum = response_of(kernel(last + 1), -last, omega)
    torch.testing.assert_close(spectrum, torch.complex(real, imaginary))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
def test_shorter_inputs_use_the_first_taps_and_longer_ones_find_zeros(is_causal, compiled):
    last = 6
    for max_lag in (None, 4, 99):
        kernel = make(last, is_causal, max_lag=max_lag)
        torch._dynamo.reset()
        run = torch.compile(kernel, backend="eager", fullgraph=True, dynamic=True) if compiled else kernel
        longest = kernel(20)
        lags = torch.arange(0 if is_causal else -19, 20)
        assert not longest[:, lags.abs() > min(last, max_lag or last)].any()
        assert longest[:, lags.abs() <= min(last, max_lag or last)].all()
        for length in (1, 2, 5, 6, 7, 8, 19):
            expected = longest[:, :length] if is_causal else longest[:, 20 - length : 19 + length]
            torch.testing.assert_close(run(length), expected, rtol=0, atol=0)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_context_length_samples_the_same_response_finer(is_causal):
    kernel = make(64, is_causal, "cosine", "gelu")
    before, response = kernel(64), kernel.response()
    kernel.set_context_length(128)
    torch.testing.assert_close(kernel.response()[:, ::2], response)
    after = kernel(64)
    change = (after - before).abs().max() / before.abs().max()
    assert 0 < change < 1e-2
    with pytest.raises(ValueError, match="the context length is 0"):
        kernel.set_context_length(0)


@pytest.mark.parametrize("is_causal", [True, False])
def test_weights_and_taps_differentiate(is_causal):
    kernel = make(5, is_causal, "cosine", "silu")
    kernel(7).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in kernel.parameters())


def test_float32_in_half_precision():
    kernel = FrequencyKernel(RelativePositionEncoder(3, 8, 0), 512).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        taps = kernel(512)
    exact = kernel.double()(512)
    assert taps.dtype == torch.float32
    assert (taps - exact).abs().max() / exact.abs().max() < 1e-4


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="frequency_input is 'sine'; it must be 'omega' or 'cosine'"):
        make(frequency_input="sine")
    with pytest.raises(ValueError, match="the context length is 0; it must be at least 1"):
        make(0)
