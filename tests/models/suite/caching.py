"""Caches."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.masking_utils import create_masks_for_generate

from hf_seqmix._compat import attends
from tests.models.suite.base import PADS, VOCAB, SuiteBase, perturb
from tests.tolerances import MODEL_TOLERANCE, assert_close, relative_error


def library_reset_forgets() -> bool:
    """Return whether the library's growing layers are empty after a reset; older releases keep their length."""
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), 0)
    cache.reset()
    return cache.get_seq_length() == 0


class CachingTests(SuiteBase):
    """Decoding with a cache, in any chunks, gives the logits of the whole."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("sizes", [[9], [4, 5], [1] * 9, [3, 1, 1, 4], [2, 6, 1]], ids=str)
    @pytest.mark.one_in(2)
    def test_cached_chunked_and_full_logits_agree(self, sizes, dtype):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM", True, dtype)
        bound = MODEL_TOLERANCE[dtype]
        for pads in (None, *PADS.values()):
            mask = None if pads is None else torch.tensor(pads)
            real = torch.ones(2, 9, dtype=torch.bool) if mask is None else mask.bool()
            ids = torch.randint(VOCAB, (2, 9))
            full = model(ids, mask, use_cache=False).logits
            for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=14)):
                chunked = self.in_chunks(model, ids, mask, sizes, cache)
                assert relative_error(chunked[real], full[real]) < bound, (pads, type(cache).__name__)

    def test_several_tokens_at_once_join_a_preallocated_cache(self):
        """With the prepared mask of the last, as the library's exporters merge steps of decoding."""
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM")
        ids, mask = torch.randint(VOCAB, (2, 9)), torch.tensor(PADS["left"])
        places = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache = StaticCache(model.config, max_cache_len=14)

        def prepared(start: int, stop: int) -> dict[str, Tensor | None]:
            embeds = model.get_input_embeddings()(ids[:, start:stop])
            return create_masks_for_generate(
                model.config, embeds, mask[:, :stop], cache, position_ids=places[:, start:stop]
            )

        model(ids[:, :6], prepared(0, 6), places[:, :6], past_key_values=cache, use_cache=True)
        masks, last = prepared(6, 9), prepared(8, 9)
        merged = {name: x if x is None or x.ndim == 4 else last[name] for name, x in masks.items()}
        actual = model(ids[:, 6:], merged, places[:, 6:], past_key_values=cache, use_cache=True).logits
        assert_close(actual, model(ids, mask).logits[:, 6:])

    @pytest.mark.parametrize("pads", ["left", "inside"])
    def test_masks_of_this_calls_tokens_alone(self, pads):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM")
        # On the left, the later thirds have no pads: only the history does.
        ids, mask = torch.randint(VOCAB, (2, 9)), torch.tensor(PADS[pads])
        cache = DynamicCache(config=model.config)

        def in_thirds() -> Tensor:
            thirds = zip(ids.split(3, 1), mask.split(3, 1), strict=True)
            return torch.cat([model(i, m, past_key_values=cache, use_cache=True).logits for i, m in thirds], 1)

        if any(map(attends, model.config.layer_types)):
            with pytest.raises(ValueError, match="give a mask of 6 columns"):
                in_thirds()
        else:
            real = mask.bool()
            assert_close(in_thirds()[real], model(ids, mask).logits[real])

    @pytest.mark.parametrize("pads", PADS)
    def test_gradients_pass_through_either_cache(self, pads):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM", True, torch.float64)
        ids, mask = torch.randint(VOCAB, (2, 9)), torch.tensor(PADS[pads])
        weights = [weight for weight in model.parameters() if weight.requires_grad]

        def gradients(**kwargs: Any) -> tuple[Tensor, ...]:
            logits = model(ids, mask, **kwargs).logits[mask.bool()]
            return torch.autograd.grad(logits.sin().sum(), weights, allow_unused=True, materialize_grads=True)

        expected = gradients(use_cache=False)
        for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=14)):
            for actual, wanted in zip(gradients(past_key_values=cache), expected, strict=True):
                assert_close(actual, wanted)

    def test_a_prompt_read_in_inference_mode_is_continued_with_gradients(self):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM", True, torch.float64)
        ids = torch.randint(VOCAB, (2, 15))
        expected = model(ids, use_cache=False).logits
        for new in (1, 3, 9):
            cache = DynamicCache(config=model.config)
            with torch.inference_mode():
                model(ids[:, :-new], past_key_values=cache)
            logits = model(ids[:, -new:], past_key_values=cache).logits
            assert_close(logits, expected[:, -new:])
            logits.sum().backward()

    def test_a_cropped_cache_continues_as_if_nothing_had_been(self):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM")
        ids = torch.randint(VOCAB, (2, 12))
        cache = DynamicCache(config=model.config)
        model(ids[:, :9], past_key_values=cache, use_cache=True)
        cache.crop(-3)
        actual = model(ids[:, 6:], past_key_values=cache, use_cache=True).logits
        assert_close(actual, model(ids).logits[:, 6:])

    def test_a_reset_cache_forgets_the_weights_too(self):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM")
        ids = torch.randint(VOCAB, (2, 9))
        caches: list[Any] = [StaticCache(model.config, max_cache_len=14)]
        if "full_attention" not in model.config.layer_types or library_reset_forgets():
            caches.append(DynamicCache(config=model.config))
        for cache in caches:
            model(ids, past_key_values=cache, use_cache=True)
            perturb(model)
            cache.reset()
            assert_close(model(ids, past_key_values=cache, use_cache=True).logits, model(ids).logits)

    def test_rows_of_a_cache_are_selected_by_a_list(self):
        """As the library's own layers take it."""
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM")
        ids = torch.randint(VOCAB, (3, 9))
        cache = DynamicCache(config=model.config)
        model(ids[:, :6], past_key_values=cache)
        cache.batch_select_indices([2, 0])
        assert_close(model(ids[[2, 0], 6:], past_key_values=cache).logits, model(ids[[2, 0]]).logits[:, 6:])

    def test_the_cache_is_returned_only_where_it_makes_sense(self, is_causal):
        model = self.make("Model", is_causal)
        ids = torch.randint(VOCAB, (1, 5))
        assert (model(ids).past_key_values is not None) == is_causal
        assert model(ids, use_cache=False).past_key_values is None
        assert model(ids, position_ids=torch.tensor([[0, 1, 0, 1, 2]])).past_key_values is None
        assert model.train()(ids).past_key_values is None
        if not is_causal:
            with pytest.raises(ValueError, match="bidirectional"):
                model(ids, past_key_values=DynamicCache(config=model.config))
