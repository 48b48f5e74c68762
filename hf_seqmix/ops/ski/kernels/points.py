"""Products with small Toeplitz matrices, one a channel, where channels are last in memory.

    out[b, i, c] = sum_s a[b, +-i +- s + shift, c] z[b, s, c]

is the product of z with a Toeplitz matrix, with its transpose, or the gradient of its entries, as the two signs say.
The work grows with the square of the size, but nothing is transposed: SKI's inducing points, some dozens, lie in
memory as tokens do.

A thread owns a few channels and eight neighboring outputs. Eight numbers of z and the fifteen of a that they meet
serve 64 multiplications, so that arithmetic and not the first-level cache sets the pace.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["PROGRAMS", "channel_block", "channel_toeplitz", "channel_toeplitz_kernel_gradient", "share"]

PROGRAMS = 1056
"""Programs that fill a device: eight for each of the 132 multiprocessors of an H200 (from a model, not measured)."""

_OUTPUTS = 8
_WARPS = 2


def channel_block(channels: int) -> int:
    """Return the channels of a tile: two for each of 32 lanes, which read lines of 128 bytes in half precision."""
    return min(64, max(16, triton.next_power_of_2(channels)))


def share(total: int, others: int, most: int, programs: int = PROGRAMS) -> int:
    """Return how many of `total` pieces a program takes, `most` if so many programs, times `others`, fill a device."""
    return max(1, min(most, total * others // programs))


def channel_toeplitz(z: Tensor, kernel: Tensor, transpose: bool = False) -> Tensor:
    """Compute out[b, i, c] = sum_s k[i - s + n - 1, c] z[b, s, c], or with k[s - i + n - 1, c].

    Args:
        z: (batch, n, channels) in float32, contiguous.
        kernel: k, (2 n - 1, channels) in float32, contiguous: lags -(n - 1) to n - 1.
        transpose: the second form.

    Returns:
        (batch, n, channels) in float32.
    """
    out = torch.empty_like(z)
    _launch(kernel, z, out, z.shape[1] - 1, transpose, not transpose, batches=1)
    return out


def channel_toeplitz_kernel_gradient(g: Tensor, z: Tensor, programs: int = PROGRAMS) -> Tensor:
    """Compute the gradient of `channel_toeplitz` in k: out[l, c] = sum_(b, s) g[b, l + s - (n - 1), c] z[b, s, c].

    Args:
        g: gradient of the output, (batch, n, channels) in float32, contiguous.
        z: (batch, n, channels) in float32, contiguous.
        programs: that fill a device.

    Returns:
        (2 n - 1, channels) in float32.
    """
    batch, points, channels = z.shape
    tiles = triton.cdiv(2 * points - 1, _OUTPUTS * _rows(channels)) * triton.cdiv(channels, channel_block(channels))
    batches = share(batch, tiles, batch, programs)
    partial = z.new_empty((triton.cdiv(batch, batches), 2 * points - 1, channels))
    _launch(g, z, partial, 1 - points, False, False, batches=batches)
    return partial.sum(0) if len(partial) > 1 else partial[0]


def _rows(channels: int) -> int:
    """Return rows of a tile, with two numbers a thread."""
    return 64 * _WARPS // channel_block(channels)


def _launch(a: Tensor, z: Tensor, out: Tensor, shift: int, minus_i: bool, minus_s: bool, batches: int) -> None:
    batch, points, channels = z.shape
    rows, columns = _rows(channels), channel_block(channels)
    tiles, blocks = triton.cdiv(out.shape[1], _OUTPUTS * rows), triton.cdiv(channels, columns)
    with torch.cuda.device_of(z):
        _toeplitz[(tiles * blocks * len(out),)](
            a,
            z,
            out,
            a.shape[-2],
            points,
            out.shape[1],
            shift,
            batch,
            batches,
            tiles,
            CHANNELS=channels,
            A_OF_ALL=a.ndim == 2,
            MINUS_I=minus_i,
            MINUS_S=minus_s,
            OUTPUTS=_OUTPUTS,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=_WARPS,
            enable_fp_fusion=True,
        )


@triton.jit(do_not_specialize=["a_rows", "z_rows", "out_rows", "shift", "batch", "batches", "tiles"])
@no_type_check  # tuples that grow
def _toeplitz(
    a, z, out, a_rows, z_rows, out_rows, shift, batch, batches, tiles,
    CHANNELS: tl.constexpr, A_OF_ALL: tl.constexpr, MINUS_I: tl.constexpr, MINUS_S: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (CHANNELS + COLUMNS - 1) // COLUMNS
    I: tl.constexpr = -1 if MINUS_I else 1
    S: tl.constexpr = -1 if MINUS_S else 1
    LOWEST: tl.constexpr = (1 - OUTPUTS) * (MINUS_I + MINUS_S)  # of +-r +-s for r and s from 0 to OUTPUTS - 1
    program = tl.program_id(0)
    channel = (program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    in_row = channel < CHANNELS
    part = (program // BLOCKS // tiles).to(tl.int64)
    first = (program // BLOCKS % tiles * ROWS + tl.arange(0, ROWS)) * OUTPUTS  # output of each row
    zero = tl.zeros((ROWS, 1), tl.int32)
    sums = ()
    for _ in tl.static_range(OUTPUTS):
        sums = sums + (tl.zeros((ROWS, COLUMNS), tl.float32),)
    for b in range(part * batches, tl.minimum((part + 1) * batches, batch)):
        a_at = a + (0 if A_OF_ALL else b * a_rows * CHANNELS) + channel
        z_at = z + b * z_rows * CHANNELS + channel
        for start in range(0, z_rows, OUTPUTS):
            lowest = first * I + (start * S + shift + LOWEST)
            window = ()
            for d in tl.static_range(2 * OUTPUTS - 1):
                row = lowest + d
                inside = ((row >= 0) & (row < a_rows))[:, None] & in_row
                window = window + (tl.load(a_at + row[:, None] * CHANNELS, mask=inside, other=0.0),)
            numbers = ()
            for s in tl.static_range(OUTPUTS):
                row = zero + start + s
                numbers = numbers + (tl.load(z_at + row * CHANNELS, mask=(row < z_rows) & in_row, other=0.0),)
            updated = ()
            for r in tl.static_range(OUTPUTS):
                total = sums[r]
                for s in tl.static_range(OUTPUTS):
                    total += window[I * r + S * s - LOWEST] * numbers[s]
                updated = updated + (total,)
            sums = updated
    for r in tl.static_range(OUTPUTS):
        row = (first + r)[:, None]
        tl.store(out + (part * out_rows + row) * CHANNELS + channel, sums[r], mask=(row < out_rows) & in_row)
