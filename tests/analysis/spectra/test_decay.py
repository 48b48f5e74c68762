"""Fits of decay: laws that are known, intervals that cover, floors, and what is refused."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix.analysis.spectra import fit_decay, fit_power_law, planted_coupling, spectrum

K = torch.arange(1, 21, dtype=torch.float64)
SIZES = [1, 2, 3, 4, 6, 8, 12, 16]


def _law(exponent: float, floor: float = 0.0, constant: float = 1.0) -> Tensor:
    return torch.tensor([constant * m**-exponent + floor for m in SIZES], dtype=torch.float64)


def _noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("kind", "values"), [("power", 2 * K**-0.55), ("exp", 2 * torch.exp(-0.55 * K))])
def test_known_laws_are_found(kind: str, values: Tensor) -> None:
    fit = fit_decay(values, kind)
    assert (fit.kind, fit.kmin, fit.kmax, fit.covers) == (kind, 1, 20, "points")
    assert [fit.exponent, fit.constant, fit.envelope, fit.r2] == pytest.approx([0.55, 2, 2, 1], rel=1e-9)
    assert fit.low == pytest.approx(fit.high, abs=1e-9)
    other = fit_decay(values, "power" if kind == "exp" else "exp")
    assert other.r2 < 0.99
    assert other.low < other.exponent < other.high


def test_the_fit_is_of_its_range() -> None:
    values = torch.where(K < 5, 1.0, 5 * K**-1.0)
    fit = fit_decay(values, kmin=5, kmax=11)
    assert (fit.kmin, fit.kmax) == (5, 11)
    assert [fit.exponent, fit.constant] == pytest.approx([1, 5])
    assert fit_decay(values).exponent < 0.9


def test_the_envelope_lies_above_every_value() -> None:
    values = (K**-1 * (1 + 0.2 * (-1) ** K)).sort(descending=True).values
    fit = fit_decay(values)
    assert fit.constant < fit.envelope
    bound = fit.envelope * K**-fit.exponent
    assert (values <= bound * (1 + 1e-12)).all()
    assert (values >= bound * (1 - 1e-12)).sum() == 1


def test_rounding_errors_are_left_out() -> None:
    values = torch.exp(-2 * K)
    assert fit_decay(values, "exp").kmax == 17  # e^-34 is 1.7e-15 of e^-2 and 20 times the resolution 4.4e-15
    assert fit_decay(values, "exp", floor=0).kmax == 20
    assert fit_decay(values, "exp", floor=1e-5).kmax == 6
    both = torch.stack([values, torch.exp(-4 * (K - 1))])
    assert fit_decay(both, "exp", floor=1e-5).kmax == 3  # of any sample
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
        fit = fit_decay(values, kmax=10)
        hits += fit.low <= 0.7 <= fit.high
        widths += fit.high - fit.low
    assert fit.covers == ("samples" if samples > 1 else "points")
    assert hits / runs > 0.9
    assert 0.01 < widths / runs < 0.2
    wider = fit_decay(values, kmax=10, confidence=0.99)
    assert wider.low < fit.low < fit.exponent < fit.high < wider.high


def test_several_samples_are_the_mean_of_their_fits() -> None:
    values = torch.stack([K**-0.5, 2 * K**-0.7, K**-0.9])
    fit = fit_decay(values)
    assert fit.exponent == pytest.approx(0.7)
    half = 4.30265 * 0.2 / math.sqrt(3)  # Student's t of 2 degrees of freedom
    assert [fit.low, fit.high] == pytest.approx([0.7 - half, 0.7 + half], rel=1e-5)
    assert fit.r2 == pytest.approx(1)  # of the mean; the interval, not R^2, says how samples differ


@pytest.mark.parametrize(
    ("exponent", "floor", "constant"),
    [(0.27, 0, 1), (0.27, 0.05, 1), (1, 0.2, 3), (2, 1e-6, 1e-3), (0.5, 10, 1), (-0.5, 0, 1)],
)
def test_known_power_laws_are_found(exponent: float, floor: float, constant: float) -> None:
    fit = fit_power_law(SIZES, _law(exponent, floor, constant), with_floor=True)
    assert [fit.exponent, fit.constant, fit.floor] == pytest.approx([exponent, constant, floor], rel=1e-6)
    assert fit.r2 == pytest.approx(1)
    straight = fit_power_law(torch.tensor(SIZES), _law(exponent, floor, constant).tolist())
    assert straight.floor == 0
    assert (straight.r2 > 1 - 1e-9) == (floor == 0)


@pytest.mark.parametrize(("floor", "seeds", "runs"), [(0.0, 1, 200), (0.0, 5, 200), (0.1, 1, 30), (0.1, 5, 30)])
def test_intervals_of_power_laws_cover(floor: float, seeds: int, runs: int) -> None:
    hits = 0
    for seed in range(runs):
        errors = _law(0.8, floor) * torch.exp(0.02 * _noise(seeds, len(SIZES), seed=seed))
        fit = fit_power_law(SIZES, errors, with_floor=floor > 0)
        hits += fit.low <= 0.8 <= fit.high
        assert fit.high - fit.low < 0.5
        assert abs(fit.floor - floor) < 0.05
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


def test_errors_that_fall_faster_than_a_power_have_no_floor() -> None:
    errors = [math.exp(-0.3 * m) for m in SIZES]
    bent, straight = fit_power_law(SIZES, errors, with_floor=True), fit_power_law(SIZES, errors)
    assert bent == straight
    assert bent.floor == 0


def test_equal_values_leave_nothing_to_explain() -> None:
    fit = fit_decay(torch.full((5,), 0.3))
    assert fit.exponent == pytest.approx(0, abs=1e-12)
    assert fit.constant == pytest.approx(0.3)
    assert math.isnan(fit.r2)


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        (K.flip(0), {"kind": "log"}, "kind is 'log'; give one of 'power', 'exp'"),
        (K.flip(0), {"kmin": 0}, "kmin is 0 and kmax 20; give 1 <= kmin <= kmax <= 20"),
        (K.flip(0), {"kmax": 21}, "kmin is 1 and kmax 21"),
        (K.flip(0), {"kmin": 4, "kmax": 5}, r"2 values from k = 4 to 5 lie above .*; at least 3 are needed"),
        (torch.exp(-20 * K), {}, r"2 values from k = 1 to 20 lie above .*; at least 3 are needed: widen"),
        (torch.zeros(5), {}, "0 values from k = 1 to 5"),
        (K.flip(0), {"floor": 1.0}, "floor is 1.0; give a size relative to the largest value"),
        (K.flip(0), {"confidence": 95}, "confidence is 95; give a number between 0 and 1"),
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
    ("sizes", "errors", "with_floor", "message"),
    [
        ([1, 2, 3], [1.0, 0.5], False, r"sizes have shape \(3,\) and errors \(1, 2\); give one error"),
        ([[1, 2, 3]], [1.0, 0.5, 0.2], False, r"sizes have shape \(1, 3\)"),
        ([1, 2], [1.0, 0.5], False, "2 sizes, 2 distinct; give at least 3 sizes"),
        ([1, 2, 3], [1.0, 0.5, 0.4], True, "3 sizes, 3 distinct; give at least 4 sizes"),
        ([1, 2, 2, 3], [1.0, 0.5, 0.4, 0.3], False, "4 sizes, 3 distinct; give at least 3 sizes, each once"),
        ([0, 1, 2], [1.0, 0.5, 0.4], False, "must be positive and finite"),
        ([1, 2, 3], [1.0, 0.5, 0.0], False, "must be positive and finite"),
        ([1, 2, 3], [1.0, 0.5, math.inf], False, "give finite real numbers"),
    ],
)
def test_wrong_errors_are_refused(sizes: Any, errors: Any, with_floor: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_power_law(sizes, errors, with_floor)
