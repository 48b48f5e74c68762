"""Segments of a text that continue each other's caches in training, against one call on the whole text."""

import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_seqmix import (
    FDTNNConfig,
    FDTNNForCausalLM,
    IPAConfig,
    IPAForCausalLM,
    PolyTransformerConfig,
    PolyTransformerForCausalLM,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
    TNNConfig,
    TNNForCausalLM,
)
from hf_seqmix._compat import CACHE_NAME
from hf_seqmix.cache import detach_cache
from hf_seqmix.models.heads.copy_head import CopyHead
from tests.models.suite import perturb
from tests.tolerances import MODEL_TOLERANCE, relative_error

Kept: TypeAlias = dict[tuple[str, int], list[Tensor]]

ROWS, VOCAB = 3, 31
# The first is longer than what sums and short convolutions hold back (64 steps), so that sums are carried, too.
SEGMENTS = (100, 70, 30)

SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "max_position_embeddings": sum(SEGMENTS),
    "hidden_dropout": 0.0,
}
TOEPLITZ = {**SHARED, "rpe_hidden_size": 8}
POLYNOMIAL = {**SHARED, "num_attention_heads": 2}
MODELS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "tnn": (TNNForCausalLM, TNNConfig, TOEPLITZ),
    "tnn-convolved": (
        TNNForCausalLM,
        TNNConfig,
        {**TOEPLITZ, "short_conv_taps": 3, "copy_head": True, "ngram_sizes": [2, 3]},
    ),
    "tnn-state": (
        TNNForCausalLM,
        TNNConfig,
        {**TOEPLITZ, "copy_head": True, "copy_head_tokens": 3, "copy_head_state": True},
    ),
    "fd-tnn": (FDTNNForCausalLM, FDTNNConfig, TOEPLITZ),
    "ipa": (IPAForCausalLM, IPAConfig, {**SHARED, "num_centers": 2, "kernel_norm": "prod"}),
    "ipa-shifted": (IPAForCausalLM, IPAConfig, {**SHARED, "num_centers": 2, "token_shift": 3}),
    "poly2": (PolyTransformerForCausalLM, PolyTransformerConfig, {**POLYNOMIAL, "degree": 2}),
    "poly3": (
        PolyTransformerForCausalLM,
        PolyTransformerConfig,
        {**POLYNOMIAL, "short_conv_taps": 4, "copy_head": True, "position_embedding_type": "sinusoidal"},
    ),
    "poly4": (PolyTransformerForCausalLM, PolyTransformerConfig, {**POLYNOMIAL, "degree": 4}),
    "poly2.5": (PolyTransformerForCausalLM, PolyTransformerConfig, {**POLYNOMIAL, "head_degrees": [2.5, 4]}),
    "soft": (PolyTransformerForCausalLM, PolyTransformerConfig, {**POLYNOMIAL, "degree_form": "soft"}),
    "toeplitz": (PolyTransformerForCausalLM, PolyTransformerConfig, {**POLYNOMIAL, "mixing": "toeplitz"}),
    "triangular": (PolyTransformerForCausalLM, PolyTransformerConfig, {**POLYNOMIAL, "mixing": "triangular"}),
    "hybrid": (
        SeqMixHybridForCausalLM,
        SeqMixHybridConfig,
        {
            **{**SHARED, "num_hidden_layers": 5, "position_embedding_type": "learned"},
            "mixer_types": ["attention", "tnn", "short_conv", "poly_transformer", "ipa"],
            "mixer_configs": {
                "attention": {"num_heads": 2},
                "tnn": {"rpe_hidden_size": 8},
                "poly_transformer": {"num_attention_heads": 2},
                "ipa": {"num_centers": 2},
            },
        },
    ),
    "llama": (
        LlamaForCausalLM,
        LlamaConfig,
        {**SHARED, "num_attention_heads": 2, "intermediate_size": 8},
    ),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    head, config, fields = MODELS[request.param]
    return perturb(head(config(**fields))).double().train()


def text() -> list[Tensor]:
    torch.manual_seed(1)
    return list(torch.randint(VOCAB, (ROWS, sum(SEGMENTS))).split(SEGMENTS, dim=1))


@contextmanager
def earlier_outputs(model: nn.Module, kept: Kept, length: int, past: int | None = None) -> Iterator[None]:
    """Keep what every module returns for each token; or, with a `past`, put that in place of the first tokens.

    What a cache holds was computed by modules from earlier tokens: with their outputs given, one call on the whole
    text has the same earlier inputs of every mixer, and the same derivatives of what follows. A call has `length`
    tokens.
    """
    calls: dict[str, int] = defaultdict(int)
    hooks = []

    def hook(name: str) -> Any:
        def of_tokens(module: nn.Module, inputs: Any, output: Any) -> Any:
            if not isinstance(output, Tensor) or output.ndim != 3 or output.shape[:2] != (ROWS, length):
                return None
            key = name, calls[name]
            calls[name] += 1
            if past is None:
                kept[key].append(output.detach())
                return None
            return torch.cat([torch.cat(kept[key], dim=1), output[:, past:]], dim=1)

        return of_tokens

    for name, module in model.named_modules():
        hooks.append(module.register_forward_hook(hook(name)))
    head = getattr(model, "copy_head", None)

    def keys(*arguments: Any) -> tuple[Tensor, Tensor]:
        """The keys of a copy head, which add up what a module returns for several tokens."""
        all_keys, ids = CopyHead.keys(head, *arguments)
        if past is None:
            kept["keys", 0].append(all_keys[:, -length:].detach())
            return all_keys, ids
        return torch.cat([*kept["keys", 0], all_keys[:, past:]], dim=1), ids

    if head is not None:
        head.keys = keys
    try:
        yield
    finally:
        if head is not None:
            del head.keys
        for handle in hooks:
            handle.remove()


def gradients(model: PreTrainedModel, logits: Tensor, ids: Tensor) -> dict[str, Tensor]:
    loss = model.loss_function(logits=logits, labels=ids, vocab_size=VOCAB)
    model.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, gradient in expected.items():
        scale = max(gradient.abs().max().item(), 1e-6)  # some gradients, such as of a bias before a norm, are rounding
        assert (actual[name] - gradient).abs().max().item() <= 1e-8 * scale + 1e-13, name


def test_segments_with_states_have_the_logits_of_one_text(model: PreTrainedModel) -> None:
    """Derivatives are wanted throughout, as in training."""
    segments, cache = text(), DynamicCache(config=model.config)
    with torch.no_grad():
        whole = model(torch.cat(segments, dim=1), use_cache=False).logits.split(SEGMENTS, dim=1)
    for ids, expected in zip(segments, whole, strict=True):
        logits = model(ids, **{CACHE_NAME: cache}).logits
        assert logits.requires_grad
        detach_cache(cache)
        assert relative_error(logits, expected) < MODEL_TOLERANCE[torch.float64]
    assert cache.get_seq_length() == sum(SEGMENTS)


def test_gradients_stop_at_the_border_and_follow_new_weights(model: PreTrainedModel) -> None:
    """Each segment is read with other weights, as between steps of an optimizer."""
    segments, cache = text(), DynamicCache(config=model.config)
    kept: Kept = defaultdict(list)
    for index, ids in enumerate(segments):
        before = sum(SEGMENTS[:index])
        so_far = torch.cat(segments[: index + 1], dim=1)
        if index == 0:
            expected = gradients(model, model(ids, use_cache=False).logits, ids)
        else:
            with earlier_outputs(model, kept, so_far.shape[1], before):
                expected = gradients(model, model(so_far, use_cache=False).logits[:, before:], ids)
        with earlier_outputs(model, kept, ids.shape[1]):
            logits = model(ids, **{CACHE_NAME: cache}).logits
        actual = gradients(model, logits, ids)
        detach_cache(cache)
        assert_equal(actual, expected)
        perturb(model, 0.01)


def test_a_cache_of_decoding_is_let_go_of_what_weights_made(model: PreTrainedModel) -> None:
    """Steps without derivatives prepare kernels, of which a segment of training gets none."""
    segments, cache = text(), DynamicCache(config=model.config)
    kept: Kept = defaultdict(list)
    ids = segments[0]
    with torch.no_grad():
        for part in (ids[:, :-2], ids[:, -2:-1], ids[:, -1:]):
            with earlier_outputs(model, kept, part.shape[1]):
                model(part, **{CACHE_NAME: cache})
    detach_cache(cache)
    perturb(model, 0.01)
    so_far = torch.cat(segments[:2], dim=1)
    with earlier_outputs(model, kept, so_far.shape[1], len(ids[0])):
        expected = gradients(model, model(so_far, use_cache=False).logits[:, len(ids[0]) :], segments[1])
    assert_equal(gradients(model, model(segments[1], **{CACHE_NAME: cache}).logits, segments[1]), expected)


def test_nothing_that_is_held_has_a_graph(model: PreTrainedModel) -> None:
    cache = DynamicCache(config=model.config)
    for ids in text():
        model(ids, **{CACHE_NAME: cache})
        detach_cache(cache)

    def tensors(holder: Any) -> Iterator[Tensor]:
        for value in vars(holder).values():
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, dict):
                for companion in value.values():
                    yield from tensors(companion)

    held = [tensor for layer in cache.layers for tensor in tensors(layer)]
    assert held and not any(tensor.requires_grad for tensor in held)


def test_a_layer_of_another_kind_is_refused() -> None:
    class Other:
        is_initialized = True

    cache = DynamicCache(config=TNNConfig(**TOEPLITZ))
    cache.layers.append(Other())
    with pytest.raises(ValueError, match=r"layer 2 of the cache is Other, .*DynamicCache\(config=model.config\)"):
        detach_cache(cache)


def test_steps_after_a_border_are_of_the_weights_of_then(model: PreTrainedModel) -> None:
    ids, cache = text()[0], DynamicCache(config=model.config)
    with torch.no_grad():
        for part in (ids[:, :-2], ids[:, -2:-1]):
            model(part, **{CACHE_NAME: cache})
        detach_cache(cache)
        perturb(model, 0.01)
        fresh = copy.deepcopy(cache)  # which has no kernel of steps
        actual, expected = (model(ids[:, -1:], **{CACHE_NAME: each}).logits for each in (cache, fresh))
    assert relative_error(actual, expected) < MODEL_TOLERANCE[torch.float64]
