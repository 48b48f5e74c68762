"""Cache layers for the copy head: a key for each token, and ids, which no floating type of a model can hold."""

from typing import Any

import torch
from torch import Tensor

from .._compat import DynamicLayer, StaticLayer, register_layer_type

__all__ = ["PAIRS", "PairsLayer", "PairsStaticLayer"]

PAIRS = "seqmix_pairs"
"""The name by which a config's `layer_types` asks for such a layer."""


class PairsLayer(DynamicLayer):
    """Growing keys (batch, 1, tokens, rank), and values (batch, 1, tokens, 2) in the integers that they come in."""

    _layer_type = PAIRS

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        # The library's are of the dtype of the keys.
        self.values = value_states[..., :0, :]

    def reset(self) -> None:
        """Forget everything."""
        self.keys = self.values = None
        self.is_initialized = False


class PairsStaticLayer(StaticLayer):
    """Preallocated keys (batch, 1, max_cache_len, rank) and values (batch, 1, max_cache_len, 2), for compiled decoding."""

    _layer_type = PAIRS

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        assert self.values is not None
        self.values = self.values.to(value_states.dtype)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new keys and values after those held, and return all places, used or not."""
        # Early initialisation gives every layer the shape of keys and values of the mixers.
        held = self.values
        if held is not None and (held.dtype != value_states.dtype or self.keys.shape[3] != key_states.shape[3]):
            self.lazy_initialization(key_states, value_states)
        return super().update(key_states, value_states, *args, **kwargs)


register_layer_type(PairsLayer, PairsStaticLayer)
