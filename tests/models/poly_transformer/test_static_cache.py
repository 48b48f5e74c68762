"""Sums in a preallocated cache."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from hf_seqmix import PolyTransformerConfig, PolyTransformerForCausalLM
from tests.tolerances import assert_close


@pytest.mark.parametrize("gated", [False, True])
def test_a_static_cache_refuses_other_rows(gated):
    """Sums of other rows would be lost without a word."""
    config = PolyTransformerConfig(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, forget_gate=gated
    )
    model = PolyTransformerForCausalLM(config).eval()
    cache = StaticCache(config=config, max_cache_len=64)
    ids = torch.randint(23, (3, 8))
    model(ids[:1], past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="3 rows cannot continue a cache of 1 rows"):
        model(ids, past_key_values=cache, use_cache=True)
    cache.reset()
    model(ids, past_key_values=cache, use_cache=True)
    for rows in (2, 3):  # of many tokens, which are computed in chunks
        cache.reset()
        long = torch.randint(23, (rows, 60))
        logits = model(long, past_key_values=cache, use_cache=True).logits
        assert_close(logits, model(long).logits)


@pytest.mark.parametrize("gated", [False, True])
def test_gradients_reach_through_a_static_cache_and_no_rows_are_no_fault(gated):
    config = PolyTransformerConfig(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, forget_gate=gated
    )
    model = PolyTransformerForCausalLM(config).eval()
    ids = torch.randint(23, (2, 90))
    cache = StaticCache(config=config, max_cache_len=100)
    model(ids[:, :40], past_key_values=cache, use_cache=True)
    model(ids[:, 40:], past_key_values=cache, use_cache=True).logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    out = model(ids[:0], past_key_values=DynamicCache(config=config), use_cache=True)
    assert out.logits.shape == (0, 90, 23)
