import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.cache import cached_taps
from tests.tolerances import assert_close

CONFIG = TNNConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1)


def ones(length: int) -> Tensor:
    return torch.ones(3, length)


def filled(cache: Any) -> Any:
    cache.update(torch.zeros(1, 1, 4, 3), torch.zeros(1, 1, 4, 0), 0)
    return cache


def test_taps_are_no_part_of_a_copied_history():
    """The library's exporters make each tensor of a copied cache an input and an output of the graph of a step."""
    cache = filled(DynamicCache(config=CONFIG))
    taps = cached_taps(cache, 0, ones, 4)
    assert cached_taps(cache, 0, ones, 3) is taps
    assert copy.deepcopy(cache).layers[0].taps is None and cache.layers[0].taps is taps
    assert copy.deepcopy(cache).layers[0].keys.shape == (1, 1, 4, 3)


def test_taps_of_a_prompt_without_derivatives_do_not_serve_a_call_that_wants_them():
    cache, weights = filled(DynamicCache(config=CONFIG)), torch.ones(3, 8, requires_grad=True)
    with torch.inference_mode():
        before = cached_taps(cache, 0, lambda length: 2 * weights[:, :length], 8)
        assert cached_taps(cache, 0, lambda length: 2 * weights[:, :length], 5) is before
    taps = cached_taps(cache, 0, lambda length: 2 * weights[:, :length], 5)
    assert taps.requires_grad and cached_taps(cache, 0, ones, 5) is taps


def test_a_graph_for_all_lengths_builds_its_taps():
    class Step(torch.nn.Module):
        def forward(self, history: Tensor) -> Tensor:
            return cached_taps(cache, 0, lambda length: ones(length), history.shape[0]).clone()

    cache = filled(DynamicCache(config=CONFIG))
    before = cached_taps(cache, 0, ones, 4)
    shapes = {"history": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Step(), (torch.zeros(5),), dynamic_shapes=shapes)
    for length in (3, 5, 12):
        assert program.module()(torch.zeros(length)).shape == (3, length)
    assert cache.layers[0].taps is before
    # A preallocated cache needs as many taps in every step: they stay with it, also in a copy.
    static = filled(StaticCache(config=CONFIG, max_cache_len=8))
    taps = cached_taps(static, 0, ones, 8)
    assert torch.equal(copy.deepcopy(static).layers[0].taps, taps)


def test_a_cuda_graph_reads_taps_of_a_preallocated_history_where_they_are():
    cache = filled(StaticCache(config=CONFIG, max_cache_len=8))
    for _ in range(2):
        taps = cached_taps(cache, 0, ones, 8)
        assert taps._dynamo_static_input_type == cache.layers[0].keys._dynamo_static_input_type
        cache.reset()


def test_keys_and_values_of_attention_are_refused() -> None:
    model = TNNForCausalLM(TNNConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, expand_ratio=1.0))
    cache = DynamicCache()  # as prefix tuning builds one
    cache.update(torch.zeros(1, 2, 4, 4), torch.zeros(1, 2, 4, 4), 0)
    with pytest.raises(
        ValueError, match=r"holds keys of shape \(1, 2, 4, 4\).*\(batch, 1, tokens, 8\).*prompt tuning can"
    ):
        model(input_ids=torch.tensor([[1, 2]]), past_key_values=cache)


def test_a_cache_without_a_configuration_refuses_a_crop_of_moved_pads():
    model = TNNForCausalLM(TNNConfig(vocab_size=9, hidden_size=4, num_hidden_layers=2)).double().eval()
    ids, mask = torch.randint(9, (2, 7)), torch.ones(2, 7)
    mask[1, 5:] = 0
    cache = DynamicCache()
    model(ids, mask, past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match=r"cropped from a cache of 7.*pads that followed tokens have moved"):
        cache.crop(-2)
    whole = model(torch.cat([ids, ids], 1), torch.cat([mask, torch.ones(2, 7)], 1)).logits[:, 7:]
    assert_close(model(ids, torch.cat([mask, torch.ones(2, 7)], 1), past_key_values=cache).logits, whole)


def test_derivatives_where_pads_move_in_a_preallocated_history():
    model = TNNForCausalLM(TNNConfig(vocab_size=9, hidden_size=4, num_hidden_layers=2)).double().eval()
    ids, mask = torch.randint(9, (2, 7)), torch.ones(2, 7)
    mask[1, 5:] = 0
    weights, found = [weight for name, weight in model.named_parameters() if "mixer" in name], []
    for cache in (StaticCache(config=model.config, max_cache_len=12), None):
        logits = model(ids, mask, past_key_values=cache, use_cache=cache is not None).logits[mask.bool()]
        found.append(torch.autograd.grad(logits.square().sum(), weights))
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected)


def test_a_prompt_of_inference_mode_goes_on_with_derivatives():
    model = TNNForCausalLM(TNNConfig(vocab_size=9, hidden_size=4, num_hidden_layers=2)).double().eval()
    ids = torch.randint(9, (2, 9))
    weights, found = [weight for name, weight in model.named_parameters() if "mixer" in name], []
    for context in (torch.inference_mode(), torch.no_grad()):
        cache = DynamicCache(config=model.config)
        with context:
            model(ids[:, :5], past_key_values=cache)
        logits = model(ids[:, 5:], past_key_values=cache).logits
        found.append(torch.autograd.grad(logits.square().sum(), weights))
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected)
