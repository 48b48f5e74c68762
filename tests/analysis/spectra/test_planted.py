"""Couplings with a known spectrum: exact by quadrature, and what is refused."""

import math

import pytest
import torch

from hf_seqmix.analysis.spectra import spectrum
from tests.analysis.spectra.planted import (
    SHEARED_SINGULAR_VALUES,
    planted_coupling,
    planted_features,
    sheared_coupling,
)

GRID = (torch.arange(24, dtype=torch.float64) + 0.5) / 24
"""Midpoints integrate trigonometric polynomials of degree below 24 exactly."""


@pytest.mark.parametrize("values", [[1 / k for k in range(1, 7)], [0.3], [2.0, 2.0, 0.0]])
def test_planted_values_are_the_spectrum(values: list[float]) -> None:
    others = (torch.arange(31, dtype=torch.float64) + 0.5) / 31
    coupling = planted_coupling(GRID, others, values)
    assert coupling.shape == (24, 31)
    found = spectrum(coupling).mean
    assert found[: len(values)].tolist() == pytest.approx(values, abs=1e-12)
    assert found[len(values) :].max() < 1e-12
    assert coupling.sum(dim=-1).abs().max() < 1e-12


def test_a_coupling_is_the_sum_of_products() -> None:
    u, v = torch.tensor([[0.1], [0.7]]), torch.tensor([[0.25, 0.4, 1.0]] * 2)
    values = [1.5, 0.5]
    coupling = planted_coupling(u, v, values)
    assert coupling.shape == (2, 1, 3)
    assert coupling.dtype == torch.float64
    by_hand = [
        sum(
            2 * s * math.sin(2 * math.pi * k * u[row, 0].item()) * math.sin(2 * math.pi * k * v[row, column].item())
            for k, s in enumerate(values, start=1)
        )
        for row in range(2)
        for column in range(3)
    ]
    assert coupling.flatten().tolist() == pytest.approx(by_hand, abs=1e-12)
    queries, keys = planted_features(u, v, torch.tensor(values))
    assert queries.shape == (2, 1, 2)
    assert keys.shape == (2, 3, 2)


def test_shearing_changes_the_spectrum() -> None:
    found = spectrum(sheared_coupling(GRID[:, None], GRID)).mean
    assert found[:3].tolist() == pytest.approx(SHEARED_SINGULAR_VALUES, abs=1e-12)
    assert found[:3].tolist() == pytest.approx([1.26217, 0.5, 0.39614], abs=1e-5)
    assert found[3] < 1e-12
    # Shearing moves mass and does not make any: 1^2 + 1^2 before.
    assert found.square().sum().item() == pytest.approx(2)


@pytest.mark.parametrize("values", [[], [[1.0]], [-1.0], [math.nan]])
def test_wrong_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"singular_values are .*; give a list of finite numbers of at least 0"):
        planted_coupling(GRID, GRID, values)


@pytest.mark.parametrize("token", [-0.1, 1.1, math.nan])
def test_tokens_outside_the_interval_are_refused(token: float) -> None:
    with pytest.raises(ValueError, match=r"v has tokens outside \[0, 1\]"):
        planted_coupling(GRID, torch.tensor([0.5, token]), [1.0])
