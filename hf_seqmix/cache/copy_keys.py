"""What a copy head keeps for each token, a key and two ids, beside whatever the first layer of a cache keeps."""

from typing import Any

import torch
from torch import Tensor

from .._compat import StaticLayer
from .layer import SeqMixDynamicLayer, bring_back, refuse_layer

__all__ = ["CopyKeys", "StaticCopyKeys", "check_all_read", "copy_keys_of"]


class CopyKeys(SeqMixDynamicLayer):
    """Growing keys (batch, 1, tokens, rank), and values (batch, 1, tokens, 2) in the integers that they come in."""

    fills = {"values": -1}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Begin with no tokens."""
        super().lazy_initialization(key_states, value_states)
        # The library's are of the dtype of the keys, of which no half-precision type can hold an id.
        self.values = value_states[..., :0, :]


class StaticCopyKeys(StaticLayer):
    """Preallocated keys (batch, 1, max_cache_len, rank) and values (batch, 1, max_cache_len, 2)."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate keys and ids."""
        super().lazy_initialization(key_states, value_states)
        assert self.values is not None
        self.values = self.values.to(value_states.dtype)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.values)


def copy_keys_of(past_key_values: Any) -> CopyKeys | StaticCopyKeys:
    """Return the keys and ids that a cache holds for a copy head; the first call begins with none.

    Raises:
        ValueError: for a cache whose first layer is not one of this package.
    """
    layer = past_key_values.layers[0] if past_key_values.layers else None
    # By what it holds, not by its class, of which exported model code may have brought a copy.
    companions = getattr(layer, "companions", None)
    if layer is None or companions is None:
        refuse_layer(layer, 0, ", which keeps no tokens", "the copy head needs tokens")
    bring_back(past_key_values, layer)
    if "copy_keys" not in companions:
        companions["copy_keys"] = StaticCopyKeys(layer.max_cache_len) if layer.is_compileable else CopyKeys()
    copy_keys: CopyKeys | StaticCopyKeys = companions["copy_keys"]
    return copy_keys


def check_all_read(copy_keys: CopyKeys | StaticCopyKeys, past: int | Tensor) -> None:
    """Refuse a cache that the backbone filled alone: places of its tokens would be taken for those of others.

    Args:
        copy_keys: of the cache, before a call of the head.
        past: positions that the cache holds before the call.

    Raises:
        ValueError: the copy head has not read all tokens that the cache holds.
    """
    known = copy_keys.get_seq_length() if copy_keys.is_initialized else 0
    if bool(known != past):  # one wait, where both are on an accelerator
        raise ValueError(
            f"the cache holds {int(past)} tokens, of which the copy head has read {int(known)}: fill the cache by the "
            "language model, not by its backbone (model.model), or start from an empty cache."
        )
