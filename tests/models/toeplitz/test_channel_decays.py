"""Blocks of channels."""

import pytest
import torch

from hf_seqmix.models.toeplitz.channel_decays import block_sizes, by_channel, decay_of_each_channel


@pytest.mark.parametrize(("blocks", "channels"), [(1, 1), (1, 5), (2, 6), (2, 7), (3, 7), (5, 5), (4, 1537)])
def test_blocks_are_those_of_the_formula(blocks, channels):
    numbers = [channel * blocks // channels for channel in range(channels)]
    sizes = block_sizes(blocks, channels)
    assert sizes == [numbers.count(block) for block in range(blocks)]
    assert max(sizes) - min(sizes) <= 1
    values = [0.5 + block for block in range(blocks)]
    like = torch.zeros(1, dtype=torch.float64)
    assert by_channel(values, channels, like, torch.zeros(channels, 2)).squeeze(1).tolist() == [
        values[number] for number in numbers
    ]
    assert decay_of_each_channel(values, channels) == [values[number] for number in numbers]
    assert decay_of_each_channel(0.9, channels) == [0.9] * channels
