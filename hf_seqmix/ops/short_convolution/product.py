"""A short convolution of each channel with taps of its own: y[i] = sum_q w[q] x[i + q - back].

Positions are last in shape, and channels last in memory, as a linear layer leaves its output. The depthwise
convolution is then a streaming multiply-add over channels, fifty times faster on CPU than over contiguous positions.
No library has a fast gradient of the taps, see `weight_gradient.py`. On GPUs Triton serves a few taps.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.backend import kernel_module
from ..common.crossovers import implementation
from ..common.dispatch import ORDINARY, check_real, dispatch, without_autocast
from ..common.invariance import is_batch_invariant
from ..common.layout import no_view
from .weight_gradient import weight_gradient

__all__ = ["convolve", "gradient_of_taps", "short_conv", "short_conv_dense", "short_conv_step"]

# Taps up to which a compiled graph multiplies and adds, which a compiler fuses, and float64, for which no depthwise
# convolution is fast.
_FEW_TAPS = 8
# Taps up to which Triton computes, where these are unrolled.
_KERNEL_TAPS = 16


def short_conv(x: Tensor, weight: Tensor, back: int | None = None) -> Tensor:
    """Convolve each channel with its own taps, zeros around the input.

    y[b, c, i] = sum_q w[c, q] x[b, c, i + q - back]: w[c, q] is the kernel at lag back - q. Centered by default, with
    back = (m - 1) / 2; causal with back = m - 1. Source: the sparse part of Moreno, Mei, Walters 2023 (arXiv
    2305.09028), algorithm 1, which is centered.

    Args:
        x: (batch, channels, length), fastest when channels are contiguous in memory.
        weight: (channels, m); best in float32 (float64 for float64 `x`): it is cast to that.
        back: how many positions before its own an output sees, 0 to m - 1; m must be odd without it.

    Returns:
        (batch, channels, length) in the dtype of `x`, channels contiguous.

    Raises:
        ValueError: for an even number of taps without `back`, one out of range, or shapes or devices that do not fit.
    """
    if x.ndim != 3 or weight.ndim != 2 or weight.shape[0] != x.shape[1]:
        raise ValueError(
            f"expected x of shape (batch, channels, length) and weight of shape (channels, taps), got "
            f"{tuple(x.shape)} and {tuple(weight.shape)}."
        )
    check_real(x=x, weight=weight)
    if weight.device != x.device:
        raise ValueError(f"x is on {x.device} but weight on {weight.device}: move them to one device.")
    taps = weight.shape[1]
    if back is None:
        if taps % 2 == 0:
            raise ValueError(f"weight has {taps} taps; a centered convolution needs an odd number.")
        back = taps // 2
    if not 0 <= back < taps:
        raise ValueError(f"back is {back}; with {taps} taps it must be from 0 to {taps - 1}.")
    route, dtype = dispatch(x)
    weight = weight.to(dtype)
    if x.numel() == 0:
        return x.clone() + weight.sum().to(x.dtype) * 0
    if route == "operator" and taps <= _FEW_TAPS:
        return _sum_of_taps(x, weight, back)
    if route != "eager" or not torch.is_grad_enabled():
        return convolve(x, weight, back)
    return _ShortConv.apply(x, weight, back)


def short_conv_dense(x: Tensor, weight: Tensor, back: int | None = None) -> Tensor:
    """Compute `short_conv` position by position and tap by tap: the definition."""
    taps = weight.shape[1]
    back = taps // 2 if back is None else back
    padded = F.pad(x, (back, taps - 1 - back))
    return torch.einsum("bcim,cm->bci", padded.unfold(-1, taps, 1), weight)


def short_conv_step(window: Tensor, weight: Tensor) -> Tensor:
    """Compute the one output of a causal `short_conv` that sees a whole window, as a sum of m products.

    y[b, c] = sum_q weight[c, q] window[b, q, c].

    Args:
        window: (batch, m, channels), the last m inputs.
        weight: (channels, m), in the order of the window.

    Returns:
        (batch, 1, channels) in the dtype of the window.

    Raises:
        ValueError: for a window of other inputs or channels than the weight has.
    """
    if not torch.compiler.is_compiling() and (window.ndim != 3 or window.shape[1:] != weight.shape[::-1]):
        raise ValueError(
            f"window has shape {tuple(window.shape)} and weight {tuple(weight.shape)}; they must be "
            "(batch, m, channels) and (channels, m)."
        )
    _, dtype = dispatch(window)
    return (window.to(dtype) * weight.to(dtype).t()).sum(dim=1, keepdim=True).to(window.dtype)


def convolve(x: Tensor, weight: Tensor, back: int | None = None) -> Tensor:
    """Compute `short_conv` for arguments that fit, without its derivatives."""
    channels, taps = weight.shape
    back = taps // 2 if back is None else back
    if is_batch_invariant() or (weight.dtype == torch.float64 and taps <= _FEW_TAPS):
        return _sum_of_taps(x, weight, back)
    if (kernels := _kernels(x, taps)) is not None:
        return kernels.short_conv(x, weight, back)
    if taps == 1:  # torch's depthwise convolution of one tap takes 20 times as long as that of three on a CPU
        return (x.to(weight.dtype) * weight).to(x.dtype)
    length, around = x.shape[2], max(back, taps - 1 - back)
    # In float32, autocast off: in bfloat16 on CPU the depthwise convolution of oneDNN 3.12 (torch 2.13) never returns.
    with without_autocast(x.device.type):
        rows = x.to(weight.dtype).unsqueeze(2)  # (batch, channels, 1, length)
        if dispatch(x)[0] not in ORDINARY:  # `vmap` knows no layouts
            rows = rows.contiguous(memory_format=torch.channels_last)
        convolved = F.conv2d(rows, weight[:, None, None], padding=(0, around), groups=channels).squeeze(2)
    if 2 * around != taps - 1:  # seen from one side more than from the other
        convolved = convolved[..., around - back : around - back + length]
    return convolved.to(x.dtype)


def _kernels(x: Tensor, taps: int) -> Any:
    """Return the module of Triton kernels that serves a call, or None; not in a graph."""
    if taps > _KERNEL_TAPS or dispatch(x)[0] != "eager":
        return None
    if implementation("short_conv", x, x.shape[2]) != "streaming":
        return None
    return kernel_module("short_convolution.kernels.streaming")


def gradient_of_taps(g: Tensor, x: Tensor, taps: int, back: int | None = None) -> Tensor:
    """Compute `weight_gradient` by the implementation that suits."""
    back = taps // 2 if back is None else back
    if not is_batch_invariant() and (kernels := _kernels(x, taps)) is not None:
        return kernels.short_conv_weight_gradient(g, x, taps, back)
    return weight_gradient(g, x, taps, back)


def _sum_of_taps(x: Tensor, weight: Tensor, back: int) -> Tensor:
    """Compute `short_conv` as a sum of products: the same order of terms at every position."""
    length, taps = x.shape[2], weight.shape[1]
    rows = F.pad(x.transpose(1, 2).to(weight.dtype), (0, 0, back, taps - 1 - back))
    y = rows[:, :length] * weight[:, 0]
    for tap in range(1, taps):
        y = y + rows[:, tap : tap + length] * weight[:, tap]
    return y.transpose(1, 2).to(x.dtype)


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, back: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.back = back
        return no_view(convolve(x, weight, back))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        taps, back = weight.shape[1], ctx.back
        # Each derivative is again a convolution or a correlation, so that differentiating twice works.
        dx = short_conv(g, weight.flip(-1), taps - 1 - back) if ctx.needs_input_grad[0] else None
        dweight = None
        if ctx.needs_input_grad[1]:
            gradient = _WeightGradient.apply if torch.is_grad_enabled() else gradient_of_taps
            dweight = gradient(g, x, taps, back)
        return dx, dweight, None


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, taps: int, back: int) -> Tensor:
        ctx.save_for_backward(g, x)
        ctx.reach = back, taps - 1 - back
        return gradient_of_taps(g, x, taps, back)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        g, x = ctx.saved_tensors
        back, ahead = ctx.reach
        dg = short_conv(x, upstream, back) if ctx.needs_input_grad[0] else None
        dx = short_conv(g, upstream.flip(-1), ahead) if ctx.needs_input_grad[1] else None
        return dg, dx, None, None
