"""How a Toeplitz product is computed and differentiated; `toeplitz.py` is its public face.

The product is trilinear: L(x, k, g) = sum g[b, c, i] k[c, i - j] x[b, c, j]. Its value and both gradients are the three
partial derivatives of L, and every derivative of one of the three is again one of the three. So a single operator, named by
the argument it is the derivative in, is closed under differentiation of any order and saves nothing but x and k.

The operator has two faces over one computation: a `torch.library` operator, opaque to `torch.compile` and `torch.export`,
while tracing, and an `autograd.Function` otherwise, which costs less to call: at length 128 the first took a sixth of the
whole product. `backend.py` says which; where it says neither, the product is a convolution. Within both, the computation has
several implementations of one result, by transforms of torch (`toeplitz_fft.py`) and by Triton (`kernels`), of which
`backend.implementation` picks one when the product runs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.backend import implementation, kernel_module, route
from ..common.fft import compute_dtype
from ..common.operator import define_operator
from .fft import fft_gradients, fft_product, right_angle_gradients, right_angle_partial

__all__ = ["toeplitz_gradients", "toeplitz_product"]

Backward = Callable[..., tuple[Tensor | None, ...]]


def toeplitz_product(x: Tensor, kernel: Tensor, causal: bool) -> Tensor:
    """Compute `toeplitz_matmul` for arguments that fit.

    Args:
        x: (batch, channels, length), not empty.
        kernel: (channels, taps) in the dtype of the transform.
        causal: whether the kernel has lags 0 to length - 1, or -(length - 1) to length - 1.
    """
    chosen = route(x)
    if chosen == "real":
        return _convolve(x, kernel, causal)
    return (_product if chosen == "operator" else _partial)(x, kernel, "output", causal)


def _convolve(x: Tensor, kernel: Tensor, causal: bool) -> Tensor:
    """The product as a convolution of each channel, O(n^2) in time.

    In onnxruntime (one thread, 768 channels, length 512) it took 51 ms, and gathering the matrices to multiply by 854 ms,
    whose memory is O(n^2), too.
    """
    length = x.shape[-1]
    padded = F.pad(x.to(kernel.dtype), (length - 1, 0 if causal else length - 1))
    # Autocast would convolve in half precision.
    with torch.autocast(x.device.type, enabled=False):
        return F.conv1d(padded, kernel.flip(-1).unsqueeze(1), groups=x.shape[1]).to(x.dtype)


def _partial(first: Tensor, second: Tensor, wrt: str, causal: bool) -> Tensor:
    """Return the derivative of L in the argument that `wrt` names, from the other two.

    "output": (x, k) -> y; "input": (g, k) -> dx; "kernel": (g, x) -> dk.
    """
    if torch.is_grad_enabled():
        return _Product.apply(first, second, wrt, causal)
    return _compute_product(first, second, wrt, causal, keep_layout=True)


def toeplitz_gradients(g: Tensor, x: Tensor, kernel: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the "input" and the "kernel" derivative together, transforming `g` once for both."""
    if torch.is_grad_enabled():
        return _Gradients.apply(g, x, kernel, causal)
    return _compute_gradients(g, x, kernel, causal, keep_layout=True)


def _compute_product(first: Tensor, second: Tensor, wrt: str, causal: bool, keep_layout: bool = False) -> Tensor:
    """`_partial` without a derivative, by the implementation that suits the call.

    With `keep_layout` transforms on a CPU leave the channels of a result side by side where those of `first` are, as linear
    layers have them; an operator of `torch.library` promises one layout instead.
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
    if chosen == "right_angle":
        return right_angle_partial(first, second, wrt)
    return fft_product(first, second, wrt, causal, keep_layout)


def _compute_gradients(
    g: Tensor, x: Tensor, kernel: Tensor, causal: bool, keep_layout: bool = False
) -> tuple[Tensor, Tensor]:
    chosen = _implementation(x, causal)
    if chosen == "tiles":
        tiles = kernel_module("toeplitz.kernels.tiles")
        dx = tiles.toeplitz_tiles(g, kernel, causal, transpose=True)
        return dx, tiles.toeplitz_tiles_kernel_gradient(g, x, causal)
    if chosen == "monarch":
        return kernel_module("toeplitz.kernels.monarch").monarch_gradients(g, x, kernel, causal)
    if chosen == "right_angle":
        return right_angle_gradients(g, x, kernel)
    return fft_gradients(g, x, kernel, causal, keep_layout)


def _implementation(x: Tensor, causal: bool) -> str:
    length = x.shape[-1]
    chosen = implementation("toeplitz_causal" if causal else "toeplitz_bidirectional", x, length)
    if chosen == "monarch" and not kernel_module("toeplitz.kernels.monarch").monarch_suits(length, x.dtype, x.device):
        return "right_angle" if causal else "fft"  # a row is more than a program of this device holds
    return chosen


def _backward_formulas(
    partial: Callable[..., Tensor], both: Callable[..., tuple[Tensor, Tensor]]
) -> tuple[Backward, Backward]:
    """Return the backward of the product and of the pair of gradients, written in one face of the operator."""

    def product(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        causal, needs = ctx.causal, ctx.needs_input_grad
        # The upstream gradient stands in the place of the argument that the product was the derivative in.
        if ctx.wrt == "output":  # first = x, second = k, upstream = g
            if needs[0] and needs[1]:
                return *both(upstream, first, second, causal), None, None
            dx = partial(upstream, second, "input", causal) if needs[0] else None
            dkernel = partial(upstream, first, "kernel", causal) if needs[1] else None
            return dx, dkernel, None, None
        if ctx.wrt == "input":  # first = g, second = k, upstream = x
            dg = partial(upstream, second, "output", causal) if needs[0] else None
            dkernel = partial(first, upstream, "kernel", causal) if needs[1] else None
            return dg, dkernel, None, None
        # first = g, second = x, upstream = k
        dg = partial(second, upstream, "output", causal) if needs[0] else None
        dx = partial(first, upstream, "input", causal) if needs[1] else None
        return dg, dx, None, None

    def gradients(ctx: Any, upstream_x: Tensor, upstream_kernel: Tensor) -> tuple[Tensor | None, ...]:
        g, x, kernel = ctx.saved_tensors
        causal = ctx.causal
        dg = partial(upstream_x, kernel, "output", causal) + partial(x, upstream_kernel, "output", causal)
        dx = partial(g, upstream_kernel, "input", causal)
        dkernel = partial(g, upstream_x, "kernel", causal)
        return dg, dx, dkernel, None

    return product, gradients


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    first, second, ctx.wrt, ctx.causal = inputs
    ctx.save_for_backward(first, second)


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors)


_eager_product_backward, _eager_gradients_backward = _backward_formulas(_partial, toeplitz_gradients)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        _save_product(ctx, args, None)
        first, second, wrt, causal = args
        return _compute_product(first, second, wrt, causal, keep_layout=True)

    backward = staticmethod(_eager_product_backward)


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        _save_gradients(ctx, args, None)
        g, x, kernel, causal = args
        return _compute_gradients(g, x, kernel, causal, keep_layout=True)

    backward = staticmethod(_eager_gradients_backward)


# The version is part of the name, which is global to a process. Change it with any change of meaning; exported model code
# carries a hash of itself instead.
@define_operator("hf_seqmix::toeplitz_product_v1")
def _product(first: Tensor, second: Tensor, wrt: str, causal: bool) -> Tensor:
    return _compute_product(first, second, wrt, causal)


@_product.register_fake
def _(first: Tensor, second: Tensor, wrt: str, causal: bool) -> Tensor:
    if wrt == "kernel":
        taps = first.shape[-1] if causal else 2 * first.shape[-1] - 1
        return first.new_empty((first.shape[1], taps), dtype=compute_dtype(first.dtype))
    return torch.empty_like(first, memory_format=torch.contiguous_format)


@define_operator("hf_seqmix::toeplitz_gradients_v1")
def _gradients(g: Tensor, x: Tensor, kernel: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return _compute_gradients(g, x, kernel, causal)


@_gradients.register_fake
def _(g: Tensor, x: Tensor, kernel: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(g, memory_format=torch.contiguous_format),
        torch.empty_like(kernel, memory_format=torch.contiguous_format),
    )


_traced_product_backward, _traced_gradients_backward = _backward_formulas(_product, _gradients)
_product.register_autograd(_traced_product_backward, setup_context=_save_product)
_gradients.register_autograd(_traced_gradients_backward, setup_context=_save_gradients)
