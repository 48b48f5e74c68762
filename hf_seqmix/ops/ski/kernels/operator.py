"""The operator of SKI, T x = conv(x) + W A W^T x, in Triton, forward and backward.

Three launches, all over channels that are last in memory:

1. `_collect`: W^T x. A program owns some inducing points of some channels of a sequence and reads the tokens of the
   cells around them; the block of W that they meet is made from their positions and multiplied on tensor cores.
2. `points.py`: A times that.
3. `_spread`: the convolution and W times that. A thread owns 16 neighboring tokens of two channels and keeps the
   tokens that their taps meet in registers. So a token is loaded and converted twice, not once a tap, and the
   convolution is little more than its multiplications.

The backward pass is the same on the upstream gradient, and its third launch makes the gradient of the taps on the way,
from the same registers. Of numbers as large as x, the forward pass reads x twice and writes y; the backward pass reads
g twice and x once and writes dx.

Every output is written by one program, and partial sums are added in a fixed order: results repeat bit for bit. The
gradients of taps and kernel depend on the number of programs within rounding, and so on batch, length and channels; y
and dx do not, where products of matrices treat all rows alike.

Weights, taps and sums are float32, whatever x is. On tensor cores W is split into two numbers of the precision of x,
so that its weights keep 16 bits at least.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...common.precision import dot_precision
from .points import PROGRAMS, channel_block, channel_toeplitz, channel_toeplitz_kernel_gradient, share

__all__ = ["MOST_POINTS", "MOST_TAPS", "collect", "ski_backward", "ski_forward", "spread", "spread_backward"]

MOST_POINTS = 128
"""With more points, the quadratic `channel_toeplitz` costs more than transforms (from a model, not measured)."""

MOST_TAPS = 65
"""More taps do not fit into registers."""

MOST_TAPS_OF_GRADIENT = 33
"""Taps whose gradients one launch computes: two channels of a thread hold two registers for each tap, and two more for
its gradient."""

_TOKENS = 16
_AHEAD = 3
_WARPS = 4


def ski_forward(x: Tensor, taps: Tensor, kernel: Tensor, grid: Any, programs: int = PROGRAMS) -> tuple[Tensor, Tensor]:
    """Compute conv(x) + W A W^T x.

    Args:
        x: (batch, channels, length) in float32, bfloat16 or float16, fastest when channels are contiguous in memory.
        taps: (channels, m) in float32, m odd and at most `MOST_TAPS`.
        kernel: (channels, 2 points - 1) in float32.
        grid: an `InducingGrid`.
        programs: that fill a device.

    Returns:
        y: (batch, channels, length) in the dtype of x, channels contiguous.
        collected: W^T x, (batch, channels, points) in float32, channels contiguous.
    """
    collected = collect(x, grid, programs)
    mixed = channel_toeplitz(_rows(collected), kernel.t().contiguous())
    return spread(x, taps, mixed.transpose(1, 2), grid, programs), collected


def ski_backward(
    g: Tensor,
    x: Tensor,
    taps: Tensor,
    kernel: Tensor,
    collected: Tensor,
    grid: Any,
    needs: tuple[bool, bool, bool],
    programs: int = PROGRAMS,
    most_taps: int = MOST_TAPS_OF_GRADIENT,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of `ski_forward`.

    Args:
        g: gradient of y, (batch, channels, length) in the dtype of x.
        x: as it was given, and so taps and kernel.
        taps: see there.
        kernel: see there.
        collected: as it was returned.
        grid: as it was given.
        needs: whether the gradients of x, of taps and of kernel are wanted.
        programs: that fill a device.
        most_taps: whose gradients are computed in one launch.

    Returns:
        dx like y; dtaps, (channels, m), and dkernel, (channels, 2 points - 1), in float32, channels contiguous; or
        None.
    """
    g = _channels_last(g)
    dcollected = dkernel = None
    if needs[0] or needs[2]:
        upstream = _rows(collect(g, grid, programs))
        if needs[0]:
            dcollected = channel_toeplitz(upstream, kernel.t().contiguous(), transpose=True).transpose(1, 2)
        if needs[2]:
            dkernel = channel_toeplitz_kernel_gradient(upstream, _rows(collected), programs).t()
    dx, dtaps = spread_backward(g, x if needs[1] else None, taps, dcollected, grid, programs, most_taps)
    return dx, dtaps, dkernel


def collect(x: Tensor, grid: Any, programs: int = PROGRAMS) -> Tensor:
    """Compute W^T x.

    Args:
        x: see `ski_forward`.
        grid: see there.
        programs: see there.

    Returns:
        (batch, channels, points) in float32, channels contiguous.
    """
    x = _channels_last(x)
    batch, channels, length = x.shape
    points, columns = grid.points(length), channel_block(channels)
    blocks = triton.cdiv(channels, columns)
    # Tokens of the cells beside its own points a program reads in vain: few points only where programs are few.
    owned = 16
    while owned > 2 and batch * blocks * triton.cdiv(points, owned) < programs // 2:
        owned //= 2
    groups = triton.cdiv(points, owned)
    collected = torch.empty((batch, points, channels), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _collect[(batch * groups * blocks,)](
            x,
            collected,
            length,
            points,
            *_grid_arguments(grid),
            groups,
            x.stride(0),
            X_STEP=_step(x),
            CHANNELS=channels,
            DEGREE=grid.degree,
            OWNED=owned,
            TOKENS=64,
            COLUMNS=columns,
            PRECISION=dot_precision(),
            num_warps=_WARPS,
            num_stages=3,
            enable_fp_fusion=True,
        )
    return collected.transpose(1, 2)


def spread(x: Tensor, taps: Tensor, values: Tensor, grid: Any, programs: int = PROGRAMS) -> Tensor:
    """Compute conv(x) + W v.

    Args:
        x: see `ski_forward`.
        taps: see there.
        values: v, (batch, channels, points) in float32.
        grid: see there.
        programs: see there.

    Returns:
        (batch, channels, length) in the dtype of x, channels contiguous.
    """
    x = _channels_last(x)
    y = _like(x)
    _launch_spread(x, taps.t().contiguous(), values, grid, programs, out=y)
    return y


def spread_backward(
    g: Tensor,
    x: Tensor | None,
    taps: Tensor,
    values: Tensor | None,
    grid: Any,
    programs: int = PROGRAMS,
    most_taps: int = MOST_TAPS_OF_GRADIENT,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of x and of taps.

    Args:
        g: gradient of the output of `ski_forward`.
        x: its input; None if the gradient of taps is not wanted.
        taps: see there.
        values: A^T W^T g, (batch, channels, points) in float32; None if the gradient of x is not wanted.
        grid: see there.
        programs: see `ski_backward`.
        most_taps: see there.

    Returns:
        dx, as y of `ski_forward`, and dtaps, (channels, m) in float32, channels contiguous; or None.
    """
    g = _channels_last(g)
    x = None if x is None else _channels_last(x)
    dx = None if values is None else _like(g)
    count, rows = taps.shape[1], taps.t().contiguous()
    if count <= most_taps:
        dtaps = _launch_spread(g, rows, values, grid, programs, out=dx, other=x, mirrored=True)
        return dx, None if dtaps is None else dtaps.t()
    if dx is not None:
        _launch_spread(g, rows, values, grid, programs, out=dx, mirrored=True)
    if x is None:
        return dx, None
    parts = []
    for start in range(0, count, most_taps):
        some = rows[start : start + most_taps]
        # Mirrored, the last tap meets the earliest token.
        before = count // 2 - (count - start - len(some))
        parts.append(_launch_spread(g, some, None, grid, programs, other=x, mirrored=True, before=before))
    return dx, torch.cat([part for part in parts if part is not None]).t()


def _launch_spread(
    x: Tensor,
    taps: Tensor,
    values: Tensor | None,
    grid: Any,
    programs: int,
    out: Tensor | None = None,
    other: Tensor | None = None,
    mirrored: bool = False,
    before: int | None = None,
) -> Tensor | None:
    """Write conv(x) + W v to `out`, and return sum_(b, i) other[b, c, i] x[b, c, i + q - before], (m, channels).

    Args:
        x: (batch, channels, length), channels contiguous, as all such tensors here.
        taps: (m, channels), contiguous.
        values: v.
        grid: where the points lie.
        programs: that fill a device.
        out: none if there is no use for it, and no `values`.
        other: none if there is no use for the sums.
        mirrored: count taps from the last one, here and in the sums.
        before: tokens before its own that an output meets; by default half of the others.
    """
    batch, channels, length = x.shape
    columns = channel_block(channels)
    blocks, rows = triton.cdiv(channels, columns), 64 * _WARPS // columns
    tiles = triton.cdiv(length, rows * _TOKENS)
    # Every program reads the taps first, and writes a sum for each at the end.
    tiles_each = share(batch * tiles, blocks, 4 if other is None else 16, programs)
    parts = triton.cdiv(batch * tiles, tiles_each)
    if values is not None:
        values = _rows(values)
    partial = None
    if other is not None:
        partial = torch.empty((parts, *taps.shape), dtype=torch.float32, device=x.device)
    # Where a kernel reads nothing, x stands.
    with torch.cuda.device_of(x):
        _spread[(parts * blocks,)](
            x,
            taps,
            x if values is None else values,
            x if out is None else out,
            x if other is None else other,
            x if partial is None else partial,
            length,
            grid.points(length),
            *_grid_arguments(grid),
            batch * tiles,
            tiles,
            tiles_each,
            x.stride(0),
            x.stride(0) if other is None else other.stride(0),
            X_STEP=_step(x),
            OTHER_STEP=_step(x if other is None else other),
            CHANNELS=channels,
            DEGREE=grid.degree,
            TAPS=len(taps),
            BEFORE=len(taps) // 2 if before is None else before,
            MIRRORED=mirrored,
            HAS_OUT=out is not None,
            HAS_SUMS=other is not None,
            WIDE=(length + rows * _TOKENS) * (grid.num_points - 1) >= 2**31,
            AHEAD=_AHEAD,
            TOKENS=_TOKENS,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=_WARPS,
            enable_fp_fusion=True,
        )
    if partial is None:
        return None
    return partial.sum(0) if parts > 1 else partial[0]


def _channels_last(x: Tensor) -> Tensor:
    """Return x with channels contiguous: reading single numbers of lines of memory would cost more than this copy."""
    return x if x.stride(1) == 1 else x.transpose(1, 2).contiguous().transpose(1, 2)


def _rows(values: Tensor) -> Tensor:
    """Return (batch, channels, points) as (batch, points, channels), contiguous."""
    return values.transpose(1, 2).contiguous()


def _like(x: Tensor) -> Tensor:
    batch, channels, length = x.shape
    return torch.empty((batch, length, channels), dtype=x.dtype, device=x.device).transpose(1, 2)


def _step(x: Tensor) -> int:
    """Return the distance of neighboring tokens; for a single token a constant, so that nothing is compiled anew."""
    return x.stride(2) if x.shape[2] > 1 else x.shape[1]


def _grid_arguments(grid: Any) -> tuple[int, int, float]:
    """Return cells, tokens and 1 / tokens, for the kernels: token i stands at i cells / tokens, in spacings."""
    return grid.num_points - 1, grid.max_length - 1, 1 / (grid.max_length - 1)


@triton.jit
def _cubic_weight(u, K: tl.constexpr):
    """Weight of the K-th of four points at 0, 1, 2 and 3 for a token at u."""
    v, w, x = u - 1, u - 2, u - 3
    if K == 0:
        weight = v * w * x * (-1 / 6)
    elif K == 1:
        weight = u * w * x * 0.5
    elif K == 2:
        weight = u * v * x * -0.5
    else:
        weight = u * v * w * (1 / 6)
    return weight


@triton.jit(do_not_specialize=["length", "points", "cells", "tokens", "groups"])
def _collect(
    x, collected, length, points, cells, tokens, inverse, groups, x_batch,
    X_STEP: tl.constexpr, CHANNELS: tl.constexpr, DEGREE: tl.constexpr, OWNED: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (CHANNELS + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    channel = (program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    in_row = channel < CHANNELS
    batch = (program // BLOCKS // groups).to(tl.int64)
    first = program // BLOCKS % groups * OWNED  # the first point of its own
    # Linear weights reach into the cells beside a point, cubic ones one further; of the first cell, even to the fourth
    # point.
    BEFORE: tl.constexpr = 1 if DEGREE == 1 else 2
    cell, last = tl.maximum(first - BEFORE, 0).to(tl.int64), (first + OWNED + BEFORE - 1).to(tl.int64)
    start = (cell * tokens + cells - 1) // cells
    stop = tl.minimum((last * tokens + cells - 1) // cells, length).to(tl.int32)
    place = (start * cells - first.to(tl.int64) * tokens).to(tl.int32)  # of `start`, from `first`, in 1 / tokens cells
    point = tl.arange(0, 16)[:, None]  # dots have 16 rows at least
    total = tl.zeros((16, COLUMNS), tl.float32)
    x_at = x + batch * x_batch + channel
    begin = start.to(tl.int32)
    # From a multiple of TOKENS, so that sums do not depend on how many points a program owns, and so on the batch.
    for at in range(begin // TOKENS * TOKENS, stop, TOKENS):
        token = at + tl.arange(0, TOKENS)
        inside = ((token >= begin) & (token < stop))[:, None] & in_row
        tile = tl.load(x_at + token.to(tl.int64)[:, None] * X_STEP, mask=inside, other=0.0)
        places = (place + (token - begin) * cells)[None, :]
        if DEGREE == 1:
            away = tl.abs(places - point * tokens)
            weights = tl.where(away < tokens, 1 - away.to(tl.float32) * inverse, 0.0)
        else:
            # A step of 4 cells keeps the division among positive numbers.
            nearest = tl.maximum((places + 4 * tokens) // tokens - 5, -first)
            u = (places - nearest * tokens).to(tl.float32) * inverse
            k = point - nearest
            weights = tl.where(k == 0, _cubic_weight(u, 0), 0.0)
            weights = tl.where(k == 1, _cubic_weight(u, 1), weights)
            weights = tl.where(k == 2, _cubic_weight(u, 2), weights)
            weights = tl.where(k == 3, _cubic_weight(u, 3), weights)
        if tile.dtype == tl.float32:
            total = tl.dot(weights, tile, total, input_precision=PRECISION)
        else:
            leading = weights.to(tile.dtype)
            total = tl.dot(leading, tile, total)
            total = tl.dot((weights - leading.to(tl.float32)).to(tile.dtype), tile, total)
    owned = (point < OWNED) & (first + point < points)
    tl.store(collected + (batch * points + first + point) * CHANNELS + channel, total, mask=owned & in_row)


@triton.jit(do_not_specialize=["length", "points", "cells", "tokens", "all_tiles", "tiles", "tiles_each"])
@no_type_check  # tuples that grow
def _spread(
    x, taps, values, out, other, sums,
    length, points, cells, tokens, inverse, all_tiles, tiles, tiles_each, x_batch, other_batch,
    X_STEP: tl.constexpr, OTHER_STEP: tl.constexpr, CHANNELS: tl.constexpr, DEGREE: tl.constexpr,
    TAPS: tl.constexpr, BEFORE: tl.constexpr, MIRRORED: tl.constexpr, HAS_OUT: tl.constexpr, HAS_SUMS: tl.constexpr,
    WIDE: tl.constexpr, AHEAD: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (CHANNELS + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    channel = (program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    in_row = channel < CHANNELS
    part = program // BLOCKS
    factors = ()
    totals = ()
    for q in tl.static_range(TAPS):
        if HAS_OUT:
            at = taps + (TAPS - 1 - q if MIRRORED else q) * CHANNELS + channel
            factors = factors + (tl.load(at, mask=in_row, other=0.0),)
        if HAS_SUMS:
            totals = totals + (tl.zeros((ROWS, COLUMNS), tl.float32),)
    for tile in range(part * tiles_each, tl.minimum((part + 1) * tiles_each, all_tiles)):
        batch = (tile // tiles).to(tl.int64)
        token = (tile % tiles * ROWS + tl.arange(0, ROWS)) * TOKENS  # the first of each row
        step = token.to(tl.int64)[:, None]
        x_at = x + batch * x_batch + (step - BEFORE) * X_STEP + channel
        other_at = other + batch * other_batch + step * OTHER_STEP + channel
        out_at = out + (batch * length + step) * CHANNELS + channel
        scaled = token.to(tl.int64) * cells if WIDE else token * cells
        cell = (scaled // tokens).to(tl.int32)
        rest = (scaled - cell * tokens).to(tl.int32)  # of the way to the next point, in 1 / tokens
        values_at = values + batch * points * CHANNELS + channel
        window = ()
        numbers = ()
        for r in tl.static_range(TOKENS):
            # Tokens are loaded some steps before they are met.
            for d in tl.static_range(0 if r == 0 else r + TAPS - 1 + AHEAD, min(r + TAPS + AHEAD, TOKENS + TAPS - 1)):
                met = (token + (d - BEFORE)).to(tl.uint32, bitcast=True)  # large if it is negative
                inside = (met < length.to(tl.uint32))[:, None] & in_row
                window = window + (tl.load(x_at + d * X_STEP, mask=inside, other=0.0).to(tl.float32),)
            if HAS_SUMS:
                for d in tl.static_range(0 if r == 0 else r + 1, min(r + 2, TOKENS)):
                    inside = (token + d < length)[:, None] & in_row
                    numbers = numbers + (tl.load(other_at + d * OTHER_STEP, mask=inside, other=0.0),)
                number = numbers[r].to(tl.float32)
                updated = ()
                for q in tl.static_range(TAPS):
                    updated = updated + (totals[q] + window[r + q] * number,)
                totals = updated
            inside = (token + r < length)[:, None] & in_row
            if HAS_OUT:
                offset = (rest.to(tl.float32) * inverse)[:, None]
                # Unsigned, so that widening it costs nothing.
                first = (cell if DEGREE == 1 else tl.maximum(cell - 1, 0)).to(tl.uint32, bitcast=True).to(tl.int64)
                first_at = values_at + first[:, None] * CHANNELS
                here = tl.load(first_at, mask=inside, other=0.0)
                if DEGREE == 1:
                    # The last point of all has no next one, and only a token that stands on it asks for one.
                    after = tl.load(first_at + CHANNELS, mask=inside & (cell + 1 < points)[:, None], other=0.0)
                else:
                    u = offset + tl.minimum(cell, 1).to(tl.float32)[:, None]
                    interpolated = _cubic_weight(u, 0) * here
                    for k in tl.static_range(1, 4):
                        met = inside & (first + k < points)[:, None]
                        interpolated += _cubic_weight(u, k) * tl.load(first_at + k * CHANNELS, mask=met, other=0.0)
                # While those are on their way: in two sums, as one would wait for itself, unless others are made
                # beside it.
                total = factors[0] * window[r]
                for q in tl.static_range(2, TAPS, 2):
                    total += factors[q] * window[r + q]
                odd = total if HAS_SUMS else tl.zeros((ROWS, COLUMNS), tl.float32)
                for q in tl.static_range(1, TAPS, 2):
                    odd += factors[q] * window[r + q]
                total = odd if HAS_SUMS else total + odd
                if DEGREE == 1:
                    interpolated = here + offset * (after - here)
                total += interpolated
                tl.store(out_at + r * CHANNELS, total.to(out.dtype.element_ty), mask=inside)
                rest += cells
                passed = rest >= tokens
                rest = tl.where(passed, rest - tokens, rest)
                cell += passed.to(tl.int32)
    if HAS_SUMS:
        for q in tl.static_range(TAPS):
            at = sums + (part.to(tl.int64) * TAPS + (TAPS - 1 - q if MIRRORED else q)) * CHANNELS + channel
            tl.store(at, tl.sum(totals[q], axis=0)[None, :], mask=in_row)
