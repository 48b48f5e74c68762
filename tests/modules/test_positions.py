"""Absolute positions."""

import math

import pytest
import torch

from hf_seqmix.modules.positions import sinusoids


@pytest.mark.parametrize("channels", [1, 2, 5, 8])
def test_sinusoids_by_their_formula(channels):
    positions = torch.tensor([[0, 3, 500], [7, 1, 0]])
    half = math.ceil(channels / 2)
    angles = [[[p * 10000 ** (-i / max(half - 1, 1)) for i in range(half)] for p in row] for row in positions.tolist()]
    expected = [[[*map(math.sin, a), *map(math.cos, a)][:channels] for a in row] for row in angles]
    actual = sinusoids(positions, channels)
    assert actual.shape == (2, 3, channels) and actual.dtype == torch.float32
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=1e-4)
