"""The library's transformers beside this package's attention: Llama, or ModernBERT where the target looks ahead."""

from typing import Any

from torch import nn
from transformers import AutoConfig, AutoModelForTokenClassification

from hf_seqmix.analysis.rates import Target, TokenRegressor

__all__ = ["library_config", "library_regressor"]

WIDTH, HEADS = 32, 4
"""Those of this package's attention in `order`, whose feed-forward is four times as wide, too."""

LLAMA: dict[str, Any] = {"num_key_value_heads": HEADS, "classifier_dropout": 0.0}
MODERNBERT: dict[str, Any] = {"layer_types": ["full_attention"]}


def library_config(target: Target) -> dict[str, Any]:
    """Return the model type and fields of a transformer of one layer, causal where the target is.

    Norms, positions and the head are the library's; matrices are drawn for the width.
    """
    return {
        "model_type": "llama" if target.is_causal else "modernbert",
        "vocab_size": 1,
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "max_position_embeddings": target.length,
        "initializer_range": WIDTH**-0.5,
        "num_labels": 1,
        "problem_type": "regression",
        # A vocabulary of one token, which is never read, has none of these.
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")),
        **(LLAMA if target.is_causal else MODERNBERT),
    }


def library_regressor(target: Target) -> TokenRegressor:
    """Build the transformer for a target, with random weights; a linear map makes its inputs of the target's."""
    model = AutoModelForTokenClassification.from_config(AutoConfig.for_model(**library_config(target)))
    return TokenRegressor(model, nn.Linear(target.width, WIDTH))
