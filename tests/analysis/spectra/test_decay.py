"""Fits of decay: laws that are known, intervals that cover, floors, and what is refused."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix.analysis.spectra import fit_decay, fit_power_law, spectrum
from tests.analysis.spectra.planted import planted_coupling

K = torch.arange(1, 21, dtype=torch.float64)
SIZES = [1, 2, 3, 4, 6, 8, 12, 16]


def _law(exponent: float, constant: float = 1.0) -> Tensor:
    return torch.tensor([constant * m**-exponent for m in SIZES], dtype=torch.float64)


def _noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_known_laws_are_found() -> None:
    fit = fit_decay(2 * K**-0.55)
    assert (fit.kmax, fit.covers) == (20, "points")
    assert [fit.exponent, fit.constant, fit.envelope, fit.r2] == pytest.approx([0.55, 2, 2, 1], rel=1e-9)
    assert fit.low == pytest.approx(fit.high, abs=1e-9)
    other = fit_decay(torch.exp(-0.55 * K))
    assert other.r2 < 0.99
    assert other.low < other.exponent < other.high


def test_the_envelope_lies_above_every_value() -> None:
    values = (K**-1 * (1 + 0.2 * (-1) ** K)).sort(descending=True).values
    fit = fit_decay(values)
    assert fit.constant < fit.envelope
    bound = fit.envelope * K**-fit.exponent
    assert (values <= bound * (1 + 1e-12)).all()
    assert (values >= bound * (1 - 1e-12)).sum() == 1


def test_rounding_errors_are_left_out() -> None:
    values = torch.exp(-2 * K)
    assert fit_decay(values).kmax == 17  # e^-34 is 1.7e-15 of e^-2 and 20 times the resolution 4.4e-15
    assert fit_decay(values, floor=0).kmax == 20
    assert fit_decay(values, floor=1e-5).kmax == 6
    both = torch.stack([values, torch.exp(-4 * (K - 1))])
    assert fit_decay(both, floor=1e-5).kmax == 3  # of any sample
    grid = (torch.arange(40, dtype=torch.float64) + 0.5) / 40
    planted = spectrum(planted_coupling(grid, grid, [1 / k for k in range(1, 7)]).float())
    fit = fit_decay(planted.mean, floor=planted.resolution)
    assert fit.kmax == 6
    assert [fit.exponent, fit.constant] == pytest.approx([1, 1], rel=1e-4)


@pytest.mark.parametrize("samples", [1, 4])
def test_intervals_of_decay_cover(samples: int) -> None:
    runs, hits, widths = 300, 0, 0.0
    for seed in range(runs):
        values = (K**-0.7 * torch.exp(0.05 * _noise(samples, len(K), seed=seed))).sort(dim=-1, descending=True).values
        fit = fit_decay(values[:, :10])
        hits += fit.low <= 0.7 <= fit.high
        widths += fit.high - fit.low
    assert fit.covers == ("samples" if samples > 1 else "points")
    assert hits / runs > 0.9
    assert 0.01 < widths / runs < 0.2


def test_several_samples_are_the_mean_of_their_fits() -> None:
    values = torch.stack([K**-0.5, 2 * K**-0.7, K**-0.9])
    fit = fit_decay(values)
    assert fit.exponent == pytest.approx(0.7)
    half = 4.30265 * 0.2 / math.sqrt(3)  # Student's t of 2 degrees of freedom
    assert [fit.low, fit.high] == pytest.approx([0.7 - half, 0.7 + half], rel=1e-5)
    assert fit.r2 == pytest.approx(1)  # of the mean; the interval, not R^2, says how samples differ


@pytest.mark.parametrize(("exponent", "constant"), [(0.27, 1), (1, 3), (2, 1e-3), (-0.5, 1)])
def test_known_power_laws_are_found(exponent: float, constant: float) -> None:
    for sizes, errors in ((SIZES, _law(exponent, constant)), (torch.tensor(SIZES), _law(exponent, constant).tolist())):
        fit = fit_power_law(sizes, errors)
        assert [fit.exponent, fit.constant, fit.r2] == pytest.approx([exponent, constant, 1], rel=1e-6)
    assert fit_power_law(SIZES, _law(exponent, constant) + constant / 10).r2 < 1 - 1e-5


@pytest.mark.parametrize("seeds", [1, 5])
def test_intervals_of_power_laws_cover(seeds: int) -> None:
    hits, runs = 0, 200
    for seed in range(runs):
        errors = _law(0.8) * torch.exp(0.02 * _noise(seeds, len(SIZES), seed=seed))
        fit = fit_power_law(SIZES, errors)
        hits += fit.low <= 0.8 <= fit.high
        assert fit.high - fit.low < 0.5
    assert hits / runs >= 0.9
    assert fit.covers == ("samples" if seeds > 1 else "points")


def test_what_seeds_share_over_sizes_is_in_the_interval() -> None:
    # Seeds of other exponents: distances from a line say nothing of these, seeds do.
    exponents = 0.8 + 0.1 * _noise(6, seed=0)
    errors = torch.tensor(SIZES, dtype=torch.float64) ** -exponents[:, None]
    fit = fit_power_law(SIZES, errors)
    assert fit.exponent == pytest.approx(exponents.mean().item())
    assert fit.high - fit.exponent == pytest.approx(2.57058 * exponents.std().item() / math.sqrt(6), rel=1e-5)
    alone = fit_power_law(SIZES, errors[0])
    assert alone.high - alone.low < 1e-9


def test_equal_values_leave_nothing_to_explain() -> None:
    fit = fit_decay(torch.full((5,), 0.3))
    assert fit.exponent == pytest.approx(0, abs=1e-12)
    assert fit.constant == pytest.approx(0.3)
    assert math.isnan(fit.r2)


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        (torch.exp(-20 * K), {}, "2 values lie above .*; at least 3 are needed: lower floor"),
        (torch.zeros(5), {}, "0 values lie above"),
        (K.flip(0), {"floor": 1.0}, "floor is 1.0; give a size relative to the largest value"),
        (K, {}, "must be at least 0 and descending"),
        (-K, {}, "must be at least 0 and descending"),
        (K.flip(0)[None, None], {}, r"singular_values have shape \(1, 1, 20\)"),
        (torch.tensor([1.0, math.nan, 0.1]), {}, "give finite real numbers"),
    ],
)
def test_wrong_spectra_are_refused(values: Tensor, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_decay(values, **arguments)


@pytest.mark.parametrize(
    ("sizes", "errors", "message"),
    [
        ([1, 2, 3], [1.0, 0.5], r"sizes have shape \(3,\) and errors \(1, 2\); give one error"),
        ([[1, 2, 3]], [1.0, 0.5, 0.2], r"sizes have shape \(1, 3\)"),
        ([1, 2], [1.0, 0.5], "2 sizes, 2 distinct; give at least 3 sizes"),
        ([1, 2, 2, 3], [1.0, 0.5, 0.4, 0.3], "4 sizes, 3 distinct; give at least 3 sizes, each once"),
        ([0, 1, 2], [1.0, 0.5, 0.4], "must be positive and finite"),
        ([1, 2, 3], [1.0, 0.5, 0.0], "must be positive and finite"),
        ([1, 2, 3], [1.0, 0.5, math.inf], "give finite real numbers"),
    ],
)
def test_wrong_errors_are_refused(sizes: Any, errors: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_power_law(sizes, errors)
