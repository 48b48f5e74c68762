"""What holds of every model with a cache, whatever its options: it decodes as it reads."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache

from tests.models.suite import PADS
from tests.models.suite.base import SuiteBase
from tests.tolerances import MODEL_TOLERANCE, assert_close, relative_error


def check_chunks(model: PreTrainedModel, ids: Tensor, mask: Tensor, all_sizes: Sequence[list[int]]) -> None:
    """Logits of real tokens in chunks are those of one call, with growing and with preallocated caches."""
    full, real = model(ids, mask, use_cache=False).logits, mask.bool()
    for sizes in all_sizes:
        for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=14)):
            chunked = SuiteBase().in_chunks(model, ids, mask, sizes, cache)
            assert relative_error(chunked[real], full[real]) < MODEL_TOLERANCE[torch.float64]


def check_generation(model: PreTrainedModel, assistant: PreTrainedModel, ids: Tensor) -> None:
    """Every way to generate after two prompts gives the same tokens, with pads on the left and without."""
    left = torch.tensor(PADS["left"])
    settings = {"max_new_tokens": 8, "do_sample": False, "attention_mask": left}
    expected = model.generate(ids * left, use_cache=False, **settings)
    for static in ({}, {"cache_implementation": "static", "disable_compile": True}):
        assert torch.equal(model.generate(ids * left, **static, **settings), expected)
    beams = model.generate(ids * left, num_beams=3, use_cache=False, **settings)
    assert torch.equal(model.generate(ids * left, num_beams=3, **settings), beams)
    settings = {"max_new_tokens": 8, "do_sample": False}
    alone = model.generate(ids[1:], **settings)
    for other in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
        assert torch.equal(model.generate(ids[1:], **other, **settings), alone)


def check_rows_and_crops(model: PreTrainedModel, ids: Tensor) -> None:
    """A cache of two prompts is cropped, its rows repeated and chosen, and goes on; ids (2, 9)."""
    cache = DynamicCache(config=model.config)
    model(ids[:, :8], past_key_values=cache)
    cache.crop(-2)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    logits = model(ids[:, 6:].flip(0), past_key_values=cache).logits
    assert_close(logits, model(ids).logits[:, 6:].flip(0))


def check_continuous_batching(model: PreTrainedModel, vocab: int) -> None:
    """Prompts that are served together get the tokens that each gets alone."""
    prompts = [torch.randint(1, vocab, (length,)).tolist() for length in (3, 70, 9)]
    found = model.generate_batch(prompts, max_new_tokens=6, do_sample=False)
    for prompt, output in zip(prompts, found.values(), strict=True):
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)
        assert output.generated_tokens == alone[0, len(prompt) :].tolist()
