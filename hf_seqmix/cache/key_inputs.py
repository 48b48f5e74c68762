"""Cache layers of keys and values that can keep the last inputs of short convolutions, too.

The library's own layers serve where keys and values alone are kept, both of the same width; these serve any width.
"""

from typing import Any

from torch import Tensor

from .._compat import register_layer_type
from .held import HeldLayer, HeldStaticLayer

__all__ = ["KEY_INPUTS", "KeyInputsLayer", "KeyInputsStaticLayer"]

KEY_INPUTS = "seqmix_key_inputs"
"""The name by which a config's `layer_types` asks for such a layer."""


class KeyInputsLayer(HeldLayer):
    """Growing keys and values."""

    _layer_type = KEY_INPUTS


class KeyInputsStaticLayer(HeldStaticLayer):
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
