"""What no configuration may say, whatever its family: a hostile file is refused before anything is made of it.

Names that look like misspelled fields are kept, as the library keeps them, and warned of.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig
from transformers.utils import logging

__all__ = ["check_extra_fields", "check_sizes", "short", "warn_of_misspelled"]

logger = logging.get_logger(__name__)

_LARGEST_NUMBER = 2**31
_LARGEST = {
    "hidden_size": 2**20,
    "intermediate_size": 2**24,
    "num_hidden_layers": 1024,
    "num_labels": 2**16,
    "expand_ratio": 2**10,
    "rpe_hidden_size": 2**20,
    "rpe_num_layers": 64,
    "image_size": 2**16,
    "num_channels": 2**16,
    "num_attention_heads": 1024,
    "num_heads": 2**16,
    "head_dim": 2**20,
    "num_centers": 2**16,
    "num_row_centers": 2**16,
    "rank": 2**20,
    "kernel_rank": 2**20,
    "token_shift": 2**20,
    "short_conv_taps": 2**20,
    "copy_head_rank": 2**20,
    "copy_head_tokens": 64,
    "ngram_sizes": 64,
    "ngram_buckets": 2**26,
    "taps": 2**20,
    "conv_kernel_size": 2**20,
    "degree": 64,
    "layer_degrees": 64,
    "head_degrees": 64,
    "kernel_power": 64,
}
"""Far above any use, and small enough that a model can be built without weights in no time and without overflow."""
_LONGEST_LIST = 4096
_MOST_NUMBERS = 2**50
"""Of one tensor; from 2^63 bytes on PyTorch counts wrong."""
_MOST_PARTS = 2**12
"""Layers within the layers of a model: more take minutes to build, though they may be small."""

# What the library takes without a look.
_TYPES: dict[str, type] = {
    "id2label": dict,
    "label2id": dict,
    "base_model_tp_plan": dict,
    "per_layer_config": dict,
    "quantization_config": dict,
    "rope_parameters": dict,
    "rope_scaling": dict,
    "attn_implementation": str,
    "_attn_implementation": str,
    "experts_implementation": str,
    "_experts_implementation": str,
    "model_type": str,
}


def check_sizes(fields: Mapping[str, Any]) -> None:
    """Refuse sizes that no model has.

    Args:
        fields: of a configuration, any types.

    Raises:
        ValueError: naming the field, the value given and what is allowed.
    """
    for field, value in fields.items():
        largest = _LARGEST.get(field, _LARGEST_NUMBER)
        values = value if isinstance(value, (list, tuple)) else [value]
        if len(values) > _LONGEST_LIST:
            raise ValueError(f"{field} has {len(values):,} entries; at most {_LONGEST_LIST:,} are allowed.")
        for number in values:
            if isinstance(number, (int, float)) and abs(number) > largest and abs(number) != math.inf:
                raise ValueError(f"{field} is {short(number)}; it must be at most {largest}.")
    _check_products(fields)


def _check_products(fields: Mapping[str, Any]) -> None:
    """Refuse sizes that are allowed each alone, but together make a tensor or a model beyond any."""
    squared = fields.get("mixing") == "triangular"
    factors = [
        ["max_position_embeddings", "max_position_embeddings", "num_attention_heads"] if squared else [],
        ["num_heads", "head_dim", "hidden_size"],
        ["num_centers", "rank", "hidden_size"],
        ["ngram_buckets", "hidden_size"],
        ["num_centers", "kernel_rank", "hidden_size"],
        [
            "patch_size",
            *(["patch_size"] if _is_number(fields.get("patch_size")) else []),
            "num_channels",
            "hidden_size",
        ],
    ]
    for names in factors:
        if math.prod(_size(fields.get(name)) for name in names) > _MOST_NUMBERS:
            given = ", ".join(
                f"{name} {fields[name]}" for name in dict.fromkeys(names) if fields.get(name) is not None
            )
            raise ValueError(f"{given} together make a tensor of more than 2^50 numbers: choose smaller sizes.")
    layers = _size(fields.get("num_hidden_layers"))
    for name, parts in (
        ("rpe_num_layers", layers * _size(fields.get("rpe_num_layers"))),
        ("degree", layers * _factors([fields.get("degree")])),
        ("layer_degrees", _factors(fields.get("layer_degrees"))),
        ("head_degrees", layers * _factors(fields.get("head_degrees"), distinct=True)),
    ):
        if parts > _MOST_PARTS:
            raise ValueError(
                f"num_hidden_layers is {layers}, and with {name} that makes {parts:,} layers within layers; at most "
                f"{_MOST_PARTS:,} are allowed."
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _size(value: Any) -> int | float:
    """Return a size as a factor: that of an area where there are two, 1 where there is none."""
    if isinstance(value, (list, tuple)):
        return math.prod(number for number in value if _is_number(number))
    return value if _is_number(value) else 1


def _factors(degrees: Any, distinct: bool = False) -> int:
    """Return how many projections polynomials of some degrees have; heads of one degree share theirs."""
    numbers = [degree for degree in degrees if _is_number(degree)] if isinstance(degrees, (list, tuple)) else []
    return sum(math.ceil(degree) for degree in (set(numbers) if distinct else numbers))


def check_extra_fields(config_class: Any, fields: Mapping[str, Any]) -> None:
    """Refuse, among what is no field of a configuration, what would break it.

    Other extra fields become attributes, as the library has it.

    Raises:
        ValueError: naming the field, and why.
    """
    known = {field.name for field in dataclasses.fields(config_class)}
    for field, value in fields.items():
        own = getattr(config_class, field, None)
        is_set = field in known or field == "model_type" or isinstance(own, property)
        if field.startswith("__") or (hasattr(config_class, field) and not is_set):
            raise ValueError(f"{field} is part of the configuration's own code and no field: leave it out.")
        if value is not None and not isinstance(value, _TYPES.get(field, object)) and not hasattr(value, "to_dict"):
            kind = "a string" if _TYPES[field] is str else "an object"
            raise ValueError(f"{field} is {short(value)}; it must be {kind}.")
        if field == "model_type" and value != config_class.model_type:
            raise ValueError(f"model_type is {short(value)}, but this is a {config_class.model_type!r} configuration.")
        if field in ("dtype", "torch_dtype") and value is not None:
            import torch

            if not isinstance(getattr(torch, value, None) if isinstance(value, str) else value, torch.dtype):
                raise ValueError(f"{field} is {short(value)}; it must be a type of PyTorch, such as 'float32'.")
        if field == "per_layer_config" and value:
            raise ValueError(
                "per_layer_config is set, but all layers of a model have one configuration: leave it out."
            )
        if field == "id2label" and isinstance(value, dict) and not all(_is_class(number) for number in value):
            raise ValueError(f"id2label is {short(value)}; it must map the number of each class to a name.")
        if field == "num_labels" and (type(value) is not int or value < 0):
            raise ValueError(f"num_labels is {short(value)}; it must be a number of classes.")


def warn_of_misspelled(config_class: Any, fields: Mapping[str, Any]) -> None:
    """Warn of names that are no field but look like one: the library keeps them, and no model reads them.

    A name looks like a field where `difflib` finds them alike by 0.66 or more; the two most alike are named.

    Args:
        config_class: whose fields are known.
        fields: what was given beside the fields.
    """
    inherited = {*dir(PreTrainedConfig), *PreTrainedConfig.__dataclass_fields__}
    own = [name for name in config_class.__dataclass_fields__ if name not in inherited]
    for field in sorted(set(fields) - inherited - set(dir(config_class))):
        similar = difflib.get_close_matches(field, own, n=2, cutoff=0.66)
        if similar:
            logger.warning(
                f"{config_class.__name__} has no field {short(field)}, and no model reads it; fields of a like name: "
                f"{', '.join(similar)}."
            )


def _is_class(number: Any) -> bool:
    try:
        int(number)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def short(value: Any) -> str:
    """Write a value for a message: not with thousands of digits."""
    if isinstance(value, int) and abs(value) > 10**18:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
