"""Taps whose frequency response is an encoder of the frequency."""

import math

import mpmath
import pytest
import torch
from torch import Tensor, nn

from hf_seqmix import FDTNNConfig, FrequencyKernel, RelativePositionEncoder, toeplitz_matmul
from hf_seqmix.ops import forced
from hf_seqmix.ops.toeplitz.response import response_matmul

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
@pytest.mark.one_in(2)
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
    kernel = FrequencyKernel(RelativePositionEncoder(3, 8, 0), 512, "omega").to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        taps = kernel(512)
    exact = kernel.double()(512)
    assert taps.dtype == torch.float32
    assert (taps - exact).abs().max() / exact.abs().max() < 1e-4


def test_the_default_input_is_that_of_configurations():
    assert FrequencyKernel(RelativePositionEncoder(3, 8, 0), 4).frequency_input == FDTNNConfig().frequency_input


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="frequency_input is 'sine'; it must be 'omega' or 'cosine'"):
        make(frequency_input="sine")
    with pytest.raises(ValueError, match="the context length is 0; it must be at least 1"):
        make(0)


def evaluate_exactly(encoder: RelativePositionEncoder, coordinate: mpmath.mpf) -> mpmath.mpf:
    """The only channel of an encoder with GELU and without hidden layers, in mpmath's precision."""
    z = [
        w * coordinate + b
        for (w,), b in zip(encoder.in_proj.weight.tolist(), encoder.in_proj.bias.tolist(), strict=True)
    ]
    if not isinstance(encoder.hidden_norm, nn.Identity):
        size = mpmath.sqrt(mpmath.fsum([x * x for x in z]) / len(z) + mpmath.mpf(1e-6))
        z = [x / size for x in z]
    units = [x * mpmath.ncdf(x) for x in z]
    return mpmath.fdot(encoder.out_proj.weight[0].tolist(), units) + encoder.out_proj.bias[0].item()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("norm_type", "slowest", "fastest"), [("simple_rms", 0.95, 1.05), ("none", 0.0, 0.9)])
def test_only_without_a_norm_taps_fall_faster_than_any_exponential(norm_type, slowest, fastest, seed):
    """Theorem 2 of the paper, with GELU: in 120 digits, lags that each factor 1e-20 of the taps takes."""
    torch.manual_seed(seed)
    encoder = RelativePositionEncoder(1, 4, 0, "gelu", norm_type).double()
    last = 256
    with mpmath.workdps(120):
        cosines = [mpmath.cos(mpmath.pi * j / last) for j in range(2 * last)]
        response = [evaluate_exactly(encoder, cosine) for cosine in cosines[: last + 1]]
        coordinates = torch.tensor([float(cosine) for cosine in cosines[: last + 1]], dtype=torch.float64)
        torch.testing.assert_close(encoder(coordinates)[0], torch.tensor([float(r) for r in response]).double())
        response[0], response[-1] = response[0] / 2, response[-1] / 2
        taps = [
            abs(mpmath.fdot(response, [cosines[q * lag % (2 * last)] for q in range(last + 1)])) for lag in range(last)
        ]
        reached = [
            max(lag for lag, tap in enumerate(taps) if tap > taps[0] * mpmath.mpf(10) ** -digits)
            for digits in (0.1, 20, 80, 100)
        ]
    assert reached[-1] < last - 20  # beyond, taps are those that the grid folds back
    assert slowest <= (reached[3] - reached[2]) / (reached[1] - reached[0]) <= fastest


def test_the_table_of_crossovers_chooses_between_response_and_taps():
    kernel = make(16, is_causal=False)
    values = torch.randn(2, 16, 3, dtype=torch.float64)
    with forced(response="taps"):
        assert kernel.response_for(16, values) is None
    with forced(response="transforms"):
        response = kernel.response_for(16, values)
    assert response is not None
    by_taps = toeplitz_matmul(values.mT, kernel(16), causal=False)
    torch.testing.assert_close(response_matmul(values.mT, response), by_taps)
    with forced(response="transforms"):  # of which a response knows nothing
        assert make(16, is_causal=False, max_lag=4).response_for(16, values) is None


def test_all_taps_are_known_at_once():
    for kernel in (make(last=20), make(last=20, max_lag=4)):
        count = kernel.at_once
        whole = kernel(50)
        assert not whole[:, count:].any() and whole[:, count - 1].any()
        assert torch.equal(kernel(count), whole[:, :count])
