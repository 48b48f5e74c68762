"""How the operator of SKI is computed in one step and differentiated; `product.py` is its public face and definition.

There are three implementations of one result:

* torch adds the low-rank part to the convolution where that stands, forward and backward. Of six tensors of the size
  of x a training step, two remain. Allocating and first touching the others took a third of the step on a CPU.
* Triton computes both parts in the kernels of `kernels/operator.py`.
* C computes both parts in `ski.c`, through `native.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.backend import kernel_module
from ..common.crossovers import implementation
from ..common.dispatch import compute_dtype
from ..common.layout import no_view
from ..common.operator import define_operator, differentiable_operator
from ..short_convolution.product import convolve, gradient_of_taps, short_conv
from ..toeplitz.derivatives import toeplitz_gradients, toeplitz_product
from .interpolation import (
    InducingGrid,
    add_interpolated,
    collected,
    interpolate,
    interpolate_adjoint,
    interpolation_blocks,
)

__all__ = ["fused_product", "fused_takes", "native_product", "torch_product"]


def _by_parts(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> tuple[Tensor, Tensor]:
    """Compute the sum for arguments that fit, without tracing; return W^T x, too."""
    inducing = interpolate_adjoint(x, grid, "eager").contiguous()
    mixed = toeplitz_product(False, inducing, kernel.to(inducing.dtype), "output", False)
    smooth = interpolate(mixed, x.shape[-1], grid, "eager").to(x.dtype)
    return short_conv(x, taps) + smooth, inducing


def _differentiable_gradients(
    g: Tensor, tensors: Sequence[Tensor], grid: InducingGrid, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, taps and kernel from the two parts, which can be differentiated again."""
    # Under other names: x may itself have been computed from the taps, which is for the graph outside to follow.
    tensors = [t.view_as(t) for t in tensors]
    x, taps, kernel = tensors
    wanted = [t for t, needed in zip(tensors, needs, strict=True) if needed]
    y, _ = _by_parts(x, taps, kernel, grid)
    found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
    return tuple(next(found) if needed else None for needed in needs)


def torch_product(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Compute the sum in torch, for arguments of one dtype, float32 or float64, that fit.

    Args:
        x: (batch, channels, length).
        taps: (channels, m), m odd.
        kernel: (channels, 2 points - 1) with points = grid.points(length).
        grid: where the inducing points lie.

    Returns:
        (batch, channels, length) in the dtype of `x`, channels contiguous.
    """
    y: Tensor = _TorchProduct.apply(x, taps, kernel, grid)
    return y


class _TorchProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
        length = x.shape[-1]
        blocks = interpolation_blocks(length, grid, x.dtype, x.device)
        inducing = collected(x, grid.points(length), blocks).contiguous()
        ctx.save_for_backward(x, taps, kernel, inducing)
        ctx.grid = grid
        mixed = toeplitz_product(False, inducing, kernel, "output", False)
        return no_view(add_interpolated(convolve(x, taps), mixed, blocks))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, kernel, inducing = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return *_differentiable_gradients(g, (x, taps, kernel), ctx.grid, needs[:3]), None
        dtaps = gradient_of_taps(g, x, taps.shape[1]) if needs[1] else None
        dx = dkernel = None
        if needs[0] or needs[2]:
            blocks = interpolation_blocks(x.shape[-1], ctx.grid, x.dtype, x.device)
            upstream = collected(g, inducing.shape[-1], blocks).contiguous()
            dinducing, dkernel = toeplitz_gradients(False, upstream, inducing, kernel, False)
            if needs[0]:
                dx = add_interpolated(convolve(g, taps.flip(-1)), dinducing, blocks)
        return dx, dtaps, dkernel if needs[2] else None, None


def native_product(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Compute the sum in C, in float32, for arguments that `native.serves`.

    Args:
        x: (batch, channels, length).
        taps: (channels, m), m odd.
        kernel: (channels, 2 points - 1) with points = grid.points(length).
        grid: where the inducing points lie.

    Returns:
        (batch, channels, length) in the dtype of `x`.
    """
    differentiated = torch.is_grad_enabled() and (x.requires_grad or taps.requires_grad or kernel.requires_grad)
    y: Tensor = (_Native.apply if differentiated else _native_forward)(x, taps, kernel, grid)
    return y


def _native_forward(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    y: Tensor = kernel_module("ski.native").ski_forward(x.float(), taps.float(), kernel.float(), grid)
    return y.to(x.dtype)


class _Native(torch.autograd.Function):
    """The kernel in C, which works in float32 and keeps its arguments only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
        ctx.save_for_backward(x, taps, kernel)
        ctx.grid = grid
        return _native_forward(x, taps, kernel, grid)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, kernel = saved = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return *_differentiable_gradients(g, saved, ctx.grid, needs[:3]), None
        native = kernel_module("ski.native")
        if not (needs[1] or needs[2]):
            dx = native.ski_forward(g.float(), taps.float(), kernel.float(), ctx.grid, transposed=True)
            return dx.to(x.dtype), None, None, None
        found = native.ski_backward(g.float(), x.float(), taps.float(), kernel.float(), ctx.grid)
        return *(d.to(t.dtype) if needed else None for d, t, needed in zip(found, saved, needs, strict=False)), None


def fused_takes(taps: Tensor, kernel: Tensor) -> bool:
    """Return whether the Triton kernels take as many points and taps."""
    kernels = kernel_module("ski.kernels.operator")
    return kernel.shape[1] < 2 * kernels.MOST_POINTS and taps.shape[1] <= kernels.MOST_TAPS


def _fused_suits(x: Tensor, taps: Tensor, kernel: Tensor) -> bool:
    return implementation("ski", x, x.shape[-1]) == "fused" and fused_takes(taps, kernel)


def _channels_last(x: Tensor) -> Tensor:
    """Lay out (batch, channels, length) with channels contiguous in memory, as a tracer is told."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _empty_product(
    x: Tensor, taps: Tensor, kernel: Tensor, max_length: int, num_points: int, degree: int
) -> tuple[Tensor, Tensor]:
    batch, channels, length = x.shape
    points = InducingGrid(max_length, num_points, degree).points(length)
    found = x.new_empty((batch, points, channels), dtype=compute_dtype(x.dtype))
    return x.new_empty((batch, length, channels)).transpose(1, 2), found.transpose(1, 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, taps, kernel, *ctx.grid = inputs
    ctx.save_for_backward(x, taps, kernel, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(traced: bool, ctx: Any, g: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, found = ctx.saved_tensors
    grid, needs = InducingGrid(*ctx.grid), tuple(ctx.needs_input_grad[:3])
    if g is None:
        return (None,) * 6
    if traced:
        return *_fused_gradients(True, g, *tensors, found, *grid), None, None, None
    if torch.is_grad_enabled():
        return *_differentiable_gradients(g, tensors, grid, needs), None, None, None
    x, taps, kernel = tensors
    gradients = _kernel_gradients(g, x, taps, kernel, found, grid, needs)
    return *(d if needed else None for d, needed in zip(gradients, needs, strict=True)), None, None, None


# Without tracing, the caller has chosen the kernels already.
@differentiable_operator(
    "hf_seqmix::sparse_low_rank_v2",
    "(Tensor x, Tensor taps, Tensor kernel, SymInt max_length, SymInt num_points, SymInt degree) -> (Tensor, Tensor)",
    fake=_empty_product,
    save=_save,
    backward=_differentiate,
    eager={"fused": True},
)
def fused_product(
    x: Tensor, taps: Tensor, kernel: Tensor, max_length: int, num_points: int, degree: int, fused: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute the sum by the Triton kernels; in a graph, by an implementation that is chosen when the graph runs.

    Args:
        x: (batch, channels, length).
        taps: (channels, m).
        kernel: (channels, 2 points - 1).
        max_length: of the grid, and so num_points and degree.
        num_points: see there.
        degree: see there.
        fused: whether the kernels compute in any case.

    Returns:
        y: (batch, channels, length) in the dtype of x, channels contiguous.
        collected: W^T x, (batch, channels, points) in float32 (float64 for float64 x). Backward, which may choose
            another implementation, reads it.
    """
    grid = InducingGrid(max_length, num_points, degree)
    if fused or _fused_suits(x, taps, kernel):
        kernels = kernel_module("ski.kernels.operator")
        y, found = kernels.ski_forward(x, taps.float(), kernel.float(), grid)
    else:
        y, found = _by_parts(x, taps, kernel, grid)
    return _channels_last(y), _channels_last(found)


def _kernel_gradients(
    g: Tensor, x: Tensor, taps: Tensor, kernel: Tensor, found: Tensor, grid: InducingGrid, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    kernels = kernel_module("ski.kernels.operator")
    gradients = kernels.ski_backward(g.to(x.dtype), x, taps.float(), kernel.float(), found, grid, needs)
    return tuple(None if d is None else d.to(t.dtype) for d, t in zip(gradients, (x, taps, kernel), strict=True))


def _empty_gradients(g: Tensor, x: Tensor, taps: Tensor, kernel: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, channels, length = x.shape
    dx = x.new_empty((batch, length, channels)).transpose(1, 2)
    return dx, taps.new_empty(taps.shape), kernel.new_empty(kernel.shape)


@define_operator(
    "hf_seqmix::sparse_low_rank_gradients_v2",
    "(Tensor g, Tensor x, Tensor taps, Tensor kernel, Tensor collected, SymInt max_length, SymInt num_points, "
    "SymInt degree) -> (Tensor, Tensor, Tensor)",
    fake=_empty_gradients,
)
def _fused_gradients(
    g: Tensor,
    x: Tensor,
    taps: Tensor,
    kernel: Tensor,
    found: Tensor,
    max_length: int,
    num_points: int,
    degree: int,
) -> tuple[Tensor, Tensor, Tensor]:
    grid = InducingGrid(max_length, num_points, degree)
    if _fused_suits(x, taps, kernel):
        dx, dtaps, dkernel = _kernel_gradients(g, x, taps, kernel, found, grid, (True, True, True))
        assert dx is not None and dtaps is not None and dkernel is not None
    else:
        # Operators run below autograd: the gradients of the two parts by their formulas.
        dtype = compute_dtype(x.dtype)
        upstream = interpolate_adjoint(g, grid, "eager").contiguous()
        dinducing, dkernel = toeplitz_gradients(False, upstream, found.contiguous(), kernel.to(dtype), False)
        smooth = interpolate(dinducing, x.shape[-1], grid, "eager")
        dx = (convolve(g, taps.flip(-1).to(dtype)) + smooth).to(x.dtype)
        dtaps, dkernel = gradient_of_taps(g, x, taps.shape[1]).to(taps.dtype), dkernel.to(kernel.dtype)
    return _channels_last(dx), dtaps.contiguous(), dkernel.contiguous()
