"""What the package needs of transformers' internals, in one place.

The cache and mask tables below were renamed several times within 5.x; everything else uses public names.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING, DynamicLayer, StaticLayer
from transformers.masking_utils import LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING, eager_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
)
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

__all__ = [
    "CACHE_NAME",
    "DynamicLayer",
    "OutputRecorder",
    "PicklableCapture",
    "StaticLayer",
    "attends",
    "cache_argument",
    "cache_given",
    "can_return_tuple",
    "capture_outputs",
    "known_layer_types",
    "register_attention",
    "register_causal_lm_name",
    "register_export_patch",
    "register_image_classification_name",
    "register_layer_type",
]

_OUTPUTS = {field.name for field in fields(BaseModelOutputWithPast)}
CACHE_NAME = "cache" if "cache" in _OUTPUTS else "past_key_values"
"""What the library calls a cache, in arguments and in outputs; "cache" since 5.24."""


class PicklableCapture:
    """A module that can be pickled and copied after `output_hidden_states` was asked for.

    The library leaves a local function as a forward hook on each block, which pickle refuses, and a mark on the model.
    Both are left out of the copy; the library installs the hooks again when they are next needed.
    """

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("_output_capturing_hooks_installed", None)
        hooks = state.get("_forward_hooks", {})
        kept = {key: hook for key, hook in hooks.items() if not _captures_outputs(hook)}
        if len(kept) < len(hooks):
            state["_forward_hooks"] = type(hooks)(kept)
        return state


def _captures_outputs(hook: Any) -> bool:
    return "output_capturing_hook" in getattr(hook, "__qualname__", "")


def cache_argument(model: Any) -> str | None:
    """Return the name by which a model, of any origin and release, takes a cache; None where it takes none."""
    arguments = inspect.signature(model.forward).parameters
    return next((name for name in (CACHE_NAME, "past_key_values", "cache") if name in arguments), None)


def cache_given(past_key_values: Any, cache: Any) -> Any:
    """Return the cache of a call, whichever of its two names it was given by.

    Raises:
        ValueError: it was given by both.
    """
    if past_key_values is not None and cache is not None:
        raise ValueError("past_key_values and cache are two names of the same argument: give one of them.")
    return cache if past_key_values is None else past_key_values


def register_attention(name: str, function: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Make the library know an attention function, which gets masks that are added to the logits.

    Args:
        name: of the `attn_implementation`.
        function: called with (module, query, key, value, attention_mask, scaling=..., **options); returns the output,
            (batch, length, heads, head_dim), and the weights.
    """
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, eager_mask)


def register_causal_lm_name(model_type: str, class_name: str) -> None:
    """Tell the `Trainer` that a class is a causal language model.

    With label smoothing it computes the loss itself, and shifts the labels only for classes named in this table;
    without the shift a model learns to copy its input.
    """
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] = class_name


def register_image_classification_name(model_type: str, class_name: str) -> None:
    """Tell the image classification pipeline that it supports a class; else the pipeline logs an error."""
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES[model_type] = class_name


def register_export_patch(function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Have the library's exporters to other runtimes call something else while they trace.

    Releases of the library without exporters ignore this.

    Args:
        function: at the top level of a module, which calls it by its bare name.
        replacement: called instead.
    """
    if find_spec("transformers.exporters") is None:
        return
    from transformers.exporters.utils import register_patch

    for runtime in ("onnx", "openvino", "executorch"):
        register_patch(runtime, f"{function.__module__}.{function.__qualname__}")(lambda original: replacement)


def register_layer_type(dynamic: type[DynamicLayer], static: type[StaticLayer], attends: bool = False) -> None:
    """Make `DynamicCache(config=...)`, `StaticCache(config=...)` and `generate` know a pair of cache layers.

    Args:
        dynamic: growing layer; its `_layer_type` is the name under which a config's `layer_types` asks for it (the
            library registers it by that attribute when the class is defined).
        static: preallocated layer of the same `_layer_type`.
        attends: whether the mixer wants to know which keys each query sees, as softmax attention does, and not only
            which tokens of the call are real.
    """
    name = dynamic._layer_type
    if name is None or static._layer_type != name:
        raise ValueError(f"{dynamic.__name__} and {static.__name__} must share one _layer_type.")
    STATIC_LAYER_TYPE_MAPPING[name] = static
    masks = LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING
    masks[name] = masks["full_attention"] if attends else _padding_mask


def known_layer_types() -> list[str]:
    """Return the names by which a config's `layer_types` may ask for layers of a cache, of both kinds."""
    return sorted(STATIC_LAYER_TYPE_MAPPING)


def attends(layer_type: str) -> bool:
    """Return whether a layer's mixer must know which of the cached tokens are real, as softmax attention must."""
    masks = LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING
    return masks.get(layer_type) is masks["full_attention"]


def _padding_mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    cache: Any = None,
    **_: Any,
) -> Tensor | None:
    """Widen a 2D mask to all places of a preallocated cache, so that a compiled graph sees one shape at every step.

    The exporters merge steps of decoding, and keep the mask of the last: a mask has to say where all tokens stand.
    """
    if attention_mask is None or attention_mask.ndim != 2:
        return None
    if not torch.compiler.is_compiling() and bool((attention_mask != 0).all()):
        return None
    cache = cache_given(past_key_values, cache)
    layers = [] if cache is None else cache.layers
    places = max([getattr(layer, "max_cache_len", 0) for layer in layers], default=0)
    unused = max(places - attention_mask.shape[1], 0)
    return torch.nn.functional.pad(attention_mask, (0, unused), value=1)
