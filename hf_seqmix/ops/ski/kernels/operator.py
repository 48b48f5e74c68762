"""The operator of SKI, T x = conv(x) + W A W^T x, in Triton, forward and backward.

Three launches, all over channels that are last in memory; `operator_parts.py` holds the programs of the first and the
last:

1. `collect`: W^T x. A program owns some inducing points of some channels of a sequence and reads the tokens of the
   cells around them; the block of W that they meet is made from their positions and multiplied on tensor cores.
2. `points.py`: A times that.
3. `spread`: the convolution and W times that. A thread owns 16 neighboring tokens of two channels and keeps the
   tokens that their taps meet in registers. So a token is loaded and converted twice, not once a tap, and the
   convolution is little more than its multiplications.

The backward pass is the same on the upstream gradient. Its third launch makes the gradient of the taps on the way,
from the same registers. Of numbers as large as x, the forward pass reads x twice and writes y; the backward pass reads
g twice and x once and writes dx.

Every output is written by one program, and partial sums are added in a fixed order: results repeat bit for bit. Within
rounding, the gradients of taps and kernel depend on the number of programs, and so on batch, length and channels. y
and dx do not depend on that number where products of matrices treat all rows alike.

Weights, taps and sums are float32, whatever x is. On tensor cores W is split into two numbers of the precision of x,
so that its weights keep 16 bits at least.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from ...common.precision import dot_precision
from .operator_parts import collect_kernel, spread_kernel
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
        collect_kernel[(batch * groups * blocks,)](
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
        spread_kernel[(parts * blocks,)](
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
