"""Whether a model can go on with a cache that was filled in another dtype.

Most growing layers can: they hold the wider of both dtypes, and mixers compute in float32 whatever they are given.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._compat import attends
from ..ops.common.dispatch import autocasts, compute_dtype
from .modes import MODES

__all__ = ["check_dtype"]


def check_dtype(past_key_values: Any, past: int | Tensor, inputs: Tensor, layer_types: Sequence[str]) -> None:
    """Refuse a cache of another dtype than that of a call where a layer cannot mix both, before any layer changes.

    Args:
        past_key_values: a cache of the library.
        past: positions that the cache holds, an int or () long.
        inputs: embeddings, in the dtype of the model.
        layer_types: what each layer of the cache keeps.

    Raises:
        ValueError: there is such a layer.
    """
    dtype, autocast = inputs.dtype, autocasts(inputs.device.type)
    if autocast and dtype != torch.float64:  # which autocast leaves alone
        dtype = torch.get_autocast_dtype(inputs.device.type)
    for layer_idx, (layer, layer_type) in enumerate(zip(past_key_values.layers, layer_types, strict=False)):
        held = _held(layer, layer_type)
        if held is None or held == dtype:
            continue
        if layer.is_compileable:
            fits = int(past) == 0  # read from the device only where dtypes differ
        elif layer_type == MODES:
            fits = compute_dtype(held) == compute_dtype(dtype)
        else:
            # Old and new keys together have the wider dtype, which autocast brings to that of queries.
            widest = torch.promote_types(dtype, torch.float32) if autocast else dtype
            fits = torch.promote_types(held, widest) == widest
        if not fits:
            raise ValueError(
                f"layer {layer_idx} of the cache was filled in {held}, but this call computes in {dtype}"
                f"{' (autocast)' if autocast else ''}, and the layer cannot mix both: go on as the cache was filled "
                f"(model.to({held}), or the autocast of then), or build a new cache; reset() keeps the dtype of a "
                "StaticCache."
            )


def _held(layer: Any, layer_type: str) -> torch.dtype | None:
    """Return the dtype of the tokens that a layer holds; None for none, and where any dtype may follow."""
    if layer.is_compileable:
        copy_keys = getattr(layer, "companions", {}).get("copy_keys")
        own = layer.keys if getattr(layer, "keeps_tokens", True) else None
        keys = own if own is not None or copy_keys is None else copy_keys.keys
    elif layer_type == MODES and getattr(layer, "state", None) is not None:
        return layer.state.dtype.to_real()
    else:
        keys = getattr(layer, "keys", None) if attends(layer_type) else None
    return None if keys is None or not keys.numel() else keys.dtype
