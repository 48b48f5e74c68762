"""Fits by decaying modes against planted modes, the dense Hankel matrix, and their own bounds."""

import pytest
import torch

from hf_seqmix.ops.toeplitz.distillation import fit_modes, modal_taps

CHANNELS, FIRST = 5, 7


def planted(poles, length=500):
    """Return taps that are a sum of modes from lag FIRST on, and anything before."""
    poles = torch.tensor(poles, dtype=torch.complex128)
    weights = torch.randn(CHANNELS, len(poles), dtype=torch.complex128)
    head = torch.randn(CHANNELS, FIRST, dtype=torch.float64)
    return torch.cat([head, modal_taps(poles, weights, length)], dim=1)


def noise(decay, length=300):
    return torch.randn(CHANNELS, length, dtype=torch.float64) * decay ** torch.arange(length)


def ordered(poles):
    return sorted((complex(pole) for pole in poles), key=lambda pole: (round(pole.real, 6), pole.imag))


@pytest.mark.parametrize(
    ("poles", "order"), [([0.95], 1), ([0.94, -0.6], 2), ([0.95, 0.6 + 0.7j, -0.2 + 0.9j], 5), ([0.94j], 2)]
)
def test_planted_modes_are_found(poles, order):
    taps = planted(poles)
    fit = fit_modes(taps, FIRST, tolerance=1e-9)
    assert fit.order == order and fit.error < 1e-9
    for found, pole in zip(ordered(fit.poles), ordered(poles), strict=True):
        assert abs(found - pole) < 1e-8
    again = modal_taps(fit.poles, fit.weights, taps.shape[1] - FIRST)
    assert (again - taps[:, FIRST:]).abs().max() < 1e-8 * taps.abs().max()


def test_singular_values_are_those_of_the_hankel_matrix():
    taps = noise(0.9, 120)
    lags = torch.arange(120 - FIRST)
    tails = torch.nn.functional.pad(taps[:, FIRST:] / taps.abs().sum(dim=1, keepdim=True), (0, len(lags)))
    matrix = tails[:, lags[:, None] + lags].permute(1, 0, 2).flatten(1)
    exact = torch.linalg.svdvals(matrix)
    fit = fit_modes(taps, FIRST, order=9)
    assert (fit.singular_values[:40] - exact[:40]).abs().max() < 1e-9 * exact[0]
    assert fit.bound >= 2 * exact[9:].sum() * (1 - 1e-9)


@pytest.mark.parametrize("decay", [0.8, 0.95, 1.0])
@pytest.mark.parametrize("order", [1, 2, 5, 16])
def test_no_error_is_outside_its_bounds(decay, order):
    taps = noise(decay)
    fit = fit_modes(taps, FIRST, order)
    assert fit.order == order and bool((fit.poles.abs() < 1).all())
    length = 40_000
    kernel = torch.cat([taps[:, :FIRST], modal_taps(fit.poles, fit.weights, length)], dim=1)
    kernel[:, : taps.shape[1]] -= taps
    errors = kernel / taps.abs().sum(dim=1, keepdim=True)
    assert errors.square().sum().sqrt() <= fit.bound
    assert errors.abs().sum(dim=1).square().sum().sqrt() >= fit.singular_values[order] * (1 - 1e-9)
    assert bool((errors.abs().sum(dim=1) <= fit.errors * (1 + 1e-9)).all())
    assert fit.tap_error == pytest.approx(float(errors.abs().max()))


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_a_kernel_that_is_no_sum_of_modes_meets_the_tolerance(tolerance):
    lags = torch.arange(3000, dtype=torch.float64)
    shift = torch.rand(CHANNELS, 1, dtype=torch.float64)
    taps = 0.99**lags * (1 / (lags + 1 + shift) + shift * (lags - 40).abs() / (lags + 50))
    fit = fit_modes(taps, 32, tolerance=tolerance)
    assert 1 < fit.order < 24 and fit.error <= tolerance
    assert fit_modes(taps, 32, order=fit.order - 1).error > tolerance


def test_what_lies_beyond_the_taps_is_an_error():
    taps = planted([0.9])
    sizes = taps.abs().sum(dim=1)
    assert fit_modes(taps, FIRST, tolerance=0.1, beyond=0.01 * sizes).error == pytest.approx(0.01, rel=1e-3)


def test_what_lies_beyond_exact_taps_alone_is_an_error():
    taps = noise(0.9, FIRST)
    beyond = 0.01 * taps.abs().sum(dim=1)
    assert fit_modes(taps, FIRST, tolerance=0.1, beyond=beyond).error == pytest.approx(0.01)
    assert fit_modes(taps, FIRST, order=1, beyond=beyond).error == pytest.approx(0.01)
    with pytest.raises(ValueError, match=r"0 modes leave an error of 0\.01 .* the tolerance is 0\.001"):
        fit_modes(taps, FIRST, tolerance=1e-3, beyond=beyond)


@pytest.mark.parametrize("order", [None, 2, 5])
@pytest.mark.parametrize("length", [1, FIRST, FIRST + 1, FIRST + 2, FIRST + 5])
def test_hardly_any_tail(length, order):
    fit = fit_modes(noise(0.9, length), FIRST, order, tolerance=0.9)
    assert fit.error < 1 and bool((fit.poles.abs() < 1).all())
    assert fit.weights.shape == (CHANNELS, len(fit.poles))
    if length <= FIRST:
        assert fit.error == 0 and not fit.weights.abs().any()


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(ValueError, match="keep more exact taps"):
        fit_modes(noise(1.0), FIRST, tolerance=1e-3)
    for wrong in ({"first": 0}, {"first": 3, "order": 65}, {"first": 3, "tolerance": 1.0}):
        with pytest.raises(ValueError, match="between 0 and 1"):
            fit_modes(noise(0.9), **wrong)
    with pytest.raises(ValueError, match="one tap or more"):
        fit_modes(torch.zeros(3), 1)
