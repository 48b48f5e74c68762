"""What prompts ask of `generate` beyond the library: pads on the right, and assisted turns on a kept cache."""

from typing import Any

import torch
from torch import Tensor
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    AssistedCandidateGeneratorDifferentTokenizers,
    PromptLookupCandidateGenerator,
)
from transformers.utils import logging

from ..._compat import CACHE_NAME, attends, cache_given
from ...ops.common.dispatch import autocasts
from ...ops.masking import real_positions

__all__ = ["PromptHandling"]

logger = logging.get_logger(__name__)


class PromptHandling:
    """Generation in which a pad takes no time, and no token of a kept cache is read again.

    The backbone gives pads the state of the last real token before them in the call. Left to do here: positions go on
    from that token, and a prompt that ends in pads and is read in chunks is read pads first, so that the last chunk
    has the last token of each row. An assistant reads it so, too, and is told that generated tokens are real, pads or
    not. These override private methods of `GenerationMixin`, which are there in 5.18, 5.23 and 5.24.
    """

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        is_assisted: bool = False,
        cache: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Do as the library; where generation is assisted, a first step leaves out what a kept cache holds."""
        cache = cache_given(past_key_values, cache)
        is_whole = attention_mask is None or attention_mask.shape[1] == input_ids.shape[1]
        if is_assisted and is_first_iteration and next_sequence_length is None and inputs_embeds is None and is_whole:
            past = int(cache.get_seq_length())
            if 0 < past < input_ids.shape[1]:
                next_sequence_length = input_ids.shape[1] - past
        library: Any = super()
        return library.prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            **{CACHE_NAME: cache},
            **kwargs,
        )

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        mask = model_kwargs.get("attention_mask")
        if mask is None:
            library: Any = super()
            return library._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
        # The library's are 0 at pads, and would go on with 1 after them.
        batch, columns = mask.shape
        return real_positions(mask, batch, columns, 0, mask.device)

    def _get_static_cache_init_shape(self) -> Any:
        model: Any = self
        library: Any = super()
        # The library lays a cache out in the dtype of the model, and under autocast inputs have another.
        return None if autocasts(model.device.type) else library._get_static_cache_init_shape()

    def _prefill(
        self, input_ids: Any, generation_config: Any, model_kwargs: dict[str, Any], is_first_iteration: bool = True
    ) -> Any:
        mask, cache = model_kwargs.get("attention_mask"), model_kwargs.get(CACHE_NAME)
        if generation_config.prefill_chunk_size is not None and model_kwargs.get("inputs_embeds") is not None:
            logger.warning_once("prefill_chunk_size has no effect on inputs_embeds, which are read at once.")
            generation_config.prefill_chunk_size = None
        # The library drops a mask of ones, and keeps its length.
        columns = getattr(generation_config, "_mask_length", -1) if mask is None else mask.shape[1]
        if cache is not None and columns == input_ids.shape[1]:
            _check_goes_on(columns, cache)
        if mask is not None and cache is not None:
            self._check_order(mask, cache)
        # Only where needed: a mask of a later turn has the order of the text, and layers that attend keep it, too.
        in_chunks = generation_config.prefill_chunk_size is not None
        if mask is not None and cache is not None and in_chunks and not bool((mask[:, -1] != 0).all()):
            past = int(cache.get_seq_length())
            cache.pads_first = True
            start = mask.shape[1] - input_ids.shape[1]
            if start in (0, past):  # the library takes the whole prompt, or what follows the cached part
                order = _pads_first(mask, past)
                _reorder(model_kwargs, order)
                input_ids = input_ids.gather(1, order[:, start:] - start)
        library: Any = super()
        return library._prefill(input_ids, generation_config, model_kwargs, is_first_iteration=is_first_iteration)

    def _get_candidate_generator(self, *args: Any, **given: Any) -> Any:
        library: Any = super()
        generator = library._get_candidate_generator(*args, **given)
        model: Any = self
        if isinstance(generator, PromptLookupCandidateGenerator) and model.config.position_limit is not None:
            # The library's candidates may end beyond the last position that there is.
            most = min(model.config.position_limit, generator.max_length)
            lookup: Any = generator
            candidates = lookup.get_candidates

            def within_the_limit(input_ids: Tensor, **of_call: Any) -> tuple[Tensor, None]:
                return candidates(input_ids, **of_call)[0][:, : max(most, input_ids.shape[1])], None

            lookup.get_candidates = within_the_limit
        given["model_kwargs"]["is_assisted"] = True  # for `prepare_inputs_for_generation`
        # The library drops a mask of ones, and an assistant without one would take generated pads for padding.
        other_tokens = isinstance(generator, AssistedCandidateGeneratorDifferentTokenizers)
        if other_tokens:
            # The number of this model's pad is another token there, which may end a draft prompt and is no pad.
            generator.generation_config.pad_token_id = None
        helped = isinstance(generator, AssistedCandidateGenerator) and not other_tokens
        if helped:
            mask: Any = generator.assistant_kwargs.get("attention_mask")
            if mask is None:
                generator.assistant_kwargs["attention_mask"] = torch.ones_like(given["input_ids"])
            elif mask.shape == given["input_ids"].shape and not bool((mask[:, -1] != 0).all()):
                _draft_pads_first(generator)
        return generator

    def _check_order(self, mask: Tensor, cache: Any) -> None:
        """Refuse a mask in the order of a text whose pads were read first, where layers attend by the mask."""
        model: Any = self
        past = int(cache.get_seq_length())
        cache.pads_first = past > 0 and getattr(cache, "pads_first", False)
        if not cache.pads_first or not any(map(attends, model.config.layer_types)):
            return
        real = mask[:, :past] != 0
        if bool((real[:, :-1] & ~real[:, 1:]).any()):
            raise ValueError(
                "the cache holds a prompt that ended in pads and was read in chunks, pads first, but attention_mask "
                "has pads after tokens there: pad prompts on the left, or read them without prefill_chunk_size."
            )


def _check_goes_on(given: int, cache: Any) -> None:
    """Refuse new tokens alone, which the library takes for a prompt whose first tokens the cache holds."""
    past = int(cache.get_seq_length())
    if 0 < given <= past:
        raise ValueError(
            f"the cache holds {past} tokens, and input_ids has {given}: give all tokens, those of the cache first and "
            f"at least one more, or the new ones with an attention_mask of {past + given} columns."
        )


def _draft_pads_first(generator: Any) -> None:
    """Let an assistant read the prompt pads first: it takes the last place back, and a history has moved pads."""
    mask, candidates = generator.assistant_kwargs["attention_mask"], generator.get_candidates
    order, prompt = _pads_first(mask, 0), mask.shape[1]
    _reorder(generator.assistant_kwargs, order)

    def in_that_order(input_ids: Tensor, **of_call: Any) -> tuple[Tensor, Any]:
        input_ids = input_ids.to(order.device)
        moved = torch.cat([input_ids[:, :prompt].gather(1, order), input_ids[:, prompt:]], dim=1)
        found, logits = candidates(moved, **of_call)
        return torch.cat([input_ids, found[:, input_ids.shape[1] :]], dim=1), logits

    generator.get_candidates = in_that_order


def _reorder(given: dict[str, Any], order: Tensor) -> None:
    """Bring the mask and the positions of a prompt, which later steps read, too, into the order of its tokens."""
    mask, positions = given["attention_mask"], given.get("position_ids")
    if positions is not None:
        given["position_ids"] = positions.expand(mask.shape).gather(1, order)
    given["attention_mask"] = mask.gather(1, order)


def _pads_first(mask: Tensor, past: int) -> Tensor:
    """Return the order, (batch, columns), in which pads come before real tokens, the `past` first columns as is."""
    order = (mask[:, past:] != 0).to(torch.uint8).argsort(dim=1, stable=True) + past
    return torch.cat([torch.arange(past, device=mask.device).expand(mask.shape[0], -1), order], dim=1)
