"""What no configuration may say, whatever its family, so that a hostile one is refused before anything is made of it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["check_extra_fields", "check_sizes"]

_LARGEST_NUMBER = 2**31
_LARGEST = {
    "hidden_size": 2**20,
    "intermediate_size": 2**24,
    "num_hidden_layers": 4096,
    "num_labels": 2**16,
    "expand_ratio": 2**10,
    "rpe_hidden_size": 2**20,
    "rpe_num_layers": 128,
    "image_size": 2**16,
    "num_channels": 2**16,
    "num_attention_heads": 1024,
    "num_heads": 2**16,
    "num_centers": 2**16,
    "num_row_centers": 2**16,
    "rank": 2**20,
    "kernel_rank": 2**20,
    "token_shift": 2**20,
    "conv_kernel_size": 2**20,
    "degree": 64,
    "layer_degrees": 64,
    "head_degrees": 64,
}
"""Far above any use, and small enough that a model can be built without weights in no time and without overflow."""
_LONGEST_LIST = 4096

# What the library takes without a look.
_TYPES: dict[str, type] = {
    "id2label": dict,
    "label2id": dict,
    "per_layer_config": dict,
    "quantization_config": dict,
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
                raise ValueError(f"{field} is {_short(number)}; it must be at most {largest}.")


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
            raise ValueError(f"{field} is {_short(value)}; it must be {kind}.")
        if field == "model_type" and value != config_class.model_type:
            raise ValueError(
                f"model_type is {_short(value)}, but this is a {config_class.model_type!r} configuration."
            )
        if field in ("dtype", "torch_dtype") and value is not None:
            import torch

            if not isinstance(getattr(torch, value, None) if isinstance(value, str) else value, torch.dtype):
                raise ValueError(f"{field} is {_short(value)}; it must be a type of PyTorch, such as 'float32'.")
        if field == "per_layer_config" and value:
            raise ValueError(
                "per_layer_config is set, but all layers of a model have one configuration: leave it out."
            )
        if field == "num_labels" and (type(value) is not int or value < 0):
            raise ValueError(f"num_labels is {_short(value)}; it must be a number of classes.")


def _short(value: Any) -> str:
    """Write a value for a message: not with thousands of digits."""
    if isinstance(value, int) and abs(value) > 10**18:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
