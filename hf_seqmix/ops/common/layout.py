"""Exchanging channels and positions in memory, fast on CPU.

Linear layers leave (batch, length, channels), transforms want (batch, channels, length). PyTorch copies one to the
other number by number. Its channel shuffle transposes small matrices in vector registers, in a third of the time.
"""

from typing import Any

import torch
from torch import Tensor

from .dispatch import dispatch

__all__ = ["channels_adjacent", "no_view", "positions_adjacent", "transposed", "write_channels"]

# Channels that are exchanged together: two cache lines of a position. Threads share among them, too.
_GROUP = 32


def channels_adjacent(x: Tensor) -> bool:
    """Return whether channels, not positions, of (batch, channels, length) on a CPU are side by side in memory."""
    return x.device.type == "cpu" and x.stride(1) == 1 and x.stride(2) != 1


def no_view(x: Tensor) -> Tensor:
    """Return x as a tensor of its own on the same memory, without derivatives.

    What a `torch.autograd.Function` returns as a view, such as a transpose, cannot be changed in place.
    """
    return x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride()) if x._is_view() else x


def positions_adjacent(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in `dtype`, with positions side by side where channels were, without derivatives.

    Args:
        x: (batch, channels, length), not empty.
        dtype: float32 or float64.
    """
    if not channels_adjacent(x):
        return x.to(dtype)
    batch, channels, length = x.shape
    groups = _groups(channels)
    rows = x.unflatten(1, (groups, -1)).transpose(2, 3)  # (batch, groups, length, channels / groups)
    rows = rows.to(dtype, memory_format=torch.contiguous_format, copy=True)
    return _exchange(rows.view(batch * groups, length, -1)).view(batch, channels, length)


def write_channels(out: Tensor, y: Tensor) -> None:
    """Copy y to `out`, both (batch, channels, length), not empty; positions of y are side by side."""
    if not channels_adjacent(out):
        out.copy_(y)
        return
    batch, channels, length = y.shape
    groups = _groups(channels)
    rows = _exchange(y.contiguous().view(batch * groups, -1, length)).view(batch, groups, length, -1)
    out.unflatten(1, (groups, -1)).transpose(2, 3).copy_(rows)


def transposed(x: Tensor) -> Tensor:
    """Return x, a matrix, transposed and laid out anew; differentiable.

    A product of matrices that leaves its result transposed would be faster still. But for a few rows, MKL lets its
    last bit depend on where in memory the weights begin: a model that is saved and loaded would not be the same.

    Args:
        x: (points, channels).

    Returns:
        (channels, points), contiguous.
    """
    if x.device.type != "cpu" or x.numel() == 0 or dispatch(x)[0] != "eager":
        return x.transpose(0, 1).contiguous()
    return _Transposed.apply(x) if torch.is_grad_enabled() else _transpose(x)


def _transpose(x: Tensor) -> Tensor:
    return positions_adjacent(x.transpose(0, 1).unsqueeze(0), x.dtype).squeeze(0).contiguous()


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _transpose(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.transpose(0, 1)  # products of matrices take it as it lies


def _groups(channels: int) -> int:
    return channels // _GROUP if channels % _GROUP == 0 else 1


def _exchange(x: Tensor) -> Tensor:
    """Return contiguous (a, c, b) for contiguous (a, b, c)."""
    a, b, c = x.shape
    # A pixel of b c channels in b groups: what its shuffle exchanges are the sides of a b x c matrix.
    pixels = x.as_strided((a, b * c, 1, 1), (b * c, 1, b * c, b * c))
    return torch.channel_shuffle(pixels, b).as_strided((a, c, b), (b * c, b, 1))
