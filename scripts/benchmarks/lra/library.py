"""The transformers of the library beside this package's attention: ModernBERT for texts, ViT for pictures."""

from collections.abc import Mapping
from typing import Any

from hf_seqmix.training import check_fields

__all__ = ["left_out", "library_model", "library_type"]

GATED = 3 / 2
"""Matrices of a gated feed-forward, as this package's attention has, for each matrix of ViT's."""

TRANSLATED = ("hidden_dropout", "intermediate_size", "mixer_configs")
"""Fields of this package's attention that the library's model takes over by another name or value."""


def library_type(reads_images: bool) -> str:
    """Return the model type that stands beside this package's attention."""
    return "vit" if reads_images else "modernbert"


def library_model(model: Mapping[str, Any], reads_images: bool) -> dict[str, Any]:
    """Return a model of the library of the size of a model of this package: width, depth, heads, number of weights.

    Whatever else the library's model has is as the library sets it, and what it has not is left out: zeros at the end
    of branches, the short convolution, the kind of norm. Every layer of ModernBERT sees the whole text.

    Args:
        model: the section `model` of a run of this package's attention.
        reads_images: whether the model reads pictures.
    """
    given = dict(model["config_overrides"])
    model_type = library_type(reads_images)
    fields = {name: value for name, value in given.items() if name in check_fields(model_type, ())}
    fields["num_attention_heads"] = given["mixer_configs"]["attention"]["num_heads"]
    dropout = given.get("hidden_dropout", 0.0)
    if reads_images:
        fields |= {"patch_size": given.get("patch_size", 1), "hidden_dropout_prob": dropout}
        fields["intermediate_size"] = round(GATED * given["intermediate_size"])
    else:
        fields |= {"classifier_pooling": "mean", "embedding_dropout": dropout, "mlp_dropout": dropout}
        fields["layer_types"] = ["full_attention"] * given["num_hidden_layers"]
    # The width is what the library's scale of random weights belongs to.
    fields["initializer_range"] = given["hidden_size"] ** -0.5
    return {**model, "model_type": model_type, "config_overrides": fields}


def left_out(given: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """Return which fields of the command line have no effect on the library's model; they may be for other families.

    Args:
        given: of the command line.
        model: as `library_model` returns it.

    Raises:
        ValueError: neither the library's model nor this package's attention has such a field.
    """
    try:
        check_fields("seqmix_hybrid", given.keys() - check_fields(model["model_type"], ()))
    except ValueError as error:
        raise ValueError(f"--config-overrides of {model['model_type']} as large as our attention: {error}") from error
    fields = model["config_overrides"]
    return [name for name, value in given.items() if name not in TRANSLATED and fields.get(name) != value]
