"""Decoding of Toeplitz layers within a model."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, set_seed

from hf_seqmix import (
    FDTNNConfig,
    FDTNNForCausalLM,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
    TNNConfig,
    TNNForCausalLM,
    TNNMixer,
)
from tests.tolerances import assert_close

COMMON: dict[str, Any] = {"vocab_size": 30, "hidden_size": 8, "bos_token_id": None, "eos_token_id": None}
MIXERS = {"mixer_types": ["tnn", "attention", "fd_tnn"], "mixer_configs": {"attention": {"num_heads": 2}}}


def perturbed(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double().eval()


def tnn(**fields: Any) -> Any:
    set_seed(0)
    return perturbed(TNNForCausalLM(TNNConfig(**COMMON, num_hidden_layers=2, **fields)))


@pytest.fixture(scope="module")
def hybrid() -> Any:
    set_seed(0)
    return perturbed(SeqMixHybridForCausalLM(SeqMixHybridConfig(**COMMON, **MIXERS)))


def states(cache: Any) -> list[Any]:
    return [layer.state for layer in cache.layers if hasattr(layer, "state")]


@settings(max_examples=10, deadline=None)
@given(actions=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 80)), min_size=2, max_size=5))
def test_a_cache_cropped_and_filled_again_is_a_fresh_one(hybrid: Any, actions: list[tuple[int, int]]):
    """Whatever comes after a crop, single tokens or many, has the logits of one call on the whole."""
    text, cache = torch.randint(3, 30, (2, 40)), DynamicCache(config=hybrid.config)
    with torch.no_grad():
        hybrid(text, past_key_values=cache)
        for new, back in actions:
            tokens = torch.randint(3, 30, (2, new))
            text = torch.cat([text, tokens], dim=1)
            size = 1 if new % 3 == 0 else 7 if new % 3 == 1 else new
            parts = [hybrid(part, past_key_values=cache).logits for part in tokens.split(size, dim=1)]
            assert_close(torch.cat(parts, dim=1), hybrid(text, use_cache=False).logits[:, -new:])
            back = min(back, text.shape[1] - 1)
            cache.crop(-back)
            text = text[:, : text.shape[1] - back]


@pytest.mark.parametrize("ways", [{}, {"do_sample": True, "top_k": 0}, {"num_beams": 3}])
def test_text_with_a_cache_is_the_text_without(hybrid: Any, ways: dict[str, Any]):
    ids, mask = torch.randint(3, 30, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    ids[0, :4] = mask[0, :4] = 0
    texts = []
    for cache in (True, False):
        set_seed(1)
        options = {"attention_mask": mask, "max_new_tokens": 70, "pad_token_id": 0, "use_cache": cache}
        texts.append(hybrid.generate(ids, **options, return_dict_in_generate=True, **({"do_sample": False} | ways)))
    assert torch.equal(texts[0].sequences, texts[1].sequences)
    assert all(state is not None and state.position == 80 for state in states(texts[0].past_key_values))


def test_memory_of_a_decaying_kernel_is_bounded():
    model = tnn(decay=0.5)
    sizes, tokens, cache = [], torch.randint(3, 30, (1, 1200)), DynamicCache(config=model.config)
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        logits = [model(tokens[:, :10], past_key_values=cache).logits]
        for place in range(10, 1200):
            logits.append(model(tokens[:, place : place + 1], past_key_values=cache).logits)
            if place in (600, 1199):
                sizes.append([state.memory for state in states(cache)])
    assert sizes[0] == sizes[1]
    assert_close(torch.cat(logits, dim=1), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_steps_in_every_dtype(dtype: torch.dtype):
    set_seed(0)
    model = perturbed(FDTNNForCausalLM(FDTNNConfig(**COMMON, num_hidden_layers=1))).to(dtype)
    tokens, cache = torch.randint(3, 30, (2, 150)), DynamicCache(config=model.config)
    with torch.inference_mode():
        whole: Tensor = model(tokens, use_cache=False).logits
        steps = [model(part, past_key_values=cache).logits for part in tokens.split([20] + [1] * 130, dim=1)]
    assert_close(torch.cat(steps, dim=1), whole, factor=4)


def test_steps_that_want_derivatives_have_them():
    model, tokens = tnn(), torch.randint(3, 30, (1, 6))
    cache = DynamicCache(config=model.config)
    parts = [model(part, past_key_values=cache).logits for part in tokens.split([4, 1, 1], dim=1)]
    gradients = []
    for logits in (torch.cat(parts, dim=1), model(tokens, use_cache=False).logits):
        model.zero_grad()
        logits.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for actual, expected in zip(*gradients, strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_mask_is_a_layout(is_causal):
    operator = TNNMixer(4, 3, is_causal=is_causal).double().operator
    values, mask = torch.randn(2, 7, 3, dtype=torch.float64), torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 0]])
    found, real = operator(values, mask), mask.bool()
    assert_close(operator(values)[0], found[0])
    assert_close(found[1][real[1]], operator(values[1:, real[1]])[0])
    with pytest.raises(TypeError, match="attention_mask is a list; it must be a tensor"):
        operator(values, mask.tolist())
