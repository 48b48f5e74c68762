"""The short convolution and the gradient of its taps in Triton, with channels last in memory.

    y[b, c, i] = sum_q w[c, q] x[b, c, i + q - back],      dw[c, q] = sum_(b, i) g[b, c, i] x[b, c, i + q - back].

A program owns a tile of positions and channels, and reads x once for each tap: the first time from memory, then from
cache. The gradient in x is the convolution with reversed taps. For that in the taps, a program walks over some tiles
of positions, and the sums of all programs are summed afterwards: without atomics, so that results repeat bit for bit.
Numbers are multiplied and summed in float32. On GPUs the depthwise convolution of torch is no streaming product.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["short_conv", "short_conv_weight_gradient"]

POSITIONS = 32
CHANNELS = 64
PROGRAMS = 1024
"""Of a gradient of the taps: several for each processor of a GPU."""


def short_conv(x: Tensor, weight: Tensor, back: int) -> Tensor:
    """Compute y[b, c, i] = sum_q w[c, q] x[b, c, i + q - back].

    Args:
        x: (batch, channels, length) in bfloat16, float16 or float32, of any strides; channels best contiguous.
        weight: (channels, m), few taps, which are unrolled; float32.
        back: how many positions before its own an output sees, 0 to m - 1.

    Returns:
        (batch, channels, length) in the dtype of `x`, channels contiguous.
    """
    batch, channels, length = x.shape
    y = torch.empty((batch, length, channels), dtype=x.dtype, device=x.device)
    if y.numel() > 0:
        tiles = triton.cdiv(length, POSITIONS)
        weight = weight.t().contiguous()  # (m, channels): neighboring channels are read together
        with torch.cuda.device_of(x):
            _convolve[(batch * tiles, triton.cdiv(channels, CHANNELS))](
                x,
                weight,
                y,
                length,
                channels,
                tiles,
                back,
                *x.stride(),
                TAPS=weight.shape[0],
                ROWS=POSITIONS,
                COLUMNS=CHANNELS,
            )
    return y.transpose(1, 2)


def short_conv_weight_gradient(g: Tensor, x: Tensor, taps: int, back: int) -> Tensor:
    """Compute dw[c, q] = sum over batch and i of g[b, c, i] x[b, c, i + q - back].

    Args:
        g: (batch, channels, length) in bfloat16, float16 or float32, of any strides; channels best contiguous.
        x: likewise.
        taps: m, few.
        back: see `short_conv`.

    Returns:
        (channels, m) in float32.
    """
    batch, channels, length = x.shape
    blocks = triton.cdiv(channels, CHANNELS)
    tiles = batch * triton.cdiv(length, POSITIONS)
    each = triton.cdiv(tiles, max(1, PROGRAMS // max(blocks, 1)))  # tiles of a program
    parts = triton.cdiv(tiles, max(each, 1))
    sums = torch.empty((parts, taps, channels), dtype=torch.float32, device=x.device)
    if sums.numel() > 0:
        with torch.cuda.device_of(x):
            _weight_gradient[(parts, blocks)](
                g,
                x,
                sums,
                length,
                channels,
                tiles,
                each,
                back,
                *g.stride(),
                *x.stride(),
                TAPS=taps,
                PLACES=triton.next_power_of_2(taps),
                ROWS=POSITIONS,
                COLUMNS=CHANNELS,
            )
    return sums.sum(dim=0).t()


@triton.jit
def _shifted(x, position, channel, length, channels, step, stride):
    """Load a tile of one row, zeros outside of the row, in float32."""
    inside = (position >= 0) & (position < length)
    at = x + position.to(tl.int64)[:, None] * step + channel.to(tl.int64)[None, :] * stride
    return tl.load(at, mask=inside[:, None] & (channel < channels)[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["length", "tiles", "back"])
def _convolve(
    x, weight, y, length, channels, tiles, back, x_batch, x_channel, x_step,
    TAPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Convolve a tile of positions and channels."""
    program = tl.program_id(0)
    batch = (program // tiles).to(tl.int64)
    position = (program % tiles) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tap in tl.static_range(TAPS):
        w = tl.load(weight + tap * channels + channel, mask=channel < channels, other=0.0)
        seen = _shifted(x + batch * x_batch, position + (tap - back), channel, length, channels, x_step, x_channel)
        total += w[None, :] * seen
    at = y + (batch * length + position)[:, None] * channels + channel[None, :]
    inside = (position < length)[:, None] & (channel < channels)[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["length", "tiles", "each", "back"])
def _weight_gradient(
    g, x, sums, length, channels, tiles, each, back, g_batch, g_channel, g_step, x_batch, x_channel, x_step,
    TAPS: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum over some tiles of positions of all rows, for some channels."""
    part = tl.program_id(0)
    of_row = tl.cdiv(length, ROWS)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = tl.arange(0, PLACES)
    total = tl.zeros((PLACES, COLUMNS), tl.float32)
    for tile in range(part * each, tl.minimum((part + 1) * each, tiles)):
        batch = (tile // of_row).to(tl.int64)
        position = (tile % of_row) * ROWS + tl.arange(0, ROWS)
        upstream = _shifted(g + batch * g_batch, position, channel, length, channels, g_step, g_channel)
        for tap in tl.static_range(TAPS):
            seen = _shifted(x + batch * x_batch, position + (tap - back), channel, length, channels, x_step, x_channel)
            total += tl.where(place[:, None] == tap, tl.sum(upstream * seen, 0)[None, :], 0.0)
    at = sums + (part.to(tl.int64) * TAPS + place)[:, None] * channels + channel[None, :]
    tl.store(at, total, mask=(place < TAPS)[:, None] & (channel < channels)[None, :])
