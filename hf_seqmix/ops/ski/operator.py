"""The operator of SKI, a short convolution plus W A W^T, in one step: T x = conv(x) + W A W^T x.

The sum of `short_conv` and `ski_matmul`, written so that the low-rank part is added to the other where it stands, forward and
backward: of six tensors of the size of x a training step, two remain. Allocating and first touching the others took a third
of the step on a CPU.
"""

from typing import Any

import torch
from torch import Tensor

from ..common.backend import implementation, kernel_module, route
from ..common.fft import compute_dtype
from ..toeplitz.derivatives import toeplitz_gradients, toeplitz_product
from .fused import fused_ski, fused_suits, traced_ski
from .interpolation import InducingGrid, add_interpolated, collected, interpolation_blocks, ski_matmul
from .short_conv import convolve, short_conv, weight_gradient

__all__ = ["sparse_low_rank_matmul"]


def sparse_low_rank_matmul(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Compute `short_conv(x, taps) + ski_matmul(x, kernel, grid)`.

    Source: Moreno, Mei, Walters 2023 (arXiv 2305.09028), algorithm 1.

    Args:
        x: (batch, channels, length) of any floating dtype, fastest when channels are contiguous in memory.
        taps: (channels, m), m odd, of the convolution.
        kernel: (channels, 2 points - 1) with points = grid.points(length), of the low-rank part.
        grid: where the inducing points lie.

    Returns:
        (batch, channels, length) in the dtype of `x`, channels contiguous.

    Raises:
        ValueError: for shapes that do not fit.
    """
    traced = route(x)
    if traced == "operator" and x.device.type == "cuda" and _fit(x, taps, kernel, grid):
        return traced_ski(x, taps, kernel, grid)
    if traced != "eager" or not _fit(x, taps, kernel, grid):
        return short_conv(x, taps) + ski_matmul(x, kernel, grid)
    if fused_suits(x, taps, kernel):
        return fused_ski(x, taps, kernel, grid)
    length, dtype = x.shape[-1], compute_dtype(x.dtype)
    chosen = implementation("ski", x, length)
    if chosen == "native" and kernel_module("ski.native").serves(x, taps, kernel, points=grid.points(length)):
        differentiated = torch.is_grad_enabled() and (x.requires_grad or taps.requires_grad or kernel.requires_grad)
        return (_Native.apply if differentiated else _native_product)(x, taps, kernel, grid)
    if x.dtype != dtype or taps.dtype != dtype or kernel.dtype != dtype:
        return short_conv(x, taps) + ski_matmul(x, kernel, grid)
    return _SparseLowRank.apply(x, taps, kernel, grid)


def _fit(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> bool:
    if x.ndim != 3 or taps.ndim != 2 or taps.shape[0] != x.shape[1] or taps.shape[1] % 2 == 0 or x.numel() == 0:
        return False
    return kernel.shape == (x.shape[1], 2 * grid.points(x.shape[-1]) - 1)


def _differentiable_gradients(
    ctx: Any, g: Tensor, x: Tensor, taps: Tensor, kernel: Tensor
) -> tuple[Tensor | None, ...]:
    """Return what a backward pass returns, from the two parts, which can be differentiated again."""
    needs = ctx.needs_input_grad
    wanted = [t for t, needed in zip((x, taps, kernel), needs, strict=False) if needed]
    y = short_conv(x, taps) + ski_matmul(x, kernel, ctx.grid)
    found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
    return *(next(found) if needed else None for needed in needs[:3]), None


class _SparseLowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
        length = x.shape[-1]
        blocks = interpolation_blocks(length, grid, x.dtype, x.device)
        inducing = collected(x, grid.points(length), blocks).contiguous()
        ctx.save_for_backward(x, taps, kernel, inducing)
        ctx.grid = grid
        return add_interpolated(convolve(x, taps), toeplitz_product(inducing, kernel, False), blocks)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, kernel, inducing = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, g, x, taps, kernel)
        dtaps = weight_gradient(g, x, taps.shape[1]) if needs[1] else None
        dx = dkernel = None
        if needs[0] or needs[2]:
            blocks = interpolation_blocks(x.shape[-1], ctx.grid, x.dtype, x.device)
            upstream = collected(g, inducing.shape[-1], blocks).contiguous()
            dinducing, dkernel = toeplitz_gradients(upstream, inducing, kernel, False)
            if needs[0]:
                dx = add_interpolated(convolve(g, taps.flip(-1)), dinducing, blocks)
        return dx, dtaps, dkernel if needs[2] else None, None


def _native_product(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    y: Tensor = kernel_module("ski.native").ski_forward(x.float(), taps.float(), kernel.float(), grid)
    return y.to(x.dtype)


class _Native(torch.autograd.Function):
    """The kernel in C, which works in float32 and keeps its arguments only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
        ctx.save_for_backward(x, taps, kernel)
        ctx.grid = grid
        return _native_product(x, taps, kernel, grid)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, kernel = saved = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, g, x, taps, kernel)
        native = kernel_module("ski.native")
        if not (needs[1] or needs[2]):
            return (
                native.ski_forward(g.float(), taps.float(), kernel.float(), ctx.grid, transposed=True).to(x.dtype),
                None,
                None,
                None,
            )
        found = native.ski_backward(g.float(), x.float(), taps.float(), kernel.float(), ctx.grid)
        return *(d.to(t.dtype) if needed else None for d, t, needed in zip(found, saved, needs, strict=False)), None
