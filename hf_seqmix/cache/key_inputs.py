"""Cache layers of keys and values that can keep the last inputs of short convolutions, too.

The library's own layers serve where keys and values alone are kept, both of the same width; these serve any width.
"""

from typing import Any

import torch
from torch import Tensor

from .._compat import register_layer_type
from .layer import SeqMixDynamicLayer, SeqMixStaticLayer, bring_back, refuse_layer
from .recent_inputs import check_rows

__all__ = ["KEY_INPUTS", "KeyInputsLayer", "KeyInputsStaticLayer", "append_keys", "previous_inputs"]

KEY_INPUTS = "seqmix_key_inputs"
"""The name by which a config's `layer_types` asks for such a layer."""


class KeyInputsLayer(SeqMixDynamicLayer):
    """Growing keys and values."""

    _layer_type = KEY_INPUTS


class KeyInputsStaticLayer(SeqMixStaticLayer):
    """Preallocated keys and values of any widths, for compiled decoding; no cropping."""

    _layer_type = KEY_INPUTS

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new keys and values after those held, and return all places, used or not."""
        # Early initialization gives all layers, keys and values one width.
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            if held is not None and (held.shape[1] != new.shape[1] or held.shape[3] != new.shape[3]):
                self.lazy_initialization(key_states, value_states)
        return super().update(key_states, value_states, *args, **kwargs)


register_layer_type(KeyInputsLayer, KeyInputsStaticLayer, attends=True)


def append_keys(past_key_values: Any, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Add the keys and values of this call to a layer, and return all, old ones first.

    Args:
        past_key_values: cache of the library, whose layer may be the library's own.
        layer_idx: number of the layer.
        keys: (batch, heads, new, width).
        values: (batch, heads, new, width of values).

    Raises:
        ValueError: a growing layer holds another number of rows, or keys or values of another shape.
    """
    layers = past_key_values.layers
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    held = None if layer is None or layer.is_compileable else (layer.keys, layer.values)
    if held is not None and held[0] is not None and held[0].numel() and not torch.compiler.is_compiling():
        check_rows(held[0].shape[0], keys)
        for name, old, new in zip(("keys", "values"), held, (keys, values), strict=True):
            if (old.shape[1], old.shape[3]) != (new.shape[1], new.shape[3]):
                raise ValueError(
                    f"layer {layer_idx} of the cache holds {name} of {old.shape[1]} heads of width {old.shape[3]}, "
                    f"but this mixer has {new.shape[1]} of width {new.shape[3]}. Build the cache with "
                    "DynamicCache(config=model.config); prefix tuning takes the number of heads, or of centers, as "
                    "num_attention_heads."
                )
    return past_key_values.update(keys, values, layer_idx)


def previous_inputs(
    past_key_values: Any, layer_idx: int, name: str, inputs: Tensor, real: Tensor | None, count: int
) -> Tensor:
    """Add the inputs of this call to a layer, and return the last real ones before it.

    Args:
        past_key_values: cache of the library, built for the model's configuration.
        layer_idx: number of the layer.
        name: of the convolution whose inputs these are, one of those in this layer; or of the tokens of n-grams.
        inputs: (batch, length, channels), zeros at pads, of any dtype.
        real: (batch, length) bool, True at real tokens; None when all are.
        count: how many to return.

    Returns:
        (batch, count, channels), zeros first where there were fewer.

    Raises:
        ValueError: for a cache that was not built for them.
    """
    layers = past_key_values.layers
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    # By what it does, not by its class, of which exported model code may have brought a copy.
    push = getattr(layer, "push_inputs", None)
    if push is None:
        needs = "short convolutions (short_conv_taps, token_shift) and n-grams (ngram_sizes) need the last inputs"
        refuse_layer(layer, layer_idx, ", which keeps no inputs", needs)
    bring_back(past_key_values, layer)
    before: Tensor = push(name, inputs, real, count)
    return before
