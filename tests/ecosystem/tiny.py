"""One small model of each family, for tests that hand it to other people's tools."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerFast

from hf_seqmix.data import train_bpe
from hf_seqmix.models.auto import FAMILIES

CAUSAL = ["tnn", "fd_tnn", "ipa", "poly_transformer", "seqmix_hybrid"]
EVERY = [*CAUSAL, "ski_tnn"]
BIDIRECTIONAL_HEADS = ["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]

SHARED: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "hidden_dropout": 0.0,
}
OWN: dict[str, dict[str, Any]] = {
    "ski_tnn": {"num_inducing_points": 4, "conv_kernel_size": 3},
    "ipa": {"num_centers": 2},
    "poly_transformer": {"num_attention_heads": 2},
    "seqmix_hybrid": {"mixer_types": ["tnn", "attention"], "mixer_configs": {"attention": {"num_heads": 2}}},
}
TEXT = [f"def add_{n}(x, y={n}):\n    return x + y * {n}\n" for n in range(12)]


def thorough(heads: list[tuple[str, str]]) -> list[Any]:
    """Return all heads of all families, where by default some have the marker `slow`.

    The default suite has one head of each family, another head each time, and all heads of the first family.
    """
    first = {family for family, _ in heads[:1]}
    kept: set[tuple[str, str]] = set()
    for place, family in enumerate(dict(heads)):
        own = [suffix for name, suffix in heads if name == family]
        kept |= {(family, suffix) for suffix in (own if family in first else [own[place % len(own)]])}
    return [pytest.param(*head, marks=[] if head in kept else pytest.mark.slow) for head in heads]


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """Return a configuration of two layers, 16 wide; bidirectional where the family has no causal form."""
    return AutoConfig.for_model(model_type, **{**SHARED, **OWN.get(model_type, {}), **overrides})


def tiny_model(model_type: str, suffix: str = "ForCausalLM", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a model with the head `suffix`, its parameters moved away from initial zeros and ones."""
    if suffix == "ForMaskedLM":
        overrides.setdefault("is_causal", False)
    family = next(family for family in FAMILIES if family.config_class.model_type == model_type)
    torch.manual_seed(seed)
    model = family.classes[suffix](tiny_config(model_type, **overrides))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of at most 300 pieces, which fits the models above."""
    return train_bpe(TEXT, 300)
