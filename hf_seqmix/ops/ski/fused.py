"""SKI's operator by the Triton kernels of `kernels/ski.py`, as a function of autograd and as an operator for tracing.

`sparse_low_rank.py` is its public face and its definition.
"""

from typing import Any

import torch
from torch import Tensor

from ..common.backend import implementation, kernel_module
from ..common.fft import compute_dtype
from ..common.operator import define_operator
from ..toeplitz.derivatives import toeplitz_gradients
from .interpolation import InducingGrid, interpolate, interpolate_adjoint, ski_matmul
from .short_conv import convolve, short_conv, weight_gradient

__all__ = ["fused_ski", "fused_suits", "traced_ski"]


def fused_suits(x: Tensor, taps: Tensor, kernel: Tensor) -> bool:
    """Say whether the kernels compute a call: chosen, and with as many points and taps as they take."""
    if implementation("ski", x, x.shape[-1]) != "fused":
        return False
    ski = kernel_module("ski.kernels.operator")
    return kernel.shape[1] < 2 * ski.MOST_POINTS and taps.shape[1] <= ski.MOST_TAPS


def fused_ski(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Compute `sparse_low_rank_matmul` for arguments that fit and for which `fused_suits`."""
    return _Fused.apply(x, taps, kernel, grid)


def traced_ski(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Compute the same as an operator, whose implementation is chosen when it runs."""
    y: Tensor = _operator(x, taps, kernel, grid.max_length, grid.num_points, grid.degree)[0]
    return y


def _forward(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> tuple[Tensor, Tensor]:
    y, collected = kernel_module("ski.kernels.operator").ski_forward(x, taps.float(), kernel.float(), grid)
    return y, collected


def _backward(
    g: Tensor, x: Tensor, taps: Tensor, kernel: Tensor, collected: Tensor, grid: InducingGrid, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    ski = kernel_module("ski.kernels.operator")
    found = ski.ski_backward(g.to(x.dtype), x, taps.float(), kernel.float(), collected, grid, needs)
    return tuple(None if d is None else d.to(t.dtype) for d, t in zip(found, (x, taps, kernel), strict=True))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
        y, collected = _forward(x, taps, kernel, grid)
        ctx.save_for_backward(x, taps, kernel, collected)
        ctx.grid = grid
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, kernel, collected = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # to be differentiated again: by the two parts
            wanted = [t for t, needed in zip((x, taps, kernel), needs, strict=True) if needed]
            y = short_conv(x, taps) + ski_matmul(x, kernel, ctx.grid)
            found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
            return *(next(found) if needed else None for needed in needs), None
        gradients = _backward(g, x, taps, kernel, collected, ctx.grid, needs)
        return *(d if needed else None for d, needed in zip(gradients, needs, strict=True)), None


@define_operator("hf_seqmix::sparse_low_rank_v1")
def _operator(
    x: Tensor, taps: Tensor, kernel: Tensor, max_length: int, num_points: int, degree: int
) -> tuple[Tensor, Tensor]:
    grid = InducingGrid(max_length, num_points, degree)
    if fused_suits(x, taps, kernel):
        y, collected = _forward(x, taps, kernel, grid)
        return _channels_last(y), _channels_last(collected)
    y = short_conv(x, taps) + ski_matmul(x, kernel, grid)
    return _channels_last(y), _empty_collected(x, grid).zero_()


@_operator.register_fake
def _(x: Tensor, taps: Tensor, kernel: Tensor, max_length: int, num_points: int, degree: int) -> tuple[Tensor, Tensor]:
    batch, channels, length = x.shape
    y = x.new_empty((batch, length, channels)).transpose(1, 2)
    return y, _empty_collected(x, InducingGrid(max_length, num_points, degree))


@define_operator("hf_seqmix::sparse_low_rank_gradients_v1")
def _gradients(
    g: Tensor,
    x: Tensor,
    taps: Tensor,
    kernel: Tensor,
    collected: Tensor,
    max_length: int,
    num_points: int,
    degree: int,
) -> tuple[Tensor, Tensor, Tensor]:
    grid = InducingGrid(max_length, num_points, degree)
    if fused_suits(x, taps, kernel):
        dx, dtaps, dkernel = _backward(g, x, taps, kernel, collected, grid, (True, True, True))
        assert dx is not None and dtaps is not None and dkernel is not None
    else:
        # Operators run below autograd: the gradients of the two parts by their formulas.
        dtype = compute_dtype(x.dtype)
        upstream, inducing = (interpolate_adjoint(t, grid).contiguous() for t in (g, x))
        dinducing, dkernel = toeplitz_gradients(upstream, inducing, kernel.to(dtype), False)
        smooth = interpolate(dinducing, x.shape[-1], grid)
        dx = (convolve(g, taps.flip(-1).to(dtype)) + smooth).to(x.dtype)
        dtaps, dkernel = weight_gradient(g, x, taps.shape[1]).to(taps.dtype), dkernel.to(kernel.dtype)
    return _channels_last(dx), dtaps.contiguous(), dkernel.contiguous()


@_gradients.register_fake
def _(
    g: Tensor,
    x: Tensor,
    taps: Tensor,
    kernel: Tensor,
    collected: Tensor,
    max_length: int,
    num_points: int,
    degree: int,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, channels, length = x.shape
    dx = x.new_empty((batch, length, channels)).transpose(1, 2)
    return dx, taps.new_empty(taps.shape), kernel.new_empty(kernel.shape)


def _channels_last(x: Tensor) -> Tensor:
    """Lay out (batch, channels, length) with channels contiguous in memory, as what is traced is told."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _empty_collected(x: Tensor, grid: InducingGrid) -> Tensor:
    batch, channels, length = x.shape
    return x.new_empty((batch, grid.points(length), channels), dtype=torch.float32).transpose(1, 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, taps, kernel, *ctx.grid = inputs
    ctx.save_for_backward(x, taps, kernel, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, g: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return *_gradients(g, *ctx.saved_tensors, *ctx.grid), None, None, None


_operator.register_autograd(_differentiate, setup_context=_save)
