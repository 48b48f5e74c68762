"""Decay of kernels given by their response: the table that theory is held against."""

import math

import pytest
import torch

from hf_seqmix.analysis.kernels.decay import (
    DECAY_COLUMNS,
    decay_row,
    decay_table,
    fit_response,
    kernel_taps,
    lags_of,
    random_encoders,
    resonance,
    resonance_taps,
    some_channels,
    tail_agreement,
)
from hf_seqmix.models.fd_tnn.kernel import FrequencyKernel
from hf_seqmix.training.tables import markdown_table

SEEDS = range(10)
F = 2**14


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_cosine_of_a_smooth_activation_decays_exponentially(activation):
    row = decay_row(random_encoders(activation, SEEDS, channels=4), "cosine", fft_length=F)
    assert row["at_64"] < 1e-9
    assert row["at_1024"] < 1e-15
    assert row["reach"] < 64
    assert "tail_ratio" not in row


def test_the_reach_is_the_first_lag_from_which_a_kernel_stays_small():
    encoders = random_encoders("silu", [0], channels=1)
    taps = kernel_taps(encoders[0], "cosine", F)[0].abs()
    reach = int(decay_row(encoders, "cosine", fft_length=F)["reach"])
    least = 1e-6 * taps.max()
    assert taps[reach - 1] >= least > taps[reach:].max()


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
@pytest.mark.one_in(2)
def test_omega_has_the_predicted_quadratic_tail(activation):
    row = decay_row(random_encoders(activation, SEEDS, channels=4), "omega", fft_length=2**15)
    assert row["tail_ratio"] == pytest.approx(1, abs=0.05)
    assert row["tail_error"] < 0.05
    assert row["tail_error_worst"] < 0.05
    # 1 / t^2: sixteen times smaller at four times the lag, up to the spread of encoders and the phases of kinks.
    assert 8 < row["at_64"] / row["at_256"] < 32
    assert 8 < row["at_256"] / row["at_1024"] < 32
    if activation == "relu":
        assert row["tail_error_ends_only"] > 0.5  # kinks inside are no small correction
    else:
        assert row["tail_error_ends_only"] == row["tail_error"]


def test_relu_of_the_cosine_keeps_its_kinks():
    row = decay_row(random_encoders("relu", range(5), channels=4), "cosine", fft_length=2**15)
    assert row["at_64"] > 1e-5
    assert row["tail_error_worst"] < 0.05


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_bidirectional_omega_falls_like_the_inverse_lag(activation):
    row = decay_row(random_encoders(activation, range(5), channels=8), "omega", is_causal=False, fft_length=2**15)
    assert row["tail_error_worst"] < 0.05
    assert 2 < row["at_64"] / row["at_256"] < 8


def test_table_has_every_combination():
    rows = decay_table(range(1), fft_length=F, channels=2, hidden_size=8, num_layers=1)
    assert len({(row["direction"], row["frequency_input"], row["activation"]) for row in rows}) == 12
    assert len(markdown_table(rows, DECAY_COLUMNS).splitlines()) == 14


@pytest.mark.parametrize("is_causal", [True, False])
def test_some_channels_are_those_of_the_whole(is_causal):
    encoder = random_encoders("gelu", [0], channels=10)[0]
    with torch.no_grad():
        encoder.out_proj.bias += torch.arange(10)
    whole = FrequencyKernel(encoder, 6, "omega", is_causal)(7)
    thin = some_channels(encoder, 2, is_causal)
    torch.testing.assert_close(FrequencyKernel(thin, 6, "omega", is_causal)(7), whole[[0, -1]])
    assert len(some_channels(encoder, 99, is_causal).out_proj.weight) == 10
    assert len(encoder.out_proj.weight) == 10


def test_the_target_is_a_kernel_and_its_response():
    frequencies = torch.linspace(0, math.pi, 33, dtype=torch.float64)
    lags = torch.arange(400)
    expected = (resonance_taps(lags) * torch.cos(frequencies[:, None] * lags)).sum(dim=1)
    torch.testing.assert_close(resonance(frequencies), expected)


@pytest.mark.parametrize("frequency_input", ["omega", "cosine"])
def test_fitting_approaches_the_target(frequency_input):
    encoder = random_encoders("gelu", [0], channels=1, hidden_size=32)[0]
    error = fit_response(encoder, frequency_input, steps=150)
    assert error < 0.05
    taps = kernel_taps(encoder, frequency_input, 256)[0, :20]
    torch.testing.assert_close(taps, resonance_taps(torch.arange(20)), rtol=0, atol=0.1)


def test_seeds_leave_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second = random_encoders("relu", [1, 1])
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(first.out_proj.weight, second.out_proj.weight)


def test_agreement():
    lags = torch.tensor([1, 2, 3])
    predicted = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    agreement = tail_agreement(1.1 * predicted, predicted, lags)
    assert agreement.ratio.item() == pytest.approx(1.1)
    assert agreement.error.item() == pytest.approx(0.1)
    assert lags_of(torch.zeros(1, 5), False).tolist() == [-2, -1, 0, 1, 2]
    assert lags_of(torch.zeros(1, 5), True).tolist() == [0, 1, 2, 3, 4]


def test_refusals():
    encoders = random_encoders("relu", [0], hidden_size=4)
    with pytest.raises(ValueError, match="at least 16384 is needed"):
        decay_row(encoders, "omega", fft_length=8192)
    with pytest.raises(ValueError, match="0 encoders"):
        decay_row([], "omega")
    with pytest.raises(ValueError, match="fft_length is 7; it must be even"):
        kernel_taps(encoders[0], "omega", 7)
