"""The last real tokens of each sequence, at each place of a call: what a copy head compares and copies."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.common.running_max import running_max
from ..ops.layout import TokenLayout

__all__ = ["RecentTokens", "last_tokens", "recent_tokens", "sum_of_parts"]


class RecentTokens(NamedTuple):
    """The last real tokens of the sequence at each place of a call, the newest first.

    At a real token that is the token itself and those before it; at a pad, those before the pad.
    """

    ids: Tensor
    """(batch, slots): -1, which stands for no token; then tokens before this call; then those of this call."""
    slots: Tensor
    """(batch, length, count) long: where in `ids` each token is; 0 where the sequence has fewer."""

    def tokens(self) -> Tensor:  # no property, which torch 2.9 does not compile
        """Return (batch, length, count) ids, -1 where the sequence has fewer."""
        return self.ids.gather(1, self.slots.flatten(1)).view(self.slots.shape)


def recent_tokens(input_ids: Tensor, layout: TokenLayout, count: int, earlier: Tensor | None = None) -> RecentTokens:
    """Find the last real tokens of the sequence at each place.

    Args:
        input_ids: (batch, length).
        layout: where the real tokens of each sequence lie.
        count: how many tokens, at least 1.
        earlier: (batch, any) the last real tokens before this call, the newest first, -1 where there are fewer; None
            for none.

    Returns:
        Ids and slots, see `RecentTokens`: with `earlier`, ids of (1 + any + length) slots.
    """
    before = torch.full_like(input_ids[:, :1], -1)
    if earlier is not None:
        before = torch.cat([before, earlier.flip(1)], dim=1)
    here = torch.ones_like(input_ids, dtype=torch.bool) if layout.mask is None else layout.mask
    ids, real = torch.cat([before, input_ids], dim=1), torch.cat([before >= 0, here], dim=1)
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    latest = running_max(torch.where(real, place, 0))  # where the last real token up to each slot is
    slots = [latest[:, before.shape[1] :]]
    for _ in range(count - 1):
        # What is before slot 0 is again none.
        slots.append(latest.gather(1, (slots[-1] - 1).clamp(min=0)))
    found = torch.stack(slots, dim=-1)
    if layout.sequence_ids is not None:
        sequences = layout.sequence_ids
        sequences = torch.cat([sequences[:, :1].expand_as(before), sequences], dim=1)
        of_slots = sequences.gather(1, found.flatten(1)).view(found.shape)
        found = torch.where(of_slots == of_slots[..., :1], found, 0)
    return RecentTokens(ids, found)


def sum_of_parts(parts: Tensor, slots: Tensor) -> Tensor:
    """Add up what is computed of each token for each of its turns, y[l] = sum_m parts[slots[l, m]][m].

    Args:
        parts: (batch, slots, turns * channels), zeros for no token; what a token gives if it is the first, the second,
            ... of those that are added.
        slots: (batch, places, turns) long, which tokens.

    Returns:
        (batch, places, channels).
    """
    slots = slots.to(parts.device)
    turns = slots.shape[-1]
    channels = parts.shape[-1] // turns
    index = slots.unsqueeze(-2).expand(-1, -1, channels, -1)  # (batch, places, channels, turns)
    total = parts[..., :channels].gather(1, index[..., 0])
    for turn in range(1, turns):
        total = total + parts[..., turn * channels : (turn + 1) * channels].gather(1, index[..., turn])
    return total


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
