"""Cache layers for the copy head: those of the first mixer, which also keep a key and ids for each token."""

from typing import Any

import torch
from torch import Tensor

from .._compat import DynamicLayer, StaticLayer, register_layer_type
from .held import HeldLayer
from .key_inputs import KeyInputsLayer, KeyInputsStaticLayer

__all__ = ["PAIRS", "PairsLayer", "PairsStaticLayer", "pairs_of"]

PAIRS = "seqmix_pairs"
"""The name by which a config's `layer_types` asks, for its first layer, for one that keeps pairs as well."""


class _Pairs(HeldLayer):
    """Growing keys (batch, 1, tokens, rank), and values (batch, 1, tokens, 2) in the integers that they come in."""

    fills = {"values": -1}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        # The library's are of the dtype of the keys, of which no half-precision type can hold an id.
        self.values = value_states[..., :0, :]


class _StaticPairs(StaticLayer):
    """Preallocated keys (batch, 1, max_cache_len, rank) and values (batch, 1, max_cache_len, 2)."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        assert self.values is not None
        self.values = self.values.to(value_states.dtype)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.values)


class PairsLayer(KeyInputsLayer):
    """A growing layer of a mixer, with `pairs`, a layer of the copy head that shares its fate."""

    _layer_type = PAIRS

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.companions["pairs"] = _Pairs()

    @property
    def pairs(self) -> HeldLayer:
        """The keys and ids of the copy head."""
        pairs: HeldLayer = self.companions["pairs"]
        return pairs


class PairsStaticLayer(KeyInputsStaticLayer):
    """A preallocated layer of a mixer, with `pairs`, one of the copy head that shares its fate."""

    _layer_type = PAIRS

    def __init__(self, max_cache_len: int, **kwargs: Any) -> None:
        super().__init__(max_cache_len=max_cache_len, **kwargs)
        self.pairs = _StaticPairs(max_cache_len=max_cache_len)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.pairs.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows of the batch for beam search."""
        super().reorder_cache(beam_idx)
        self.pairs.reorder_cache(beam_idx)  # type: ignore[arg-type]


register_layer_type(PairsLayer, PairsStaticLayer, attends=True)


def pairs_of(past_key_values: Any) -> DynamicLayer | StaticLayer:
    """Return the layer of pairs that a cache holds.

    Raises:
        ValueError: for a cache that was not built for one.
    """
    layer = past_key_values.layers[0] if past_key_values.layers else None
    # By what it holds, not by its class, of which exported model code may have brought a copy.
    pairs = getattr(layer, "pairs", None)
    if pairs is None:
        raise ValueError(
            f"the first layer of the cache is {type(layer).__name__}, which keeps no tokens, but the copy head needs "
            "them: build the cache with DynamicCache(config=model.config) or StaticCache(config=model.config, ...)."
        )
    return pairs
