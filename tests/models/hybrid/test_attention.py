"""Softmax attention and its caches."""

import pytest
import torch
from transformers import DynamicCache

from hf_seqmix.models.hybrid.attention import SoftmaxAttention
from tests.tolerances import assert_close


def test_a_cache_takes_one_sequence_a_row():
    mixer, x = SoftmaxAttention(8, 2).double(), torch.randn(1, 5, 8, dtype=torch.float64)
    packed = torch.tensor([[0, 1, 0, 1, 2]])
    cache = DynamicCache()
    with pytest.raises(ValueError, match="packed sequences cannot fill a cache: pass use_cache=False"):
        mixer(x, past_key_values=cache, position_ids=packed)
    assert cache.get_seq_length() == 0
    parts = [mixer(part) for part in x.split([2, 3], dim=1)]
    assert_close(mixer(x, position_ids=packed), torch.cat(parts, dim=1))
    assert_close(torch.cat([mixer(part, past_key_values=cache) for part in x.split([2, 3], dim=1)], dim=1), mixer(x))


def test_bidirectional_attention_has_no_cache():
    with pytest.raises(ValueError, match="a bidirectional mixer has no cache"):
        SoftmaxAttention(8, 2, is_causal=False)(torch.randn(1, 3, 8), past_key_values=DynamicCache())
