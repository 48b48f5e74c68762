"""Layers of keys and values of any widths, growing and preallocated."""

import pytest
import torch
from transformers import DynamicCache

from hf_seqmix.cache.key_inputs import KeyInputsLayer, KeyInputsStaticLayer, append_keys, previous_inputs


@pytest.mark.parametrize("layer", [KeyInputsLayer(), KeyInputsStaticLayer(max_cache_len=40)], ids=str)
def test_keys_and_values_have_widths_of_their_own(layer):
    if layer.is_compileable:
        layer.lazy_initialization(torch.zeros(2, 1, 0, 4), torch.zeros(2, 1, 0, 4))  # as early initialization does
    x = torch.randn(2, 1, 9, 8)
    for part in x.split([1, 3, 5], dim=2):
        layer.update(part[..., :3], part[..., 3:])
    assert layer.get_seq_length() == 9
    assert torch.equal(layer.keys[:, :, :9], x[..., :3])
    assert torch.equal(layer.values[:, :, :9], x[..., 3:])


def test_a_layer_of_the_library_takes_as_many_rows_as_it_holds():
    cache, x = DynamicCache(), torch.randn(2, 1, 3, 4)
    append_keys(cache, 0, x, x)
    keys, _ = append_keys(cache, 0, x, x)
    assert torch.equal(keys, torch.cat([x, x], dim=2))
    with pytest.raises(ValueError, match="1 rows cannot continue a cache of 2 rows: give as many rows"):
        append_keys(cache, 0, x[:1], x[:1])
    assert cache.get_seq_length() == 6


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        ((1, 4), (2, 4), "keys of 2 heads of width 4, but this mixer has 1 of width 4"),
        ((2, 4), (2, 3), "values of 2 "),
    ],
)
def test_a_layer_of_the_library_takes_keys_and_values_of_the_shape_that_it_holds(keys, values, message):
    cache, x = DynamicCache(), torch.randn(2, 2, 3, 4)
    append_keys(cache, 0, x, x)
    with pytest.raises(ValueError, match=f"holds {message}"):
        append_keys(cache, 0, torch.randn(2, keys[0], 1, keys[1]), torch.randn(2, values[0], 1, values[1]))
    assert cache.get_seq_length() == 3


def test_caches_that_keep_no_inputs():
    cache = DynamicCache()
    with pytest.raises(ValueError, match=r"the cache holds no layer 0 yet, but short convolutions"):
        previous_inputs(cache, 0, "block", torch.randn(1, 3, 4), None, 2)
    cache.update(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), 0)
    with pytest.raises(ValueError, match=r"is DynamicLayer, which keeps no inputs"):
        previous_inputs(cache, 0, "block", torch.randn(1, 3, 4), None, 2)
