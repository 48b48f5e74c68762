"""The last real tokens of each sequence, at each place of a call: what a copy head compares and copies."""

import torch
from torch import Tensor

from ..ops.common.running_max import running_max
from ..ops.layout import TokenLayout

__all__ = ["last_tokens", "recent_tokens"]


def recent_tokens(input_ids: Tensor, layout: TokenLayout, count: int, earlier: Tensor | None = None) -> Tensor:
    """Return the last real tokens of the sequence at each place, the newest first.

    At a real token that is the token itself and those before it; at a pad, those before the pad.

    Args:
        input_ids: (batch, length).
        layout: where the real tokens of each sequence lie.
        count: how many tokens, at least 1.
        earlier: (batch, any) the last real tokens before this call, the newest first, -1 where there are fewer; None
            for none.

    Returns:
        (batch, length, count) ids, -1 where the sequence has fewer.
    """
    length = input_ids.shape[1]
    real = torch.ones_like(input_ids, dtype=torch.bool) if layout.mask is None else layout.mask
    sequences = layout.sequence_ids
    if earlier is not None:
        before = earlier.flip(1)
        input_ids, real = torch.cat([before, input_ids], dim=1), torch.cat([before >= 0, real], dim=1)
        if sequences is not None:
            sequences = torch.cat([sequences[:, :1].expand_as(before), sequences], dim=1)
    place = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    latest = running_max(torch.where(real, place, -1))  # where the last real token up to each place stands
    first = newest = latest[:, input_ids.shape[1] - length :]
    tokens = []
    for number in range(count):
        if number > 0:
            newest = torch.where(newest > 0, latest.gather(1, (newest - 1).clamp(min=0)), -1)
        held = newest >= 0
        if sequences is not None:
            held = held & (sequences.gather(1, newest.clamp(min=0)) == sequences.gather(1, first.clamp(min=0)))
        tokens.append(torch.where(held, input_ids.gather(1, newest.clamp(min=0)), -1))
    return torch.stack(tokens, dim=-1)


def last_tokens(ids: Tensor, past: int | Tensor, count: int) -> Tensor:
    """Return the last real tokens among those that a cache holds, the newest first.

    Args:
        ids: (batch, places), -1 at pads.
        past: how many places are filled.
        count: how many tokens, at least 1.

    Returns:
        (batch, count), -1 where there are fewer.
    """
    place = torch.arange(ids.shape[1], device=ids.device)
    left = torch.where((ids >= 0) & (place < past), place, -1)
    tokens = []
    for _ in range(count):
        latest = left.amax(dim=1, keepdim=True)
        tokens.append(torch.where(latest < 0, -1, ids.gather(1, latest.clamp(min=0))))
        left = torch.where(place < latest, left, -1)
    return torch.cat(tokens, dim=1)
