"""A cache that was filled in one dtype, and a model that goes on in another."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from hf_seqmix import (
    IPAConfig,
    IPAForCausalLM,
    PolyTransformerConfig,
    PolyTransformerForCausalLM,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
    TNNConfig,
    TNNForCausalLM,
)

SIZES: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "initializer_range": 0.3}
IDS = torch.randint(32, (1, 150), generator=torch.Generator().manual_seed(0))
PAST = 144


def attention() -> Any:
    config = SeqMixHybridConfig(
        **SIZES, mixer_types=["tnn", "attention"], mixer_configs={"tnn": {}, "attention": {"num_heads": 2}}
    )
    return SeqMixHybridForCausalLM(config)


def distilled() -> Any:
    model = tnn()
    model.distill_decoder(order=4, exact_taps=3)
    return model


def ipa() -> Any:
    return IPAForCausalLM(IPAConfig(**SIZES, num_hidden_layers=1, num_centers=2, max_relative_distance=160))


def poly(**more: Any) -> Any:
    return PolyTransformerForCausalLM(PolyTransformerConfig(**SIZES, num_hidden_layers=1, **more))


def tnn() -> Any:
    return TNNForCausalLM(TNNConfig(**SIZES, num_hidden_layers=1, max_position_embeddings=160, decay=0.9))


def continued(build: Any, static: bool, first: torch.dtype, then: torch.dtype, autocast: bool = False) -> None:
    """Fill a cache in the first dtype; compare what follows in the other with a call in the other alone."""
    torch.manual_seed(0)
    model = build().eval()
    cache = StaticCache(config=model.config, max_cache_len=160) if static else DynamicCache(config=model.config)
    with torch.no_grad():
        model.to(first)(IDS[:, :PAST], past_key_values=cache)
        model.to(then)
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            wanted = model(IDS, use_cache=False).logits[:, PAST:]
            try:
                found = model(IDS[:, PAST:], past_key_values=cache).logits
            except ValueError:
                # Nothing was added to any layer: the cache still serves the model that filled it.
                assert int(cache.get_seq_length()) == PAST
                model.to(first)(IDS[:, PAST:], past_key_values=cache)
                raise
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0.1, atol=0.1)


F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("build", "static", "first", "then"),
    [
        (ipa, False, F32, BF16),
        (attention, False, F32, BF16),
        (attention, False, F64, F32),
        (distilled, False, F64, F32),
        (distilled, False, F32, F64),
        (tnn, True, F32, BF16),
        (ipa, True, BF16, F32),
        (attention, True, F32, BF16),
        (lambda: poly(copy_head=True), True, F32, BF16),
    ],
)
def test_what_cannot_be_mixed_is_refused_before_any_layer_changes(
    build: Any, static: bool, first: torch.dtype, then: torch.dtype
) -> None:
    message = rf"layer \d of the cache was filled in {first}, but this call computes in {then}, .* go on as"
    with pytest.raises(ValueError, match=message):
        continued(build, static, first, then)


@pytest.mark.parametrize(
    ("build", "static", "first", "then"),
    [
        (ipa, False, BF16, F32),
        (attention, False, BF16, F32),
        (distilled, False, F32, BF16),
        (tnn, False, F32, BF16),
        (tnn, False, F64, F32),
        (poly, False, F32, BF16),
        (poly, True, F32, BF16),
    ],
)
def test_what_can_be_mixed_goes_on(build: Any, static: bool, first: torch.dtype, then: torch.dtype) -> None:
    continued(build, static, first, then)


@pytest.mark.parametrize("build", [ipa, attention, distilled, tnn, poly])
def test_autocast_goes_on_with_a_growing_cache(build: Any) -> None:
    continued(build, False, F32, F32, autocast=True)


@pytest.mark.parametrize(("build", "static", "first"), [(ipa, False, F64), (tnn, True, F32)])
def test_autocast_is_named_where_it_cannot_go_on(build: Any, static: bool, first: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"computes in torch\.bfloat16 \(autocast\)"):
        continued(build, static, first, F32, autocast=True)
