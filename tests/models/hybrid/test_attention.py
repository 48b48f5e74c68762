"""Softmax attention and its caches."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from hf_seqmix import AttentionConfig, SeqMixHybridConfig, SeqMixHybridForCausalLM
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


def dense_attention(mixer: SoftmaxAttention, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by its formula, a head, a query and a key at a time, without positions."""
    batch, length, _ = x.shape
    query, key, value = (
        layer(x).unflatten(-1, (mixer.num_heads, mixer.head_dim))
        for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj)
    )
    weights = torch.zeros(batch, mixer.num_heads, length, length, dtype=x.dtype)
    mixed = torch.zeros_like(value)
    for row in range(batch):
        for head in range(mixer.num_heads):
            for t in range(length):
                seen = range(t + 1 if mixer.is_causal else length)
                scores = torch.stack([query[row, t, head] @ key[row, s, head] for s in seen]) / mixer.head_dim**0.5
                share = scores.exp() / scores.exp().sum()
                weights[row, head, t, : len(seen)] = share
                mixed[row, t, head] = sum(share[s] * value[row, s, head] for s in seen)
    return mixer.o_proj(mixed.flatten(2)), weights


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("num_heads", "head_dim", "length"), [(3, 5, 7), (1, 1, 1), (2, 16, 5)])
def test_heads_of_any_width_are_the_formula(num_heads, head_dim, length, is_causal):
    mixer = SoftmaxAttention(8, num_heads, is_causal, rope_theta=None, head_dim=head_dim).double()
    x = torch.randn(2, length, 8, dtype=torch.float64)
    y, weights = mixer(x, output_attentions=True)
    expected, expected_weights = dense_attention(mixer, x)
    assert_close(y, expected)
    assert_close(weights, expected_weights)
    assert_close(mixer(x), expected)


def test_rotary_positions_want_pairs_of_channels():
    with pytest.raises(ValueError, match="a head has 5 channels, but rotary positions turn pairs"):
        SoftmaxAttention(8, 3, head_dim=5)
    with pytest.raises(ValueError, match=r"num_heads is 3, which does not divide hidden_size 8: .* give head_dim"):
        SoftmaxAttention(8, 3)
    with pytest.raises(ValueError, match="head_dim is 0; it must be at least 1"):
        AttentionConfig(hidden_size=8, head_dim=0)
    for wrong in ({"num_heads": 0}, {"num_heads": -1, "head_dim": 4}, {"head_dim": 0}):
        with pytest.raises(ValueError, match="; it must be at least 1"):
            SoftmaxAttention(16, **wrong)
    with pytest.raises(TypeError, match=r"num_heads is 2.0; it must be an integer, at least 1"):
        SoftmaxAttention(16, 2.0)


def test_caches_have_the_heads_width():
    mixers = {"attention": {"num_heads": 3, "head_dim": 6}}
    config = SeqMixHybridConfig(vocab_size=11, hidden_size=8, mixer_types=["attention"], mixer_configs=mixers)
    model = SeqMixHybridForCausalLM(config).double().eval()
    ids = torch.randint(11, (2, 7))
    for cache in (DynamicCache(config=config), StaticCache(config, max_cache_len=9)):
        chunks = [model(part, past_key_values=cache).logits for part in ids.split([4, 3], dim=1)]
        assert_close(torch.cat(chunks, dim=1), model(ids).logits)
        assert cache.layers[0].keys.shape[1::2] == (3, 6)


def test_weights_cover_the_cache_and_hide_pads():
    mixer, x = SoftmaxAttention(8, 2).double(), torch.randn(1, 5, 8, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    _, whole = mixer(x, mask, output_attentions=True)
    assert whole[..., 2:, :2].abs().max() == 0
    cache = DynamicCache()
    mixer(x[:, :3], mask[:, :3], past_key_values=cache)
    _, part = mixer(x[:, 3:], mask, past_key_values=cache, output_attentions=True)
    assert_close(part, whole[:, :, 3:])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_weights_of_a_static_cache_and_pads_on_the_left_are_numbers(implementation: str) -> None:
    """Masks that `generate` makes for such a cache hide every key from a pad, and are floats for "eager"."""
    config = SeqMixHybridConfig(
        vocab_size=40, hidden_size=16, mixer_types=["attention"] * 2, mixer_configs={"attention": {"num_heads": 4}}
    )
    model = SeqMixHybridForCausalLM(config).eval()
    model.set_attn_implementation(implementation)
    ids = torch.tensor([[0, 0, 5, 6, 7], [3, 4, 5, 6, 7]])
    options = {"attention_mask": (ids != 0).long(), "pad_token_id": 0, "max_new_tokens": 5, "do_sample": False}
    expected = model.generate(ids, **options)
    static = {"cache_implementation": "static", "disable_compile": True, "output_attentions": True}
    found = model.generate(ids, **options, **static, return_dict_in_generate=True, output_logits=True)
    assert torch.equal(found.sequences, expected)
    assert torch.stack(found.logits).isfinite().all()
    weights = found.attentions[0][0][0]  # of the row with pads
    assert weights[:, 2:, :2].abs().max() == 0
    assert weights[:, :2].abs().max() == 0  # not uniform, where no key is seen
