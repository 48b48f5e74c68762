"""Products with a kernel that is given by its frequency response: two transforms, and none of taps.

The product is trilinear in x, the response and the upstream gradient, as the Toeplitz product is, and every derivative
is again a product with a response or a correlation of two signals: so two operators are closed under differentiation.
"""

from typing import Any

import torch
from torch import Tensor

from ..common.dispatch import ORDINARY, check_real, compute_dtype, dispatch
from ..common.fft import channel_blocks, circular_product, cross_spectrum, fast_length, real_edges, spectrum
from ..common.layout import channels_adjacent, positions_adjacent, write_channels
from .hilbert import two_sided_taps
from .product import toeplitz_matmul

__all__ = ["response_matmul", "response_suits"]


def response_suits(length: int, last: int) -> bool:
    """Return whether a product over `length` positions gains from the response on the grid pi q / M, M = `last`.

    The product gains where the grid resolves all lags and its transform, of length 2M, is fast and not much longer
    than needed.

    Args:
        length: positions.
        last: M, the last bin of the grid.
    """
    return length <= last and fast_length(2 * last) == 2 * last <= 1.25 * fast_length(2 * length - 1)


def response_matmul(x: Tensor, response: Tensor, block: int | None = None) -> Tensor:
    """Multiply each channel of `x` by the Toeplitz matrix of the kernel with the given frequency response.

    y = irfft(K rfft(x, 2M), 2M)[: length]: what `toeplitz_matmul(x, two_sided_taps(K))` gives, without taps. Source:
    Moreno, Mei, Walters 2023 (arXiv 2305.09028), section 3.3.2.

    Args:
        x: (batch, channels, length) of any floating dtype, length at most M.
        response: (2, channels, M + 1), the real and the imaginary part of K at pi q / M, in float32 (float64 for
            float64 `x`); the imaginary part at 0 and pi has no effect.
        block: channels to transform at a time; by default `channel_blocks` says how many.

    Returns:
        (batch, channels, length) in the dtype of `x`.

    Raises:
        ValueError: for shapes that do not fit, and integers.
    """
    check_real(x=x, response=response)
    fits = x.ndim == 3 and response.ndim == 3 and response.shape[:2] == (2, x.shape[1])
    if not fits or x.shape[-1] > response.shape[-1] - 1:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and response {tuple(response.shape)}: (batch, channels, length) and "
            "(2, channels, M + 1) with length at most M are needed."
        )
    route, dtype = dispatch(x)
    response = response.to(dtype)
    if x.numel() == 0:
        return x.clone() + response.sum().to(x.dtype) * 0
    if route in ORDINARY:
        taps, length = two_sided_taps(response[0], response[1]), x.shape[-1]
        middle = taps.shape[-1] // 2  # lag 0
        return toeplitz_matmul(x, taps[:, middle - length + 1 : middle + length], causal=False)
    y: Tensor = _ResponseProduct.apply(x, response, block)
    return y


def _conjugate(response: Tensor) -> Tensor:
    return torch.stack([response[0], -response[1]])


def _joined(response: Tensor, c: slice, size: int) -> Tensor:
    """Return K / 2M of some channels, as `circular_product` wants it; made block by block, it stays in cache."""
    return torch.complex(response[0, c], real_edges(response[1, c])).mul_(1 / size)


class _ResponseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, response: Tensor, block: int | None) -> Tensor:
        ctx.save_for_backward(x, response)
        ctx.block = block
        batch, channels, length = x.shape
        size = 2 * (response.shape[-1] - 1)
        block = block or channel_blocks(batch, channels, size, response.dtype, x.device)
        out = _empty_like(x)
        for start in range(0, channels, block):
            c = slice(start, start + block)
            x_spectrum = spectrum(positions_adjacent(x[:, c], response.dtype), size, response.dtype)
            y = circular_product(x_spectrum, _joined(response, c, size), size)
            write_channels(out[:, c], y[..., :length])
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, response = ctx.saved_tensors
        needs, block = ctx.needs_input_grad, ctx.block
        if needs[0] and needs[1] and not torch.is_grad_enabled():
            return *_both_gradients(g, x, response, block), None
        dx = _ResponseProduct.apply(g, _conjugate(response), block) if needs[0] else None
        dresponse = _ResponseGradient.apply(g, x, response.shape[-1] - 1, block) if needs[1] else None
        return dx, dresponse, None


class _ResponseGradient(torch.autograd.Function):
    """The gradient of the response: w[q] sum_b conj(X[b, q]) G[b, q], w = 1 / 2M at 0 and pi and 1 / M between."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, last: int, block: int | None) -> Tensor:
        ctx.save_for_backward(g, x)
        ctx.block = block
        batch, channels, _ = x.shape
        dtype = compute_dtype(x.dtype)
        block = block or channel_blocks(batch, channels, 2 * last, dtype, x.device)
        out = torch.empty((2, channels, last + 1), dtype=dtype, device=x.device)
        for start in range(0, channels, block):
            c = slice(start, start + block)
            g_spectrum, x_spectrum = (spectrum(positions_adjacent(t[:, c], dtype), 2 * last, dtype) for t in (g, x))
            _write_response(out[:, c], cross_spectrum(g_spectrum, x_spectrum))
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        g, x = ctx.saved_tensors
        dg = _ResponseProduct.apply(x, upstream, ctx.block)
        return dg, _ResponseProduct.apply(g, _conjugate(upstream), ctx.block), None, None


def _both_gradients(g: Tensor, x: Tensor, response: Tensor, block: int | None) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the response, transforming `g` once for both."""
    batch, channels, length = x.shape
    dtype = response.dtype
    size = 2 * (response.shape[-1] - 1)
    block = block or channel_blocks(batch, channels, size, dtype, x.device)
    dx = _empty_like(g)
    dresponse = torch.empty_like(response, memory_format=torch.contiguous_format)
    for start in range(0, channels, block):
        c = slice(start, start + block)
        g_spectrum = spectrum(positions_adjacent(g[:, c], dtype), size, dtype)
        x_spectrum = spectrum(positions_adjacent(x[:, c], dtype), size, dtype)
        _write_response(dresponse[:, c], cross_spectrum(g_spectrum, x_spectrum))
        conjugate = _joined(response, c, size).conj_physical_()
        write_channels(dx[:, c], circular_product(g_spectrum, conjugate, size)[..., :length])
    return dx, dresponse


def _empty_like(x: Tensor) -> Tensor:
    """Return memory for the shape of x: laid out as x is on a CPU where its channels are adjacent, else contiguous."""
    return torch.empty_like(
        x, memory_format=torch.preserve_format if channels_adjacent(x) else torch.contiguous_format
    )


def _write_response(out: Tensor, total: Tensor) -> None:
    """Write the two parts of w times `total`, (channels, M + 1); destroys `total`."""
    last = total.shape[-1] - 1
    total.mul_(1 / last)
    total[:, ::last].mul_(0.5)
    out[0] = total.real
    out[1] = total.imag
