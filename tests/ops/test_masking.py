"""Positions by masks and by boundaries of packed sequences."""

import torch

from hf_seqmix.ops.masking import padding_mask, real_positions
from hf_seqmix.ops.packing import sequence_positions


def test_real_positions():
    mask = torch.tensor([[0, 0, 1, 1], [1, 0, 1, 1]])
    assert real_positions(mask, 2, 4, 0, mask.device).tolist() == [[0, 0, 0, 1], [0, 0, 1, 2]]
    assert real_positions(mask, 2, 2, 2, mask.device).tolist() == [[0, 1], [1, 2]]
    assert real_positions(None, 2, 3, 5, mask.device).tolist() == [[5, 6, 7]]
    # A mask of the new tokens alone: all that the cache holds count as real.
    assert real_positions(mask, 2, 4, 5, mask.device).tolist() == [[4, 4, 5, 6], [5, 5, 6, 7]]


def test_sequence_positions():
    ids = torch.tensor([[0, 0, 1, 1, 1], [3, 4, 4, 4, 5]])
    assert sequence_positions(ids).tolist() == [[0, 1, 0, 1, 2], [0, 0, 1, 2, 0]]
    ids = torch.tensor([[5, 0, 0, 5, 1], [3, 4, 7, 4, 5]])
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 1, 1]]).bool()
    assert sequence_positions(ids, mask)[mask].tolist() == [0, 1, 0, 0, 0, 1, 0]


def test_masks_prepared_for_layers_say_what_the_last_query_sees():
    """A mask of each layer's type: 2D for convolutions, 4D for attention, boolean or to be added to scores."""
    full = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    assert padding_mask(full, 2, 2, 2) is full
    assert padding_mask({"linear": full}, 2, 2, 2).tolist() == [[1, 1], [1, 1]]
    assert padding_mask({"linear": full}, 2, 2, 0).tolist() == [[0, 1], [1, 1]]
    seen = full.bool()[:, None, None, :].expand(2, 1, 2, 4)
    added = torch.zeros(2, 1, 2, 4).masked_fill(~seen, -torch.inf)
    for prepared in (seen, added):
        assert padding_mask({"full": prepared}, 2, 2, 0).tolist() == [[False, True], [True, True]]
    assert padding_mask({"full": seen, "linear": None}, 2, 2, 0) is None
