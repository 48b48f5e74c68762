"""The operator of SKI, a short convolution plus W A W^T, in one step: T x = conv(x) + W A W^T x.

The sum of `short_conv` and `ski_matmul`, written so that the low-rank part is added to the other where it stands, forward and
backward: of six tensors of the size of x a training step, two remain. Allocating and first touching the others took a third
of the step on a CPU.
"""

from typing import Any

import torch
from torch import Tensor

from .backend import route
from .fft_conv import compute_dtype
from .short_conv import convolve, short_conv, weight_gradient
from .ski import InducingGrid, add_interpolated, interpolate_adjoint, ski_matmul
from .toeplitz import toeplitz_matmul
from .toeplitz_product import toeplitz_gradients

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
    dtype = compute_dtype(x.dtype)
    plain = route(x) != "eager" or x.dtype != dtype or taps.dtype != dtype or kernel.dtype != dtype
    fits = x.ndim == 3 and taps.ndim == 2 and taps.shape[0] == x.shape[1] and taps.shape[1] % 2 == 1 and x.numel() > 0
    if plain or not fits or kernel.shape != (x.shape[1], 2 * grid.points(x.shape[-1]) - 1):
        return short_conv(x, taps) + ski_matmul(x, kernel, grid)
    return _SparseLowRank.apply(x, taps, kernel, grid)


class _SparseLowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
        collected = interpolate_adjoint(x, grid).contiguous()
        ctx.save_for_backward(x, taps, kernel, collected)
        ctx.grid = grid
        return add_interpolated(convolve(x, taps), toeplitz_matmul(collected, kernel, causal=False), grid)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, kernel, collected = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():  # to be differentiated again: by the two parts
            wanted = [t for t, needed in zip((x, taps, kernel), needs, strict=False) if needed]
            y = short_conv(x, taps) + ski_matmul(x, kernel, ctx.grid)
            found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
            return *(next(found) if needed else None for needed in needs[:3]), None
        dtaps = weight_gradient(g, x, taps.shape[1]) if needs[1] else None
        dx = dkernel = None
        if needs[0] or needs[2]:
            upstream = interpolate_adjoint(g, ctx.grid).contiguous()
            dcollected, dkernel = toeplitz_gradients(upstream, collected, kernel, False)
            if needs[0]:
                dx = add_interpolated(convolve(g, taps.flip(-1)), dcollected, ctx.grid)
        return dx, dtaps, dkernel if needs[2] else None, None
