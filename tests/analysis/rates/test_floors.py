"""Floors: the known numbers of tables 2 and 3, closed forms, and samples beside exact values."""

import pytest
import torch

from hf_seqmix.analysis.rates import (
    PREDICTORS,
    LinearTarget,
    error_floors,
    exact_floors,
    exchange_ends,
    mix,
    permute,
    sampled_floors,
)
from tests.analysis.rates.inputs import TwoOutputs

TABLE_2 = LinearTarget.from_kernel()


def errors(target):
    return {name: floor.mse for name, floor in exact_floors(target).items()}


def test_the_original_of_table_2_is_exactly_a_causal_filter():
    found = errors(TABLE_2)
    assert list(found) == list(PREDICTORS)
    assert max(found[name] for name in PREDICTORS[2:]) < 1e-20
    energy = torch.tensor(TABLE_2.taps, dtype=torch.float64).square().cumsum(0) / 12
    assert found["time_dependent_mean"] == pytest.approx(energy.mean().item(), rel=1e-12)


def test_permuted_inputs_of_table_2():
    found = errors(permute(TABLE_2))
    assert found["causal_linear"] == pytest.approx(3.0e-2, abs=5e-4)
    assert found["causal_filter"] == pytest.approx(6.5e-2, abs=5e-4)
    assert found["causal_filter_without_bias"] == pytest.approx(8.0e-2, abs=1e-3)
    # With a bias a position, taps are the means along the diagonals, and the error is the variance along them.
    matrix, positions = permute(TABLE_2).matrix(), range(TABLE_2.length)
    misses = [matrix.diagonal(-lag).var(correction=0) * (TABLE_2.length - lag) for lag in positions]
    wanted = (sum(misses) + matrix.triu(1).square().sum()) / 12 / TABLE_2.length
    assert found["causal_filter_with_mean"] == pytest.approx(wanted.item(), rel=1e-12)
    assert found["causal_filter_with_mean"] == pytest.approx(5.26e-2, abs=5e-5)  # above the 3.57e-2 of the paper
    assert found["bidirectional_linear"] < 1e-20


def test_permuted_kernel_of_table_2():
    found = errors(permute(TABLE_2, mode="kernel"))
    assert found["causal_filter"] < 1e-20
    assert found["time_dependent_mean"] == pytest.approx(2.96e-2, abs=5e-5)


def test_mixing_of_table_2():
    assert errors(mix(TABLE_2, [0.4, 0.6]))["causal_filter_without_bias"] < 1e-20
    # Only 0.6 x(t + 1) lies ahead, at all positions but the last.
    ahead = errors(mix(TABLE_2, [0.4, 0.6], causal=False))["causal_linear"]
    assert ahead == pytest.approx(0.6**2 / 12 * 31 / 32, rel=1e-12)
    assert ahead == pytest.approx(2.9e-2, abs=1e-4)


def test_a_random_kernel_as_that_of_table_3():
    target = LinearTarget.from_kernel("uniform", seed=2)
    found, taps = errors(target), torch.tensor(target.taps, dtype=torch.float64)
    after_mean = taps.square().cumsum(0).mean().item() / 12
    variance = after_mean + (taps.cumsum(0) / 2).var(correction=0).item()
    assert found["time_dependent_mean"] == pytest.approx(after_mean, rel=1e-12) == pytest.approx(0.50, abs=0.01)
    assert found["constant"] == pytest.approx(variance, rel=1e-12) == pytest.approx(6.38, abs=0.05)


@pytest.mark.parametrize(
    "target",
    [
        LinearTarget((0.7,)),
        permute(LinearTarget.from_kernel(length=7), exchange_ends(7, 3)),
        mix(LinearTarget.from_kernel("oscillating", 5), [0.2, 0.5], causal=False),
    ],
)
def test_samples_agree_with_exact_floors(target):
    exact, sampled = exact_floors(target), sampled_floors(target, 4096)
    for name in PREDICTORS:
        expected, found = exact[name], sampled[name]
        assert expected.standard_error == 0
        # Coefficients that are estimated, too, make the estimate larger by a share of parameters over rows.
        slack = 3 * found.standard_error + expected.mse * (target.length + 1) / 4096 + 1e-20
        assert abs(found.mse - expected.mse) <= slack, name


def test_richer_predictors_have_lower_floors():
    constant, mean, filter_alone, with_bias, with_mean, causal, bidirectional = errors(permute(TABLE_2)).values()
    assert constant > mean > with_mean > causal > bidirectional
    assert constant > filter_alone > with_bias > with_mean


def test_several_inputs_and_outputs():
    found = error_floors(TwoOutputs(3), 2000)
    # The means are linear, the squares only nearly.
    assert 0 < found["bidirectional_linear"].mse < 0.95 * found["constant"].mse


def test_wrong_arguments():
    with pytest.raises(ValueError, match="TwoOutputs is not linear, so its floors are not exact; use sampled_floors"):
        exact_floors(TwoOutputs())
    with pytest.raises(ValueError, match="rows is 10; it must be at least 34"):
        sampled_floors(TABLE_2, 10)


def test_standard_errors_fall_with_the_root_of_the_rows():
    few, many = (sampled_floors(LinearTarget.from_kernel("exponential", 4), rows) for rows in (200, 3200))
    for name, floor in few.items():
        if floor.standard_error > 1e-12:
            assert floor.standard_error == pytest.approx(4 * many[name].standard_error, rel=0.5)
