"""Toeplitz products and their gradients on tensor cores, from tiles that are made of the taps where they are used.

Time is cut into blocks of S positions. Of one channel's matrix, all S x S tiles of the same block lag are equal, so
one tile multiplies all blocks of all batches that have their input at that lag: with columns q = (batch, block r) and
chunks of inputs,

    Y[q, i] = sum_d sum_j X[q, d + j] M_d[j, i],    M_d[j, i] = k[i - j - d],    X[(b, r), d + j] = x[b, r S + d + j],

a product of matrices in each step d. A program owns some columns of a channel and walks over d. A causal program ends
with the blocks of its outputs, and only there meets tiles that are partly zero. The gradient in the taps is, for every
block lag, the product of the same columns of g and x, summed along its diagonals: a program walks over lags downwards
and keeps what a tile has below its first lag for the next.

n^2 multiplications a channel and row, half of that when causal, at the speed of tensor cores: see `crossovers.py` for
the lengths where this is fast. The matrix is never in memory. Each output is written by one program, without atomics:
results repeat bit for bit. float16 and bfloat16 are multiplied as they are, with the taps rounded to the dtype of x,
and summed in float32. For float32 see `precision.py`.
"""

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...common.precision import dot_precision
from .tile_parts import diagonal_sums, lay_out_taps, toeplitz_tile
from .tile_sizes import GradientTiles, ProductTiles, gradient_tiles, product_tiles

__all__ = ["toeplitz_tiles", "toeplitz_tiles_kernel_gradient"]


def toeplitz_tiles(
    x: Tensor, kernel: Tensor, causal: bool, transpose: bool = False, tiles: ProductTiles | None = None
) -> Tensor:
    """Compute y[b, c, i] = sum_j k[c, i - j] x[b, c, j], or k[c, j - i] for the transposed matrix.

    Args:
        x: (batch, channels, length) in bfloat16, float16 or float32. An x whose positions are not contiguous is copied
            first: tiles read runs of positions again and again.
        kernel: k, (channels, length), lags from 0, when `causal`; else (channels, 2 length - 1), lags from -(length -
            1); float32.
        causal: see `kernel`.
        transpose: whether to multiply by the transposed matrices.
        tiles: sizes of tiles; by default what `product_tiles` finds cheapest.

    Returns:
        (batch, channels, length) in the dtype of `x`, contiguous.
    """
    batch, channels, length = x.shape
    y = torch.empty((batch, channels, length), dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x = _contiguous_in_time(x)
    tiles = tiles or product_tiles(batch, channels, length, causal, x.dtype.itemsize)
    extent = triton.cdiv(length, tiles.size) * tiles.size
    # Lags of the table: what whole tiles reach.
    below = tiles.size if causal and not transpose else extent
    above = tiles.size if causal and transpose else extent
    groups = triton.cdiv(batch, tiles.batches), triton.cdiv(extent // tiles.size, tiles.rows)
    unit = _unit(length, x)
    with torch.cuda.device_of(x):
        table, unscale = lay_out_taps(kernel, x.dtype, causal, transpose, below, above)
        _product[(channels * groups[0] * groups[1],)](
            x,
            table,
            unscale,
            y,
            x.stride(0) // unit,
            x.stride(1) // unit,
            length // unit,
            batch,
            channels,
            *groups,
            below,
            below + above,
            BATCHES=tiles.batches,
            ROWS=tiles.rows,
            SIZE=tiles.size,
            CHUNK=tiles.chunk,
            PAST=not (causal and transpose),
            FUTURE=not (causal and not transpose),
            SCALED=x.dtype == torch.float16,
            UNIT=unit,
            PRECISION=dot_precision(),
            num_warps=tiles.warps,
            num_stages=1,
        )
    return y


def toeplitz_tiles_kernel_gradient(g: Tensor, x: Tensor, causal: bool, tiles: GradientTiles | None = None) -> Tensor:
    """Compute dk[c, t] = sum_b sum_i g[b, c, i] x[b, c, i - t] for lags t from 0, or from -(length - 1).

    Args:
        g: (batch, channels, length) in bfloat16, float16 or float32, copied where positions are not contiguous.
        x: likewise, in the dtype of `g`.
        causal: whether only lags from 0 on are wanted.
        tiles: sizes of tiles; by default what `gradient_tiles` finds cheapest.

    Returns:
        (channels, length) when `causal`, else (channels, 2 length - 1), in float32.
    """
    batch, channels, length = x.shape
    taps = length if causal else 2 * length - 1
    gradient = torch.empty((channels, taps), dtype=torch.float32, device=x.device)
    if gradient.numel() == 0:
        return gradient
    if batch == 0:
        return gradient.zero_()
    g, x = _contiguous_in_time(g), _contiguous_in_time(x)
    tiles = tiles or gradient_tiles(batch, channels, length, causal, x.dtype.itemsize)
    blocks = triton.cdiv(length, tiles.size)
    unit = _unit(length, g, x)
    with torch.cuda.device_of(x):
        _kernel_gradient[(channels * tiles.parts,)](
            g,
            x,
            gradient,
            g.stride(0) // unit,
            g.stride(1) // unit,
            x.stride(0) // unit,
            x.stride(1) // unit,
            length // unit,
            batch,
            tiles.parts,
            0 if causal else -blocks,
            triton.cdiv(blocks if causal else 2 * blocks, tiles.parts),
            taps,
            BATCHES=tiles.batches,
            ROWS=tiles.rows,
            SIZE=tiles.size,
            UNIT=unit,
            PRECISION=dot_precision(),
            num_warps=tiles.warps,
            num_stages=1,
        )
    return gradient


def _contiguous_in_time(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _unit(length: int, *tensors: Tensor) -> int:
    """Return 8, 4, 2 or 1, which divides all offsets of rows: the compiler can load as many numbers at once."""
    return gcd(8, length, *(stride for x in tensors for stride in x.stride()[:2]))


# `UNIT` says all that there is to know of these: for other values nothing need be compiled anew.
@triton.jit(
    do_not_specialize=[
        "x_batch",
        "x_channel",
        "length",
        "batch",
        "channels",
        "batch_groups",
        "row_groups",
    ]
)
def _product(
    x,
    table,
    unscale,
    y,
    x_batch,
    x_channel,
    length,
    batch,
    channels,
    batch_groups,
    row_groups,
    below,
    width,
    BATCHES: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    PAST: tl.constexpr,
    FUTURE: tl.constexpr,
    SCALED: tl.constexpr,
    UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    length = length * UNIT
    program = tl.program_id(0)
    # Programs of a channel stand together, so that they share its rows in cache. Longest first, where they differ.
    group = program % row_groups
    if not FUTURE:
        group = row_groups - 1 - group
    batch_group = (program // row_groups) % batch_groups
    channel = (program // row_groups // batch_groups).to(tl.int64)

    column = tl.arange(0, BATCHES * ROWS)
    b = batch_group * BATCHES + column // ROWS
    start = (group * ROWS + column % ROWS) * SIZE  # of the column's block
    real = (b < batch)[:, None]
    row = x + channel * x_channel * UNIT + b.to(tl.int64) * x_batch * UNIT + start
    taps = table + channel * width + below
    j = tl.arange(0, CHUNK)
    total = tl.zeros((BATCHES * ROWS, SIZE), tl.float32)
    # Chunks of inputs from `first` to `last`, relative to the block of the output.
    first = 0
    if PAST:
        first = -(tl.minimum((group + 1) * ROWS, tl.cdiv(length, SIZE)) - 1) * SIZE
    last = SIZE
    if FUTURE:
        last = length - group * ROWS * SIZE
    for d in range(first, last, CHUNK):
        position = start[:, None] + (d + j)[None, :]
        chunk = tl.load(row[:, None] + (d + j)[None, :], mask=real & (position >= 0) & (position < length), other=0.0)
        total = tl.dot(chunk, toeplitz_tile(taps - d, CHUNK, SIZE), total, input_precision=PRECISION)

    if SCALED:
        total *= tl.load(unscale + channel)
    i = tl.arange(0, SIZE)
    position = start[:, None] + i[None, :]
    inside = real & (position < length)
    y_row = y + (b.to(tl.int64) * channels + channel) * length + start
    tl.store(y_row[:, None] + i[None, :], total.to(y.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=[
        "g_batch",
        "g_channel",
        "x_batch",
        "x_channel",
        "length",
        "batch",
        "parts",
        "lowest",
        "part_lags",
        "taps",
    ]
)
def _kernel_gradient(
    g,
    x,
    gradient,
    g_batch,
    g_channel,
    x_batch,
    x_channel,
    length,
    batch,
    parts,
    lowest,
    part_lags,
    taps,
    BATCHES: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    length = length * UNIT
    blocks = tl.cdiv(length, SIZE)
    part = tl.program_id(0) % parts
    channel = (tl.program_id(0) // parts).to(tl.int64)
    g_rows = g + channel * g_channel * UNIT
    x_rows = x + channel * x_channel * UNIT
    column = tl.arange(0, BATCHES * ROWS)
    i = tl.arange(0, SIZE)
    by_four = 4 * tl.arange(0, SIZE // 4)[:, None] + tl.arange(0, 4)[None, :]

    # Lags of block d are its own from 0 on and those below 0 of block d + 1, which is empty at the end.
    low = lowest + part * part_lags
    high = tl.minimum(low + part_lags, blocks)
    kept = tl.zeros((SIZE // 4, 4), tl.float32)
    for back in range(tl.where(high == blocks, 1, 0), high - low + 1):
        d = high - back
        first = tl.maximum(d, 0)
        last = tl.minimum(blocks, blocks + d)
        total = tl.zeros((SIZE, SIZE), tl.float32)
        for batch_start in range(0, batch, BATCHES):
            b = batch_start + column // ROWS
            real = (b < batch)[:, None]
            g_row = g_rows + b.to(tl.int64) * g_batch * UNIT
            x_row = x_rows + b.to(tl.int64) * x_batch * UNIT
            for block in range(first, last, ROWS):
                start = (block + column % ROWS) * SIZE
                at = start[:, None] + i[None, :]
                from_ = (start - d * SIZE)[:, None] + i[None, :]
                g_tile = tl.load(g_row[:, None] + at, mask=real & (at < length), other=0.0)
                # The block after the last one in reach of x is another's, or nobody's.
                x_tile = tl.load(x_row[:, None] + from_, mask=real & (from_ < length), other=0.0)
                total = tl.dot(tl.trans(g_tile), x_tile, total, input_precision=PRECISION)
        own, other = diagonal_sums(total, SIZE)
        place = d * SIZE + by_four + (taps - length)
        inside = (place >= 0) & (place < taps)
        if back > 0:
            tl.store(gradient + channel * taps + place, own + kept, mask=inside)
        kept = other
