"""Layers that keep the last inputs of the keys: growing and preallocated."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from hf_seqmix.cache.key_inputs import KeyInputsLayer, KeyInputsStaticLayer, last_real, previous_inputs


def growing() -> KeyInputsLayer:
    return KeyInputsLayer()


def preallocated() -> KeyInputsStaticLayer:
    return KeyInputsStaticLayer(max_cache_len=40)


def push(layer: Any, inputs: Tensor, real: Tensor | None, count: int = 2) -> Tensor:
    """As a mixer does: inputs first, then keys of width 3 and values of width 5."""
    before = layer.push_inputs(inputs, real, count)
    layer.update(inputs[:, None, :, :3], inputs[:, None].repeat(1, 1, 1, 2)[..., :5])
    return before


@pytest.mark.parametrize("make", [growing, preallocated])
def test_inputs_before_each_call(make):
    """(batch, count, channels): the last real ones, zeros first where there were fewer."""
    real = torch.tensor([[0, 0, 1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0]]).bool()
    x = torch.randn(2, 9, 4) * real.unsqueeze(-1)
    layer, past = make(), 0
    for size in (1, 3, 2, 3):
        part, flags = x[:, past : past + size], real[:, past : past + size]
        before = push(layer, part, flags)
        assert before.shape == (2, 2, 4)
        assert torch.equal(before, last_real(x[:, :past], real[:, :past], 2))
        past += size
    assert layer.get_seq_length() == 9
    assert torch.equal(layer.keys[:, 0, :9], x[..., :3])


@pytest.mark.parametrize("make", [growing, preallocated])
def test_rows_are_reordered_with_their_inputs(make):
    layer, x = make(), torch.randn(3, 5, 4)
    push(layer, x, None)
    layer.reorder_cache(torch.tensor([2, 2, 0]))
    assert torch.equal(push(layer, x[:, :1], None), x[[2, 2, 0], 3:])
    assert torch.equal(layer.keys[:, 0, :5], x[[2, 2, 0], :, :3])


@pytest.mark.parametrize("make", [growing, preallocated])
def test_a_reset_forgets_all(make):
    layer, x = make(), torch.randn(2, 5, 4)
    push(layer, x, None)
    layer.reset()
    assert layer.get_seq_length() == 0
    assert not push(layer, x, None).any()


def test_rows_are_repeated_and_selected():
    layer, x = growing(), torch.randn(2, 5, 4)
    layer.batch_repeat_interleave(2)  # of nothing
    push(layer, x, None)
    layer.batch_repeat_interleave(2)
    layer.batch_select_indices(torch.tensor([3, 0, 1]))
    assert torch.equal(push(layer, x[[0, 0, 1], :1], None), x[[1, 0, 0], 3:])


def test_caches_that_keep_no_inputs():
    cache = DynamicCache()
    with pytest.raises(ValueError, match=r"layer 0 of the cache is NoneType, which keeps no inputs, but token_shift"):
        previous_inputs(cache, 0, torch.randn(1, 3, 4), None, 2)
    cache.update(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), 0)
    with pytest.raises(ValueError, match=r"is DynamicLayer, which keeps no inputs"):
        previous_inputs(cache, 0, torch.randn(1, 3, 4), None, 2)
