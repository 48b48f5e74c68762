"""The checks of the fields that all families share."""

from typing import Any

from .checks import check_activation, check_choice, check_range
from .image_shape import check_image_fields

__all__ = ["NORM_TYPES", "TAPS_INITS", "check_common_fields"]

# As in `modules`, which a configuration does without.
NORM_TYPES = ("simple_rms", "layer", "batch", "static", "none")
TAPS_INITS = ("identity", "uniform")


def check_common_fields(config: Any) -> None:
    """Check ranges and combinations of the fields that every family has, once those left out are derived.

    Args:
        config: a `SeqMixConfig`.

    Raises:
        ValueError: naming the field, the value given and what is allowed.
    """
    for field in (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "max_position_embeddings",
    ):
        check_range(field, getattr(config, field), low=1)
    for field in ("hidden_dropout", "classifier_dropout"):
        check_range(field, getattr(config, field), low=0, below=1)
    for field in ("norm_eps", "embedding_scale", "initializer_range"):
        check_range(field, getattr(config, field), above=0)
    check_activation("hidden_act", config.hidden_act)
    check_choice("norm_type", config.norm_type, NORM_TYPES)
    check_choice("norm_position", config.norm_position, ("pre", "post"))
    check_range("short_conv_taps", config.short_conv_taps, low=0)
    check_choice("short_conv_init", config.short_conv_init, TAPS_INITS)
    if config.short_conv_taps > 0 and config.short_conv_taps % 2 == 0 and not config.is_causal:
        raise ValueError(
            f"short_conv_taps is {config.short_conv_taps}, but is_causal is False: a convolution that is centered "
            "on its token needs an odd number of taps."
        )
    for size in config.ngram_sizes or ():
        check_range("ngram_sizes", size, low=2)
    if len({*(config.ngram_sizes or ())}) < len(config.ngram_sizes or ()):
        raise ValueError(f"ngram_sizes is {config.ngram_sizes}, which names a size twice: name each once.")
    check_range("ngram_buckets", config.ngram_buckets, low=1)
    if config.copy_head:
        check_range("copy_head_rank", config.copy_head_rank, low=1)
        check_range("copy_head_tokens", config.copy_head_tokens, low=1)
        if not config.is_causal:
            raise ValueError("copy_head is True, but is_causal is False: only a causal language model can copy.")
    check_choice("position_embedding_type", config.position_embedding_type, ("none", "sinusoidal", "learned"))
    check_choice("linear_init", config.linear_init, ("uniform", "normal"))
    check_choice("classifier_pooling", config.classifier_pooling, ("mean", "last", "first"))
    check_choice("classifier_head", config.classifier_head, ("linear", "mlp"))
    check_choice("num_segments", config.num_segments, (1, 2))
    kinds = ("regression", "single_label_classification", "multi_label_classification")
    check_choice("problem_type", config.problem_type, (None, *kinds))
    if config.zero_init_outputs and not config.use_residual:
        raise ValueError(
            "zero_init_outputs is True, but use_residual is False: every block would put out zeros, and learn "
            "nothing. Set one of the two otherwise."
        )
    check_image_fields(config.num_channels, config.image_size, config.patch_size)
    if config.image_shape is not None:
        if config.ngram_sizes:
            raise ValueError(
                f"ngram_sizes is {config.ngram_sizes}, but image_size is set: n-grams are of tokens. Leave one out."
            )
        config.image_shape.check_model(config.num_segments, config.max_position_embeddings)
