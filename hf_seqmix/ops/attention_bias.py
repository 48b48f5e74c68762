"""Which keys a query of attention may see, where rows are padded or packed."""

import torch
from torch import Tensor

from .layout import TokenLayout

__all__ = ["attention_bias"]


def attention_bias(
    layout: TokenLayout, length: int, key_length: int, past_length: int | Tensor, causal: bool, device: torch.device
) -> Tensor | None:
    """Say which keys a query may attend to: real ones, of its own sequence, and not after it when causal.

    Args:
        layout: where the tokens lie.
        length: number of queries.
        key_length: number of keys; with a preallocated cache, more than past + length.
        past_length: number of positions in the cache.
        causal: whether later keys are hidden.
        device: where the queries are.

    Returns:
        (batch or 1, 1, length, key_length) bool, or None when no mask, or just the causal triangle, is needed. A query
        that may attend to nothing (a pad) is let attend to itself, so that no row of the softmax is empty.

    Raises:
        ValueError: for a mask, with pads, that says nothing of the cached tokens.
    """
    fits = isinstance(past_length, int) and key_length == past_length + length
    if (
        layout.key_mask is None
        and layout.sequence_ids is None
        and fits
        and (not causal or past_length == 0 or length == 1)
    ):
        return None
    queries = torch.arange(length, device=device) + past_length  # (length,)
    keys = torch.arange(key_length, device=device)
    if causal:
        allowed = (keys <= queries.unsqueeze(1))[None]  # (1, length, key_length)
    else:
        allowed = torch.ones((1, length, key_length), dtype=torch.bool, device=device)
    if layout.key_mask is not None:
        known = layout.key_mask.shape[1]
        if known == length and not torch.compiler.is_compiling() and int(past_length) > 0:
            raise ValueError(
                f"attention_mask covers the {length} new tokens only, but attention sees {int(past_length)} cached "
                f"ones, too: give a mask of {int(past_length) + length} columns."
            )
        # Places of a preallocated cache that are not used yet are hidden by causality.
        padded = torch.nn.functional.pad(layout.key_mask, (0, key_length - known), value=True)
        allowed = allowed & padded[:, None, :]
    if layout.sequence_ids is not None:
        allowed = allowed & (layout.sequence_ids[:, :, None] == layout.sequence_ids[:, None, :])
    itself = keys == queries.unsqueeze(1)
    return (allowed | (itself & ~allowed.any(dim=-1, keepdim=True)))[:, None]
