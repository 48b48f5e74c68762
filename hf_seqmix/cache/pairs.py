"""What a copy head keeps for each token, a key and two ids, beside whatever the first layer of a cache keeps."""

from typing import Any

import torch
from torch import Tensor

from .._compat import StaticLayer
from .held import HeldLayer

__all__ = ["Pairs", "StaticPairs", "pairs_of"]


class Pairs(HeldLayer):
    """Growing keys (batch, 1, tokens, rank), and values (batch, 1, tokens, 2) in the integers that they come in."""

    fills = {"values": -1}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Begin with no tokens."""
        super().lazy_initialization(key_states, value_states)
        # The library's are of the dtype of the keys, of which no half-precision type can hold an id.
        self.values = value_states[..., :0, :]


class StaticPairs(StaticLayer):
    """Preallocated keys (batch, 1, max_cache_len, rank) and values (batch, 1, max_cache_len, 2)."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate keys and ids."""
        super().lazy_initialization(key_states, value_states)
        assert self.values is not None
        self.values = self.values.to(value_states.dtype)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.values)


def pairs_of(past_key_values: Any) -> Pairs | StaticPairs:
    """Return the pairs that a cache holds; the first call begins with none.

    Raises:
        ValueError: for a cache whose first layer is not one of this package.
    """
    layer = past_key_values.layers[0] if past_key_values.layers else None
    # By what it holds, not by its class, of which exported model code may have brought a copy.
    companions = getattr(layer, "companions", None)
    if layer is None or companions is None:
        raise ValueError(
            f"the first layer of the cache is {type(layer).__name__}, which keeps no tokens, but the copy head needs "
            "them: build the cache with DynamicCache(config=model.config) or StaticCache(config=model.config, ...)."
        )
    if "pairs" not in companions:
        companions["pairs"] = StaticPairs(layer.max_cache_len) if layer.is_compileable else Pairs()
    pairs: Pairs | StaticPairs = companions["pairs"]
    return pairs
