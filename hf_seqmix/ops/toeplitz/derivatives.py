"""How a Toeplitz product is computed and differentiated; `product.py` is its public face.

The product is trilinear: L(x, k, g) = sum g[b, c, i] k[c, i - j] x[b, c, j]. Its value and both gradients are the
three partial derivatives of L, and every derivative of one of the three is again one of the three. So a single
operator, named by the argument it is the derivative in, is closed under differentiation of any order and saves nothing
but x and k.

The computation has several implementations of one result, by transforms of torch (`fft.py`) and by Triton (`kernels`).
`crossovers.implementation` picks one when the product runs.
"""

from typing import Any

import torch
from torch import Tensor

from ..common.backend import kernel_module
from ..common.crossovers import implementation
from ..common.dispatch import compute_dtype
from ..common.operator import differentiable_operator
from .fft import fft_gradients, fft_product

__all__ = ["toeplitz_gradients", "toeplitz_product"]


def _implementation(x: Tensor, causal: bool) -> str:
    length = x.shape[-1]
    chosen = implementation("toeplitz_causal" if causal else "toeplitz_bidirectional", x, length)
    if chosen == "monarch" and not kernel_module("toeplitz.kernels.monarch").monarch_suits(length, x.dtype, x.device):
        return "fft"  # a row is more than a program of this device holds
    return chosen


def _empty_product(first: Tensor, second: Tensor, wrt: str, causal: bool) -> Tensor:
    if wrt == "kernel":
        taps = first.shape[-1] if causal else 2 * first.shape[-1] - 1
        return first.new_empty((first.shape[1], taps), dtype=compute_dtype(first.dtype))
    return torch.empty_like(first, memory_format=torch.contiguous_format)


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, ctx.wrt, ctx.causal = inputs
    ctx.save_for_backward(first, second)


def _differentiate_product(traced: bool, ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    first, second = ctx.saved_tensors
    causal, needs = ctx.causal, ctx.needs_input_grad
    # The upstream gradient stands in the place of the argument that the product was the derivative in.
    if ctx.wrt == "output":  # first = x, second = k, upstream = g
        if needs[0] and needs[1]:
            return *toeplitz_gradients(traced, upstream, first, second, causal), None, None
        dx = toeplitz_product(traced, upstream, second, "input", causal) if needs[0] else None
        dkernel = toeplitz_product(traced, upstream, first, "kernel", causal) if needs[1] else None
        return dx, dkernel, None, None
    if ctx.wrt == "input":  # first = g, second = k, upstream = x
        dg = toeplitz_product(traced, upstream, second, "output", causal) if needs[0] else None
        dkernel = toeplitz_product(traced, first, upstream, "kernel", causal) if needs[1] else None
        return dg, dkernel, None, None
    # first = g, second = x, upstream = k
    dg = toeplitz_product(traced, second, upstream, "output", causal) if needs[0] else None
    dx = toeplitz_product(traced, first, upstream, "input", causal) if needs[1] else None
    return dg, dx, None, None


# Without tracing, results keep the layout of the arguments; an operator promises one layout instead.
@differentiable_operator(
    "hf_seqmix::toeplitz_product_v1",
    "(Tensor first, Tensor second, str wrt, bool causal) -> Tensor",
    fake=_empty_product,
    save=_save_product,
    backward=_differentiate_product,
    eager={"keep_layout": True},
)
def toeplitz_product(first: Tensor, second: Tensor, wrt: str, causal: bool, keep_layout: bool = False) -> Tensor:
    """Return the derivative of L in the argument that `wrt` names, by the implementation that suits.

    Args:
        first: (batch, channels, length), not empty: x for "output", g for "input" and "kernel".
        second: the kernel, (channels, taps) in the dtype of the transform, for "output" and "input"; x for "kernel".
        wrt: "output": (x, k) -> y; "input": (g, k) -> dx; "kernel": (g, x) -> dk.
        causal: whether the kernel has lags 0 to length - 1, or -(length - 1) to length - 1.
        keep_layout: whether transforms on a CPU leave the channels of a result side by side where those of `first`
            are, as linear layers have them.
    """
    chosen = _implementation(first, causal)
    if chosen == "tiles":
        tiles = kernel_module("toeplitz.kernels.tiles")
        if wrt == "kernel":
            return tiles.toeplitz_tiles_kernel_gradient(first, second, causal)
        return tiles.toeplitz_tiles(first, second, causal, transpose=wrt == "input")
    if chosen == "monarch":
        monarch = kernel_module("toeplitz.kernels.monarch")
        if wrt == "kernel":
            return monarch.monarch_kernel_gradient(first, second, causal)
        return monarch.monarch_product(first, second, causal, transpose=wrt == "input")
    return fft_product(first, second, wrt, causal, keep_layout)


def _empty_gradients(g: Tensor, x: Tensor, kernel: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(g, memory_format=torch.contiguous_format),
        torch.empty_like(kernel, memory_format=torch.contiguous_format),
    )


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_gradients(
    traced: bool, ctx: Any, upstream_x: Tensor, upstream_kernel: Tensor
) -> tuple[Tensor | None, ...]:
    g, x, kernel = ctx.saved_tensors
    causal = ctx.causal
    dg = toeplitz_product(traced, upstream_x, kernel, "output", causal)
    dg = dg + toeplitz_product(traced, x, upstream_kernel, "output", causal)
    dx = toeplitz_product(traced, g, upstream_kernel, "input", causal)
    dkernel = toeplitz_product(traced, g, upstream_x, "kernel", causal)
    return dg, dx, dkernel, None


@differentiable_operator(
    "hf_seqmix::toeplitz_gradients_v1",
    "(Tensor g, Tensor x, Tensor kernel, bool causal) -> (Tensor, Tensor)",
    fake=_empty_gradients,
    save=_save_gradients,
    backward=_differentiate_gradients,
    eager={"keep_layout": True},
)
def toeplitz_gradients(
    g: Tensor, x: Tensor, kernel: Tensor, causal: bool, keep_layout: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the "input" and the "kernel" derivative together, transforming `g` once for both.

    Args:
        g: upstream gradient, (batch, channels, length).
        x: (batch, channels, length).
        kernel: (channels, taps) in the dtype of the transform.
        causal: as for `toeplitz_product`.
        keep_layout: see there.
    """
    chosen = _implementation(x, causal)
    if chosen == "tiles":
        tiles = kernel_module("toeplitz.kernels.tiles")
        dx = tiles.toeplitz_tiles(g, kernel, causal, transpose=True)
        return dx, tiles.toeplitz_tiles_kernel_gradient(g, x, causal)
    if chosen == "monarch":
        return kernel_module("toeplitz.kernels.monarch").monarch_gradients(g, x, kernel, causal)
    return fft_gradients(g, x, kernel, causal, keep_layout)
