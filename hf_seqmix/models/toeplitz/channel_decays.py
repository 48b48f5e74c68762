"""Several decays in one layer: equal blocks of channels, a decay for each block."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, cat

from ...modules.sharding import own_part
from ..configuration import check_range

__all__ = ["block_sizes", "by_channel", "check_channel_decays", "decay_of_each_channel", "log_decays"]


def block_sizes(blocks: int, channels: int) -> list[int]:
    """Return how many of m channels lie in each of n blocks: channel c is in block floor(c n / m)."""
    starts = [-(-block * channels // blocks) for block in range(blocks + 1)]
    return [end - start for start, end in pairwise(starts)]


def decay_of_each_channel(decay: float | Sequence[float], channels: int) -> list[float]:
    """Return the decay of each of m channels: the number, or, of n numbers, number floor(c n / m) for channel c."""
    decays = decay if isinstance(decay, Sequence) else [decay]
    sizes = block_sizes(len(decays), channels)
    return [number for number, size in zip(decays, sizes, strict=True) for _ in range(size)]


def by_channel(values: Sequence[float], channels: int, like: Tensor, weight: Tensor) -> Tensor:
    """Spread one value a block over the channels: (channels that this device has, 1).

    Values are filled in and not copied from the host, so that a CUDA graph can record the call.

    Args:
        values: one for each block, see `block_sizes`.
        channels: of all devices.
        like: gives the dtype and the device.
        weight: (channels, ...), split among devices as the result is to be.
    """
    sizes = block_sizes(len(values), channels)
    whole = cat([like.new_full((size, 1), value) for value, size in zip(values, sizes, strict=True)])
    return own_part(whole, weight, dim=0)


def log_decays(decay: float | Sequence[float], channels: int, like: Tensor, weight: Tensor) -> float | Tensor:
    """Return ln decay: a number for one decay, else (channels that this device has, 1), see `by_channel`."""
    if not isinstance(decay, Sequence):
        return math.log(decay)
    return by_channel([math.log(number) for number in decay], channels, like, weight)


def check_channel_decays(
    decays: Sequence[float] | None, channels: int, decay: object, default: object, **bounds: float
) -> None:
    """Check the decays of blocks of channels; None passes.

    Args:
        decays: one for each block.
        channels: of the layer.
        decay: what the field `decay` says.
        default: what `decay` says where a user does not.
        **bounds: what each number must be within, see `check_range`.

    Raises:
        ValueError: for no decay, more decays than channels, a number out of range, or a `decay` beside them.
    """
    if decays is None:
        return
    if not 1 <= len(decays) <= channels:
        raise ValueError(
            f"channel_decays has {len(decays)} entries, but a mixer has {channels} channels (expand_ratio x "
            "hidden_size): give at least 1 and at most one for each channel, or None."
        )
    for number in decays:
        check_range("channel_decays", number, **bounds)
    if decay not in (None, default):
        raise ValueError(
            f"decay is {decay} and channel_decays {list(decays)}: give one decay for all channels, or one for each "
            "block of channels."
        )
