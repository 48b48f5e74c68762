"""Learned matrices over positions: sizes, empty input, and the context length."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, StaticCache

from hf_seqmix import PolynomialMixer, PolyTransformerConfig, PolyTransformerForCausalLM
from hf_seqmix.models.poly_transformer.mixer_checks import MIXINGS
from hf_seqmix.models.poly_transformer.static_mixing import LearnedTaps, build_static_operator
from hf_seqmix.ops.layout import TokenLayout, token_layout
from tests.models.suite import perturb
from tests.tolerances import assert_close


def model_of(mixing: str, **kwargs: Any) -> PolyTransformerForCausalLM:
    config = PolyTransformerConfig(
        vocab_size=37,
        hidden_size=16,
        num_hidden_layers=2,
        max_position_embeddings=24,
        num_attention_heads=4,
        mixing=mixing,
        **kwargs,
    )
    return PolyTransformerForCausalLM(config).eval()


@pytest.mark.parametrize("shape", [(1, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("mixing", MIXINGS[1:])
def test_empty_input(mixing, shape):
    model = model_of(mixing)
    for use_cache in (True, False):
        assert model(torch.zeros(shape, dtype=torch.long), use_cache=use_cache).logits.shape == (*shape, 37)


@pytest.mark.parametrize("mixing", MIXINGS[1:])
def test_an_empty_call_changes_no_history(mixing):
    operator = build_static_operator(mixing, 2, 3, 9, True).double()
    x, cache = torch.randn(2, 7, 6, dtype=torch.float64), DynamicCache()
    parts = [operator(part, TokenLayout(), cache) for part in x.split([0, 4, 0, 3], dim=1)]
    assert_close(torch.cat(parts, dim=1), operator(x, TokenLayout()))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("mixing", MIXINGS[1:])
def test_no_positions(mixing, is_causal):
    for positions in (0, -1):
        with pytest.raises(ValueError, match=f"max_positions is {positions}; .* needs at least 1"):
            PolynomialMixer(16, num_heads=4, mixing=mixing, max_positions=positions, is_causal=is_causal)


@pytest.mark.parametrize("mixing", MIXINGS[1:])
def test_the_context_length_stays(mixing):
    model = model_of(mixing)
    for length in (8, 48):
        with pytest.raises(ValueError, match=f"was to be {length}, but .*the context length cannot be changed"):
            model.set_context_length(length)
        assert model.config.max_position_embeddings == 24
    model.set_context_length(24)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("mixing", MIXINGS[1:])
def test_packed_sequences_of_as_many_tokens_as_positions(mixing, is_causal):
    operator = build_static_operator(mixing, 2, 3, 37, is_causal).double()
    numbers = torch.tensor([[0] * 37 + [1] * 2 + [2] * 35])
    x = torch.randn(1, 74, 6, dtype=torch.float64)
    alone = torch.cat([operator(part, TokenLayout()) for part in x.split([37, 2, 35], dim=1)], dim=1)
    assert_close(operator(x, token_layout(None, 1, 74, seq_idx=numbers)), alone)


@pytest.mark.parametrize("is_causal", [True, False])
def test_learned_taps_begin_with_squares_that_sum_to_about_one(is_causal):
    operator = build_static_operator("toeplitz", 1024, 1, 64, is_causal)
    assert 0.85 < operator.kernel.taps.square().sum(dim=1).mean() < 1.05


@pytest.mark.parametrize("is_causal", [True, False])
def test_gradients_of_learned_taps_do_not_add_rows_by_index(is_causal):
    """On a GPU the order of such sums is left to chance."""

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "index_add" in func.name():
                indices.append(args[2])
            return func(*args, **(kwargs or {}))

    indices: list[torch.Tensor] = []
    kernel = LearnedTaps(2, 3, 9, is_causal)
    taps = kernel(7)
    upstream = torch.randn_like(taps)
    with Record():
        taps.backward(upstream)
    assert indices and all(len(index.unique()) == len(index) for index in indices)
    center = kernel.taps.grad[:, : taps.shape[1]] if is_causal else kernel.taps.grad[:, 2:-2]
    assert_close(center, upstream.unflatten(0, (2, 3)).sum(dim=1))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("degrees", [[2.5] * 4, [3.5, 3.5, 2, 2]])
@pytest.mark.parametrize("mixing", MIXINGS[1:])
def test_a_preallocated_history_has_the_dtype_of_the_model(mixing, degrees, autocast):
    """Powers are computed in float32."""
    model = perturb(model_of(mixing, head_degrees=degrees))
    ids = torch.randint(1, 37, (2, 9))
    for dtype in (torch.float32,) if autocast else (torch.bfloat16, torch.float16):
        kept = StaticCache(config=model.config, max_cache_len=12)
        model.to(dtype)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            expected = model(ids, use_cache=False).logits
            parts = [model(part, past_key_values=kept, use_cache=True).logits for part in ids.split([6, 1, 2], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0.05, atol=0.05)
        assert {layer.keys.dtype for layer in kept.layers} == {torch.bfloat16 if autocast else dtype}
