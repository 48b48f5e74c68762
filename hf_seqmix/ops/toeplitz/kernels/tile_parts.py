"""Toeplitz tiles from taps, and sums along the diagonals of tiles, inside a Triton program.

A Toeplitz block of 2h x 2h is made of three of h x h, and so on down to single taps:

    T_2h(m) = [[T_h(m), T_h(m + h)], [T_h(m - h), T_h(m)]],    T_1(m) = k[m],    m the lag of the upper left corner.

Sums along diagonals, the adjoint, go the other way. A thread keeps blocks of 4 x 4, which have 7 different taps: it
loads two aligned runs of 4 taps where it would load 16, with neither masks nor casts, since `lay_out_taps` has put
zeros around the taps and rounded them. The larger part of the cost of building a tile is then to store it where the
tensor cores read it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["diagonal_sums", "lay_out_taps", "toeplitz_tile"]

BLOCK = 1024
"""Taps that a program lays out at a time."""


def lay_out_taps(
    kernel: Tensor, dtype: torch.dtype, causal: bool, reverse: bool, below: int, above: int
) -> tuple[Tensor, Tensor]:
    """Return the taps by lag in the dtype of the product, with zeros where there is no tap.

    table[c, below + l] = s_c k[c, l], or s_c k[c, -l] in reverse, for -below <= l < above. For float16, s_c is the
    power of two that brings the channel's largest tap to between 2^14 and 2^15, of which the smallest taps lose least;
    otherwise 1.

    Args:
        kernel: (channels, taps), lags from 0 when `causal`, else from -(taps - 1) / 2, of any strides.
        dtype: of the table.
        causal: see `kernel`.
        reverse: whether the table is for the transposed matrix.
        below: number of negative lags.
        above: number of lags that are not negative.

    Returns:
        (channels, below + above) in `dtype`, and 1 / s, (channels,) in float32, left unwritten where s is 1.
    """
    channels, taps = kernel.shape
    width = below + above
    table = torch.empty((channels, width), dtype=dtype, device=kernel.device)
    unscale = torch.empty((channels,), dtype=torch.float32, device=kernel.device)
    zero = 0 if causal else taps // 2
    _lay_out[(channels,)](
        kernel,
        table,
        unscale,
        *kernel.stride(),
        taps,
        zero,
        below,
        width,
        REVERSE=reverse,
        SCALED=dtype == torch.float16,
        BLOCK=min(BLOCK, triton.next_power_of_2(width)),
        num_warps=4,
    )
    return table, unscale


@triton.jit
def _lay_out(
    kernel,
    table,
    unscale,
    stride_channel,
    stride_tap,
    taps,
    zero,
    below,
    width,
    REVERSE: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    channel = tl.program_id(0).to(tl.int64)
    row = kernel + channel * stride_channel
    block = tl.arange(0, BLOCK)
    scale = 1.0
    if SCALED:
        largest = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, taps, BLOCK):
            tap = (start + block).to(tl.int64)
            largest = tl.maximum(largest, tl.abs(tl.load(row + tap * stride_tap, mask=tap < taps, other=0.0)))
        exponent = (tl.max(largest, 0).to(tl.int32, bitcast=True) >> 23) - 127
        shift = tl.minimum(14 - exponent, 126)  # 2^126 has an inverse
        scale = ((127 + shift) << 23).to(tl.float32, bitcast=True)
        tl.store(unscale + channel, ((127 - shift) << 23).to(tl.float32, bitcast=True))
    for start in range(0, width, BLOCK):
        place = start + block
        lag = place - below
        tap = zero - lag if REVERSE else zero + lag
        inside = (tap >= 0) & (tap < taps)
        value = tl.load(row + tap.to(tl.int64) * stride_tap, mask=inside, other=0.0) * scale
        tl.store(table + channel * width + place, value.to(table.dtype.element_ty), mask=place < width)


@triton.jit
def toeplitz_tile(taps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return M[j, i] = taps[i - j], (ROWS, COLUMNS), from a pointer to lag 0 of a laid out row, aligned to 4 taps.

    Reads lags -ROWS to COLUMNS - 1. Both sizes are powers of two, at least 4.
    """
    q = tl.arange(0, ROWS // 4)[:, None, None]
    p = tl.arange(0, COLUMNS // 4)[None, :, None]
    # (q, p, 4): lags of the block at 4 q, 4 p, from that of its corner on
    run = taps + (4 * (p - q) + tl.arange(0, 4)[None, None, :])
    _, a3, a2, a1 = _quarters(tl.load(run - 4))
    b0, b1, b2, b3 = _quarters(tl.load(run))
    # (q, p, i0, j0, i1, j1), with the lower bits of i and j
    tile = _blocks(_blocks(a3, a2, a1), _blocks(a1, b0, b1), _blocks(b1, b2, b3))
    return tile.permute(0, 5, 3, 1, 4, 2).reshape((ROWS, COLUMNS))


@triton.jit
def _quarters(run):
    even, odd = tl.split(run.reshape((run.shape[0], run.shape[1], 2, 2)))
    r0, r2 = tl.split(even)
    r1, r3 = tl.split(odd)
    return r0, r1, r2, r3


@triton.jit
def _blocks(before, middle, after):
    """Return [[middle, after], [before, middle]] with two dimensions more at the end: column, row."""
    return tl.join(tl.join(middle, after), tl.join(before, middle))


@triton.jit
def diagonal_sums(tile, SIZE: tl.constexpr):
    """Return the sums of a tile of SIZE x SIZE along its diagonals, by lag = row - column, twice (SIZE / 4, 4).

    The first has lags 0 to SIZE - 1, 4 a row; the second lags -SIZE to -1. SIZE is a power of two, at least 8.
    """
    BLOCKS: tl.constexpr = SIZE // 4
    # (q, p, column 1, row 1, column 0, row 0), with the lower bits of rows and columns
    parts = tile.reshape((BLOCKS, 2, 2, BLOCKS, 2, 2)).permute(0, 3, 4, 1, 5, 2)
    before, middle, after = _three(parts)  # lags -1, 0, 1 of blocks of 2 x 2
    m3, m1a, p1a = _three(before)
    m2, z0, p2 = _three(middle)
    m1b, p1b, p3 = _three(after)
    # Of a block's lags, e >= 0 belong to 4 (q - p) + e, those below to 4 (q - p - 1) + 4 + e.
    late = tl.join(tl.join(z0, p2), tl.join(p1a + p1b, p3)).reshape((BLOCKS, BLOCKS, 4))
    early = tl.join(tl.join(tl.zeros_like(z0), m2), tl.join(m3, m1a + m1b)).reshape((BLOCKS, BLOCKS, 4))
    # Rotating row q by q brings a diagonal, and the one that ends where it begins, into one column.
    q = tl.arange(0, BLOCKS)[:, None, None]
    p = tl.arange(0, BLOCKS)[None, :, None]
    index = q - p + tl.zeros((BLOCKS, BLOCKS, 4), tl.int32)
    late = tl.gather(late, index & (BLOCKS - 1), 1)
    early = tl.gather(early, (index - 1) & (BLOCKS - 1), 1)
    positive = tl.where(q >= p, late, 0.0) + tl.where(q > p, early, 0.0)
    negative = tl.where(q >= p, 0.0, late) + tl.where(q > p, 0.0, early)
    return tl.sum(positive, 0), tl.sum(negative, 0)


@triton.jit
def _three(parts):
    """Sum (..., column, row) along its three diagonals: lags -1, 0 and 1."""
    row0, row1 = tl.split(parts)
    zero0, before = tl.split(row0)
    after, zero1 = tl.split(row1)
    return before, zero0 + zero1, after
