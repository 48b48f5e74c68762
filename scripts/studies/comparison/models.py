"""What compare_mixers.py trains: the models, made equal in parameters by the width of their feed-forwards."""

import math
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    set_seed,
)

from .tasks import Sizes, Task

__all__ = ["MODELS", "TOEPLITZ", "build_config", "build_model", "config_fields"]

TOEPLITZ: dict[str, Any] = {"rpe_hidden_size": 32, "rpe_num_layers": 3}

POINTS = 32
"""Inducing points of SKI-TNN, where there are as many positions twice."""

LLAMA: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True}

# name -> model type and the fields that differ from its defaults
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tnn": ("tnn", TOEPLITZ),
    "attention": ("seqmix_hybrid", {"mixer_configs": {"attention": {"num_heads": 4}}}),
    # The library's own transformer, with its own scale of embeddings.
    "llama": ("llama", LLAMA),
    # The same as Granite, which may scale embeddings as ours are scaled, with matrices drawn for the width.
    "llama-scaled": ("granite", LLAMA),
    # Learned positions, layer norms and GELU, as GPT-2 has them.
    "opt": ("opt", {"num_attention_heads": 4, "activation_function": "gelu", "dropout": 0.0}),
    "ski_tnn": ("ski_tnn", {}),
    # Five tokens and no long mixer: what mixers that reach farther have to be ahead of.
    "short-conv": ("seqmix_hybrid", {"mixer_types": ["short_conv"], "mixer_configs": {"short_conv": {"taps": 5}}}),
}
# Softmax, and no activation besides: the feed-forward is the product of two projections.
MODELS["attention-bilinear"] = ("seqmix_hybrid", MODELS["attention"][1] | {"hidden_act": "linear"})
MODELS |= {
    f"fd_tnn-{frequency_input}-{activation}": (
        "fd_tnn",
        TOEPLITZ | {"frequency_input": frequency_input, "rpe_activation": activation},
    )
    for frequency_input in ("omega", "cosine")
    for activation in ("relu", "silu", "gelu")
}

# Four centers or heads, as attention has heads here.
IPA: dict[str, Any] = {"num_centers": 4, "norm_type": "simple_rms"}
MODELS |= {f"ipa-{norm}": ("ipa", IPA | {"kernel_norm": norm}) for norm in ("p", "j", "prod", "mix", "none")}
MODELS |= {
    "ipa-p-shift": ("ipa", IPA | {"kernel_norm": "p", "token_shift": 3}),
    "ipa-p-copy": ("ipa", IPA | {"kernel_norm": "p", "copy_head": True}),
    # The paper's two sizes: P centers, and affine maps of rank k, hidden_size / P by default.
    "ipa-p-8-centers": ("ipa", IPA | {"kernel_norm": "p", "num_centers": 8, "num_row_centers": 4}),
    "ipa-p-2-centers-rank-24": ("ipa", IPA | {"kernel_norm": "p", "num_centers": 2, "num_row_centers": 4, "rank": 24}),
    "ipa-p-8-centers-rank-24": ("ipa", IPA | {"kernel_norm": "p", "num_centers": 8, "num_row_centers": 4, "rank": 24}),
    "ipa-p-half-rank": ("ipa", IPA | {"kernel_norm": "p", "rank": 12}),
    "ipa-p-double-rank": ("ipa", IPA | {"kernel_norm": "p", "rank": 48}),
}
# Sums over the past know no order, so these get positions, as attention has its rotary ones.
POLYNOMIAL: dict[str, Any] = {"num_attention_heads": 4, "position_embedding_type": "sinusoidal"}
NO_ACTIVATION: dict[str, Any] = {"normalization": "static", "hidden_act": "linear"}
MODELS |= {f"poly-{degree}": ("poly_transformer", POLYNOMIAL | {"degree": degree}) for degree in (2, 3, 4, 5)}
MODELS |= {
    "poly-e": ("poly_transformer", POLYNOMIAL | {"degree": math.e}),
    "poly-soft": ("poly_transformer", POLYNOMIAL | {"degree_form": "soft"}),
    # Degree 3 of a learned matrix over positions, as in a mixer of tokens, in place of content.
    "poly-3-mixer": ("poly_transformer", POLYNOMIAL | {"degree": 3, "mixing": "toeplitz"}),
    "poly-3-mixer-polynomial": ("poly_transformer", POLYNOMIAL | {"degree": 3, "mixing": "toeplitz"} | NO_ACTIVATION),
    # What is no polynomial in degree 3, one after another: activations, norms, both.
    "poly-3-bilinear": ("poly_transformer", POLYNOMIAL | {"degree": 3, "hidden_act": "linear"}),
    "poly-3-static": ("poly_transformer", POLYNOMIAL | {"degree": 3, "normalization": "static"}),
    "poly-3-polynomial": ("poly_transformer", POLYNOMIAL | {"degree": 3} | NO_ACTIVATION),
}
# Twelve projections a model, but for those of the outputs: the depth is twelve over the degree.
for degree in (2, 3, 4):
    depth = {"degree": degree, "num_hidden_layers": 12 // degree}
    MODELS[f"poly-{degree}-by-depth"] = ("poly_transformer", POLYNOMIAL | depth)
    MODELS[f"poly-{degree}-by-depth-polynomial"] = ("poly_transformer", POLYNOMIAL | depth | NO_ACTIVATION)

BIDIRECTIONAL_ONLY = {"ski_tnn"}
CAUSAL_ONLY = {"llama", "llama-scaled", "opt"}
# The feed-forward of IPA is divided among its centers.
WIDTH_STEP = {"ipa": 4}


def build_config(name: str, task: Task, sizes: Sizes, feed_forward: int | None = None) -> PreTrainedConfig:
    """Return the configuration of a model, by default with the feed-forwards that give it the parameters of `tnn`.

    Args:
        name: of `MODELS`.
        task: what it learns.
        sizes: of the model and its sequences.
        feed_forward: units of the feed-forwards; what is more or less elsewhere is then not made up for.

    Raises:
        ValueError: if there is no such model for the task, or if its mixers alone have more parameters.
    """
    if name in BIDIRECTIONAL_ONLY and task.kind.causal:
        raise ValueError(f"{name} is bidirectional; it has no causal form. Leave it out or take a masked task.")
    if name in CAUSAL_ONLY and not task.kind.causal:
        raise ValueError(f"{name} is causal; it has no masked form. Leave it out or take a causal task.")
    if feed_forward is not None:
        return _config(name, task, sizes, feed_forward)
    if name == "tnn":
        return _config(name, task, sizes, sizes.hidden_size)
    target = _num_parameters(_config("tnn", task, sizes, sizes.hidden_size), task)
    step = WIDTH_STEP.get(MODELS[name][0], 1)
    narrow, wide = (_num_parameters(_config(name, task, sizes, width), task) for width in (step, 2 * step))
    # The number of parameters is linear in the width.
    width = step * round(1 + (target - narrow) / (wide - narrow))
    if width < 1:
        raise ValueError(
            f"{name} has {narrow} parameters with the narrowest feed-forward, more than the {target} of tnn; "
            "give more --num-layers or --hidden-size, or leave the model out."
        )
    return _config(name, task, sizes, width)


def build_model(config: PreTrainedConfig, causal: bool, seed: int) -> PreTrainedModel:
    """Return a model with random weights from a seed."""
    set_seed(seed)
    return (AutoModelForCausalLM if causal else AutoModelForMaskedLM).from_config(config)


def config_fields(
    name: str, sizes: Sizes, *, vocab_size: int, causal: bool, intermediate_size: int
) -> tuple[str, dict[str, Any]]:
    """Return the model type and the fields of the configuration of a model."""
    model_type, fields = MODELS[name]
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": sizes.hidden_size,
        "num_hidden_layers": sizes.num_layers,
        "intermediate_size": intermediate_size,
        "max_position_embeddings": sizes.block_size,
    }
    if name == "llama-scaled":
        width = sizes.hidden_size
        common |= {"initializer_range": width**-0.5, "embedding_multiplier": sizes.embedding_scale}
        common["attention_multiplier"] = (width / fields["num_attention_heads"]) ** -0.5
    if name == "opt":
        common |= {"ffn_dim": intermediate_size, "word_embed_proj_dim": sizes.hidden_size}
    if name in CAUSAL_ONLY:
        return model_type, common | fields
    common |= {
        "embedding_scale": sizes.embedding_scale,
        "hidden_dropout": 0.0,
        "linear_init": "uniform",
        "is_causal": causal,
    }
    if name == "tnn":
        common["decay"] = sizes.decay
    if name == "ski_tnn":
        # More than half of the positions would save nothing.
        common["num_inducing_points"] = min(POINTS, sizes.block_size // 2)
    return model_type, common | fields


def _config(name: str, task: Task, sizes: Sizes, intermediate_size: int) -> PreTrainedConfig:
    model_type, fields = config_fields(
        name, sizes, vocab_size=task.vocab_size, causal=task.kind.causal, intermediate_size=intermediate_size
    )
    if model_type not in CONFIG_MAPPING:
        raise ValueError(f"{name} needs the model type {model_type!r}, which this installation does not have.")
    try:
        return AutoConfig.for_model(model_type, **fields)
    except StrictDataclassError as error:
        raise ValueError(f"the configuration of {name} is refused: {error}") from error


def _num_parameters(config: PreTrainedConfig, task: Task) -> int:
    return build_model(config, task.kind.causal, seed=0).num_parameters()
