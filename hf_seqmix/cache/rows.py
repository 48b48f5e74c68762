"""Rows of several caches in one, as serving needs: rows join a batch and leave it, each at its own position."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .recent_inputs import stack_rows

__all__ = ["join_rows", "keep_rows"]


def join_rows(caches: Sequence[Any]) -> Any:
    """Add the rows of all caches to the first, and return the first.

    A row of fewer tokens than the longest begins with pads, as in a batch of prompts that is padded on the left: the
    mask of the next call says so, where the model has layers that attend.

    Args:
        caches: growing caches of the library for one configuration, each with tokens.
    """
    first, *others = caches
    for layer, *more in zip(first.layers, *(cache.layers for cache in others), strict=True):
        if not more:
            continue
        # By what it does, not by its class, of which exported model code may have brought a copy.
        join = getattr(layer, "join", None)
        if join is not None:
            join(more)
            continue
        rows = [len(each.keys) for each in (layer, *more)]
        layer.keys = stack_rows([each.keys for each in (layer, *more)], rows)
        layer.values = stack_rows([each.values for each in (layer, *more)], rows)
    return first


def keep_rows(cache: Any, rows: Tensor, unused: int = 0) -> None:
    """Keep some rows of a cache, without its first positions.

    Args:
        cache: growing cache of the library.
        rows: (kept,) long, rows to keep, in their new order.
        unused: number of first positions that are pads of every row kept.
    """
    cache.batch_select_indices(rows)
    if unused == 0:
        return
    for layer in cache.layers:
        forget = getattr(layer, "forget_first", None)
        if forget is not None:
            forget(unused)
        else:
            layer.keys, layer.values = layer.keys[:, :, unused:], layer.values[:, :, unused:]
