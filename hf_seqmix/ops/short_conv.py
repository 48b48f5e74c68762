"""A short convolution of each channel with taps of its own, centred: y[i] = sum_q w[q] x[i + q - m // 2].

Positions last in shape, channels last in memory: there the depthwise convolution is a streaming multiply-add over channels
and fifty times faster on CPU than over contiguous positions, and it is how a linear layer leaves its output. The gradient of
the taps, which no library has fast, is one batched matrix product whose diagonals are summed.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .fft_conv import compute_dtype
from .toeplitz_product import is_traced

__all__ = ["short_conv", "short_conv_dense"]

# Positions that share one row of the batched product; 16 measured fastest for 17 and 33 taps.
_SEGMENT = 16
_CHANNELS_AT_ONCE = 64


def short_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve each channel with its own taps, zeros around the input.

    y[b, c, i] = sum_q w[c, q] x[b, c, i + q - (m - 1) / 2]: w[c, q] is the kernel at lag (m - 1) / 2 - q. Source: the
    sparse part of Moreno, Mei, Walters 2023 (arXiv 2305.09028), algorithm 1.

    Args:
        x: (batch, channels, length), fastest when channels are contiguous in memory.
        weight: (channels, m), m odd; cast to the dtype of `x`.

    Returns:
        (batch, channels, length) in the dtype of `x`, channels contiguous.

    Raises:
        ValueError: for an even number of taps, or shapes that do not fit.
    """
    if x.ndim != 3 or weight.ndim != 2 or weight.shape[0] != x.shape[1]:
        raise ValueError(
            f"expected x of shape (batch, channels, length) and weight of shape (channels, taps), got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}."
        )
    if weight.shape[1] % 2 == 0:
        raise ValueError(f"weight has {weight.shape[1]} taps; a centred convolution needs an odd number.")
    weight = weight.to(x.dtype)
    if x.numel() == 0:
        return x.clone() + weight.sum() * 0
    if is_traced(x) or not torch.is_grad_enabled():
        return _convolve(x, weight)
    return _ShortConv.apply(x, weight)


def short_conv_dense(x: Tensor, weight: Tensor) -> Tensor:
    """Compute `short_conv` position by position and tap by tap: the definition."""
    half = weight.shape[1] // 2
    padded = F.pad(x, (half, half))
    return torch.einsum("bcim,cm->bci", padded.unfold(-1, weight.shape[1], 1), weight)


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    channels, taps = weight.shape
    rows = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)  # (batch, channels, 1, length)
    return F.conv2d(rows, weight[:, None, None], padding=(0, taps // 2), groups=channels).squeeze(2)


def _weight_gradient(g: Tensor, x: Tensor, taps: int) -> Tensor:
    """Return dw[c, q] = sum over batch and i of g[b, c, i] x[b, c, i + q - taps // 2], shape (channels, taps).

    For each segment of 16 positions of g and the window of x around it, the products of all pairs are one matrix product,
    and dw[q] is the sum of its q-th diagonal.
    """
    batch, channels, length = x.shape
    dtype = compute_dtype(x.dtype)
    segments = -(-length // _SEGMENT)
    window = _SEGMENT + taps - 1
    spare = segments * _SEGMENT - length
    out = x.new_empty((channels, taps), dtype=dtype)
    for start in range(0, channels, _CHANNELS_AT_ONCE):
        c = slice(start, min(start + _CHANNELS_AT_ONCE, channels))
        width = c.stop - c.start
        padded = F.pad(x[:, c].to(dtype).contiguous(), (taps // 2, spare + taps // 2))
        windows = padded.unfold(-1, window, _SEGMENT).transpose(0, 1).reshape(width, batch * segments, window)
        pieces = F.pad(g[:, c].to(dtype).contiguous(), (0, spare)).unflatten(-1, (segments, _SEGMENT))
        pieces = pieces.transpose(0, 1).reshape(width, batch * segments, _SEGMENT)
        products = torch.bmm(pieces.transpose(1, 2), windows)  # (width, segment, window)
        # One more column a row turns diagonals into columns.
        sheared = F.pad(products.flatten(1), (0, _SEGMENT)).view(width, _SEGMENT, window + 1)
        out[c] = sheared[..., :taps].sum(dim=1)
    return out.to(x.dtype)


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        # Each derivative is again a convolution or a correlation, so that differentiating twice works.
        dx = short_conv(g, weight.flip(-1)) if ctx.needs_input_grad[0] else None
        dweight = None
        if ctx.needs_input_grad[1]:
            taps = weight.shape[1]
            dweight = _WeightGradient.apply(g, x, taps) if torch.is_grad_enabled() else _weight_gradient(g, x, taps)
        return dx, dweight


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, taps: int) -> Tensor:
        ctx.save_for_backward(g, x)
        return _weight_gradient(g, x, taps)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        g, x = ctx.saved_tensors
        dg = short_conv(x, upstream) if ctx.needs_input_grad[0] else None
        dx = short_conv(g, upstream.flip(-1)) if ctx.needs_input_grad[1] else None
        return dg, dx, None
