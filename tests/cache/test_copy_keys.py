"""What a copy head keeps: keys and ids of tokens beside the first layer of a cache."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from hf_seqmix.cache import KeyInputsLayer, KeyInputsStaticLayer, copy_keys_of, previous_inputs


def growing() -> KeyInputsLayer:
    return KeyInputsLayer()


def preallocated() -> KeyInputsStaticLayer:
    return KeyInputsStaticLayer(max_cache_len=12)


def copy_keys(layer: Any) -> Any:
    return copy_keys_of(SimpleNamespace(layers=[layer]))


def fill(layer: Any, ids: Tensor) -> Tensor:
    """A mixer's keys and values, of any width, and copy_keys: keys in half precision, ids in integers."""
    states = torch.randn(*ids.shape, 4)[:, None]
    layer.push_inputs("token_shift", states[:, 0], None, 2)
    layer.update(states, states)
    both = torch.stack([ids, ids], dim=-1)[:, None]
    _, held = copy_keys(layer).update(torch.randn(*ids.shape, 3, dtype=torch.bfloat16)[:, None], both)
    return held[:, 0, :, 1]


@pytest.mark.parametrize("make", [growing, preallocated])
def test_ids_are_integers_beyond_half_precision(make):
    layer, ids = make(), torch.tensor([[2999, 30001, 2997], [-1, 5, 100003]])
    fill(layer, ids[:, :2])
    held = fill(layer, ids[:, 2:])
    assert held.dtype == torch.long and torch.equal(held[:, :3], ids)
    assert copy_keys(layer).keys.dtype == torch.bfloat16
    assert layer.get_seq_length() == copy_keys(layer).get_seq_length() == 3


@pytest.mark.parametrize("make", [growing, preallocated])
def test_rows_and_resets_are_shared(make):
    layer, ids = make(), torch.arange(12).view(3, 4)
    fill(layer, ids)
    layer.reorder_cache(torch.tensor([2, 0, 0]))
    assert torch.equal(copy_keys(layer).values[:, 0, :4, 1], ids[[2, 0, 0]])
    layer.reset()
    assert layer.get_seq_length() == copy_keys(layer).get_seq_length() == 0
    assert torch.equal(fill(layer, ids)[:, :4], ids)


def test_copy_keys_are_cropped_repeated_and_selected_with_their_layer():
    layer, ids = growing(), torch.arange(12).view(2, 6)
    fill(layer, ids)
    layer.crop(-2)
    assert layer.get_seq_length() == copy_keys(layer).get_seq_length() == 4
    layer.batch_repeat_interleave(2)
    layer.batch_select_indices(torch.tensor([3, 0]))
    layer.offload()
    assert torch.equal(copy_keys(layer).values[:, 0, :, 1], ids[[1, 0], :4])


def test_copy_keys_of_a_cache():
    cache = DynamicCache()
    cache.layers = [growing()]
    assert copy_keys_of(cache) is copy_keys_of(cache) and copy_keys_of(cache).get_seq_length() == 0
    plain = DynamicCache()
    plain.update(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), 0)
    found = "the cache holds no layer 0 yet", "layer 0 of the cache is DynamicLayer, which keeps no tokens"
    for other, what in zip((DynamicCache(), plain), found, strict=True):
        with pytest.raises(ValueError, match=f"{what}, but the copy head needs tokens"):
            copy_keys_of(other)


def test_an_offloaded_layer_is_brought_back_before_it_is_read(monkeypatch):
    """The library waits for its copies where a layer is updated, and copy_keys are read before."""
    waited = []
    stream = SimpleNamespace(wait_stream=waited.append)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: stream)
    layer = growing()
    cache = SimpleNamespace(layers=[layer], offloading=True, prefetch_stream="copies")
    previous_inputs(cache, 0, "token_shift", torch.randn(2, 6, 4), None, 2)
    assert not waited  # nothing is held yet
    fill(layer, torch.arange(12).view(2, 6))
    layer.offload()
    brought = []
    monkeypatch.setattr(layer, "prefetch", lambda: brought.append(layer))
    previous_inputs(cache, 0, "token_shift", torch.randn(2, 1, 4), None, 2)
    copy_keys_of(cache)
    assert waited == ["copies"] * 2 and brought == [layer] * 2
