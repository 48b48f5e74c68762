"""Sums over the positions before, channel by channel, in Triton, and sums of states for `linear_attention.py`.

    y_t = o_t p_t * (S + sum_(s <= t) i_s x_s * z_s),        or over s >= t, in reverse,

with * elementwise: a causal sum with one number for a state. Both gradients are of this form. Tiles of positions are
summed first, the sums of tiles are summed up, and a third launch sums within tiles. Each tensor is read twice at most
and in its own dtype. No channel has to be walked from end to end by one thread, as in `torch.cumsum` along any
dimension but the last.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["running_product", "running_totals"]

POSITIONS = 64
CHANNELS = 64


def running_product(
    p: Tensor | None,
    x: Tensor,
    z: Tensor | None = None,
    start: Tensor | None = None,
    reverse: bool = False,
    *,
    outer: Tensor | None = None,
    inner: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Compute y_t = o_t p_t * (S + sum i_s x_s * z_s) over s <= t, or, in `reverse`, over s >= t; sums in float32.

    Args:
        p: (batch, length, channels) of any strides, as x and z; None for ones.
        x: (batch, length, channels).
        z: (batch, length, channels); None for ones.
        start: S, (batch, channels); None for zero.
        reverse: the direction.
        outer: o, (batch, length) in float32, or with a length of 1; None for ones.
        inner: i, likewise.
        dtype: of the result.

    Returns:
        (batch, length, channels).
    """
    batch, length, channels = x.shape
    y = torch.empty((batch, length, channels), dtype=dtype, device=x.device)
    if y.numel() == 0:
        return y
    tiles, blocks = triton.cdiv(length, POSITIONS), triton.cdiv(channels, CHANNELS)
    factors = [None if f is None else f.to(torch.float32).expand(batch, length).contiguous() for f in (outer, inner)]
    outer, inner = factors
    if start is not None:
        start = start.to(torch.float32).reshape(batch, channels).contiguous()
    # Where a kernel reads nothing, x stands.
    shared = {
        "HAS_Z": z is not None,
        "HAS_INNER": inner is not None,
        "REVERSE": reverse,
        "ROWS": POSITIONS,
        "COLUMNS": CHANNELS,
    }
    pair = (x, x if z is None else z)
    strides = [step for tensor in (*pair, x if p is None else p) for step in tensor.stride()]
    with torch.cuda.device_of(x):
        sums = x
        if tiles > 1:
            sums = torch.empty((batch, tiles - 1, channels), dtype=torch.float32, device=x.device)
            grid = (batch * (tiles - 1), blocks)
            _tile_sums[grid](
                *pair, x if inner is None else inner, sums, length, channels, tiles, *strides[:6], **shared
            )
            sums = running_totals(sums, start)
        _tile_outputs[(batch * tiles, blocks)](
            *pair,
            x if p is None else p,
            y,
            x if start is None else start,
            sums,
            x if outer is None else outer,
            x if inner is None else inner,
            length,
            channels,
            tiles,
            *strides,
            HAS_P=p is not None,
            HAS_START=start is not None,
            HAS_OUTER=outer is not None,
            **shared,
        )
    return y


def running_totals(x: Tensor, start: Tensor | None) -> Tensor:
    """Replace sums (rows, parts, numbers) by their sums over the parts up to each and `start`, (rows, numbers)."""
    rows, parts, numbers = x.shape
    columns = min(128, max(16, triton.next_power_of_2(numbers)))
    grid = (rows, triton.cdiv(numbers, columns))
    _running_totals[grid](
        x, x if start is None else start, parts, numbers, HAS_START=start is not None, ROWS=16, COLUMNS=columns
    )
    return x


@triton.jit(do_not_specialize=["parts"])
def _running_totals(x, start, parts, numbers, HAS_START: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    total = tl.zeros((COLUMNS,), tl.float32)
    if HAS_START:
        total += tl.load(start + head * numbers + column, mask=column < numbers, other=0.0)
    for first in range(0, parts, ROWS):
        part = first + row
        at = x + (head * parts + part)[:, None] * numbers + column[None, :]
        inside = (part < parts)[:, None] & (column < numbers)[None, :]
        tile = tl.load(at, mask=inside, other=0.0)
        tl.store(at, tl.cumsum(tile, 0) + total[None, :], mask=inside)
        total += tl.sum(tile, 0)


@triton.jit
def _tile(
    x, z, inner, batch, start, length, channels, x_batch, x_step, x_channel, z_batch, z_step, z_channel,
    HAS_Z: tl.constexpr, HAS_INNER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Load i x * z of a tile of positions and channels, in float32; zeros beyond the ends."""
    position = start + tl.arange(0, ROWS)
    channel = (tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (position < length)[:, None] & (channel < channels)
    step = position.to(tl.int64)[:, None]
    tile = tl.load(x + batch * x_batch + step * x_step + channel * x_channel, mask=inside, other=0.0).to(tl.float32)
    if HAS_Z:
        tile *= tl.load(z + batch * z_batch + step * z_step + channel * z_channel, mask=inside, other=0.0).to(
            tl.float32
        )
    if HAS_INNER:
        tile *= tl.load(inner + batch * length + position, mask=position < length, other=0.0)[:, None]
    return tile


@triton.jit(do_not_specialize=["length", "tiles"])
def _tile_sums(
    x, z, inner, sums, length, channels, tiles,
    x_batch, x_step, x_channel, z_batch, z_step, z_channel,
    HAS_Z: tl.constexpr, HAS_INNER: tl.constexpr, REVERSE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum a tile of positions, for every tile but the last in the direction of the sum."""
    program = tl.program_id(0).to(tl.int64)
    rank, batch = program % (tiles - 1), program // (tiles - 1)
    start = (tiles - 1 - rank if REVERSE else rank) * ROWS
    tile = _tile(
        x, z, inner, batch, start, length, channels, x_batch, x_step, x_channel, z_batch, z_step, z_channel,
        HAS_Z, HAS_INNER, ROWS, COLUMNS,
    )  # fmt: skip
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums + program * channels + channel, tl.sum(tile, 0), mask=channel < channels)


@triton.jit(do_not_specialize=["length", "tiles"])
def _tile_outputs(
    x, z, p, y, initial, sums, outer, inner, length, channels, tiles,
    x_batch, x_step, x_channel, z_batch, z_step, z_channel, p_batch, p_step, p_channel,
    HAS_P: tl.constexpr, HAS_START: tl.constexpr, HAS_OUTER: tl.constexpr,
    HAS_Z: tl.constexpr, HAS_INNER: tl.constexpr, REVERSE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum within a tile, after what comes before it."""
    program = tl.program_id(0).to(tl.int64)
    rank, batch = program % tiles, program // tiles
    start = (tiles - 1 - rank if REVERSE else rank) * ROWS
    tile = _tile(
        x, z, inner, batch, start, length, channels, x_batch, x_step, x_channel, z_batch, z_step, z_channel,
        HAS_Z, HAS_INNER, ROWS, COLUMNS,
    )  # fmt: skip
    channel = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    in_row = channel < channels
    summed, given = channel < tl.where(rank > 0, channels, 0), channel < tl.where(rank > 0, 0, channels)
    before = sums + (batch * (tiles - 1) + rank - 1) * channels + channel
    total = tl.load(before, mask=summed, other=0.0).to(tl.float32)
    if HAS_START:
        total += tl.load(initial + batch * channels + channel, mask=given, other=0.0)
    out = tl.cumsum(tile, 0, reverse=REVERSE) + total[None, :]
    position = start + tl.arange(0, ROWS)
    inside = (position < length)[:, None] & in_row[None, :]
    step = position.to(tl.int64)[:, None]
    if HAS_OUTER:
        out *= tl.load(outer + batch * length + position, mask=position < length, other=0.0)[:, None]
    if HAS_P:
        at = p + batch * p_batch + step * p_step + channel[None, :] * p_channel
        out *= tl.load(at, mask=inside, other=0.0).to(tl.float32)
    at = y + (batch * length + step) * channels + channel[None, :]
    tl.store(at, out.to(y.dtype.element_ty), mask=inside)
