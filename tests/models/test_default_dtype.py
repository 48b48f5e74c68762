"""No model computes in another precision because torch's default dtype is another."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    DynamicCache,
    PreTrainedModel,
)

from tests.models.suite import PADS, VOCAB, perturb

TEXT: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 16, "max_position_embeddings": 24}
RPE = {"rpe_hidden_size": 8, "rpe_num_layers": 2}
IMAGE = {"image_size": [6, 4], "patch_size": 1, "num_channels": 1, "mixing_dimensions": 2, "is_causal": False}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tnn": ("tnn", RPE),
    "tnn both ways": ("tnn", {**RPE, "is_causal": False, "rpe_norm_type": "layer"}),
    "tnn on images": ("tnn", {**RPE, **IMAGE}),
    "fd_tnn": ("fd_tnn", RPE),
    "fd_tnn both ways": ("fd_tnn", {**RPE, "is_causal": False, "frequency_input": "omega"}),
    "ski_tnn": ("ski_tnn", {"num_inducing_points": 7, "conv_kernel_size": 3}),
    "ski_tnn cubic": ("ski_tnn", {"num_inducing_points": 6, "conv_kernel_size": 3, "interpolation": "cubic"}),
    "ski_tnn on images": ("ski_tnn", {"num_inducing_points": 3, "conv_kernel_size": 3, **IMAGE}),
    "ipa": ("ipa", {"num_centers": 4, "position_embedding_type": "sinusoidal"}),
    "ipa mix": ("ipa", {"num_centers": 4, "kernel_norm": "mix", "token_shift": 3, "copy_head": True}),
    "poly": ("poly_transformer", {"head_degrees": [2, 3, 4, 2.5], "num_attention_heads": 4}),
    "poly gated": ("poly_transformer", {"kernel_power": 2, "forget_gate": True, "num_attention_heads": 4}),
    "poly soft": ("poly_transformer", {"degree_form": "soft", "num_attention_heads": 4}),
    "poly toeplitz": ("poly_transformer", {"mixing": "toeplitz", "num_attention_heads": 4}),
    "poly triangular": ("poly_transformer", {"mixing": "triangular", "num_attention_heads": 4}),
    "attention": ("seqmix_hybrid", {"mixer_types": ["attention"], "mixer_configs": {"attention": {"num_heads": 2}}}),
    "hybrid": ("seqmix_hybrid", {"mixer_types": ["tnn", "ski_tnn", "short_conv"], "is_causal": False,
                                 "short_conv_taps": 3, "short_conv_init": "uniform",
                                 "mixer_configs": {"tnn": RPE, "ski_tnn": {"num_inducing_points": 7}}}),
}  # fmt: skip


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make(name: str) -> PreTrainedModel:
    model_type, fields = MODELS[name]
    layers = {} if model_type == "seqmix_hybrid" else {"num_hidden_layers": 2}
    config = AutoConfig.for_model(model_type, **TEXT, **layers, **fields)
    if config.image_size is not None:
        model_class: Any = AutoModelForImageClassification
    else:
        model_class = AutoModelForCausalLM if config.is_causal else AutoModelForMaskedLM
    model: PreTrainedModel = model_class.from_config(config)
    perturb(model)
    return model.eval()


def outputs(model: PreTrainedModel, ids: Tensor, pixels: Tensor) -> list[Tensor]:
    """Logits whole and padded, in steps where there is a cache, and a gradient."""
    if model.main_input_name == "pixel_values":
        found = [model(pixel_values=pixels).logits]
    else:
        found = [model(ids).logits, model(ids, torch.tensor(PADS["left"])).logits]
    if model.config.is_causal:
        cache = DynamicCache(config=model.config)
        found += [model(part, past_key_values=cache).logits for part in (ids[:, :5], ids[:, 5:6], ids[:, 6:])]
    model.zero_grad()
    found[0].square().mean().backward()
    return found + [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("name", MODELS)
def test_outputs_do_not_depend_on_the_default_dtype(name: str) -> None:
    model, ids, pixels = make(name), torch.randint(1, VOCAB, (2, 9)), torch.randn(2, 1, 6, 4)
    expected = outputs(model, ids, pixels)
    for dtype in (torch.bfloat16, torch.float64):
        with default_dtype(dtype):
            found = outputs(model, ids, pixels)
        assert len(found) == len(expected)
        for actual, wanted in zip(found, expected, strict=True):
            assert actual.dtype == torch.float32 and torch.equal(actual, wanted)
