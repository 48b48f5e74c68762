"""Toeplitz products and their gradients by zero-padded transforms of torch, on blocks of channels."""

import torch
from torch import Tensor

from ..common.dispatch import compute_dtype
from ..common.fft import (
    channel_blocks,
    circular_product,
    correlate,
    fast_length,
    spectrum,
)
from ..common.layout import channels_adjacent, positions_adjacent, write_channels

__all__ = ["fft_gradients", "fft_product"]


def fft_product(
    first: Tensor, second: Tensor, wrt: str, causal: bool, keep_layout: bool = False, block: int | None = None
) -> Tensor:
    """Return the derivative of L in the argument that `wrt` names, by transforms of real signals.

    Args:
        first: see `derivatives.toeplitz_product`, and so second, wrt and causal.
        second: see there.
        wrt: see there.
        causal: see there.
        keep_layout: whether a result that is no kernel has its channels side by side on a CPU where `first` has; else
            its positions are side by side.
        block: channels to transform at a time; by default `channel_blocks` says how many.
    """
    batch, channels, length = first.shape
    dtype = compute_dtype(first.dtype)
    fft_length = fast_length(2 * length - 1)
    block = block or channel_blocks(batch, channels, fft_length, dtype, first.device)
    out = _empty_result(first, wrt, causal, dtype, keep_layout)
    for start in range(0, channels, block):
        c = slice(start, start + block)
        spectrum_c = spectrum(positions_adjacent(first[:, c], dtype), fft_length, dtype)
        if wrt == "kernel":
            second_c = spectrum(positions_adjacent(second[:, c], dtype), fft_length, dtype)
            correlation = correlate(spectrum_c, second_c, fft_length)
            _write_taps(out[c], correlation, length, causal)
        else:
            taps = _kernel_spectrum(second[c], wrt, causal, fft_length)
            write_channels(out[:, c], _crop(circular_product(spectrum_c, taps, fft_length), length, causal))
    return out


def fft_gradients(
    g: Tensor, x: Tensor, kernel: Tensor, causal: bool, keep_layout: bool = False, block: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the kernel, transforming `g` once for both.

    Args:
        g: upstream gradient, (batch, channels, length).
        x: (batch, channels, length).
        kernel: (channels, taps) in the dtype of the transform.
        causal: see `fft_product`, and so keep_layout and block.
        keep_layout: see there.
        block: see there.
    """
    batch, channels, length = x.shape
    dtype = compute_dtype(x.dtype)
    fft_length = fast_length(2 * length - 1)
    block = block or channel_blocks(batch, channels, fft_length, dtype, x.device)
    dx = _empty_result(g, "input", causal, dtype, keep_layout)
    dkernel = torch.empty_like(kernel, memory_format=torch.contiguous_format)
    for start in range(0, channels, block):
        c = slice(start, start + block)
        g_spectrum = spectrum(positions_adjacent(g[:, c], dtype), fft_length, dtype)
        x_spectrum = spectrum(positions_adjacent(x[:, c], dtype), fft_length, dtype)
        _write_taps(dkernel[c], correlate(g_spectrum, x_spectrum, fft_length), length, causal)
        taps = _kernel_spectrum(kernel[c], "input", causal, fft_length)
        write_channels(dx[:, c], _crop(circular_product(g_spectrum, taps, fft_length), length, causal))
    return dx, dkernel


def _empty_result(first: Tensor, wrt: str, causal: bool, dtype: torch.dtype, keep_layout: bool) -> Tensor:
    if wrt == "kernel":
        length = first.shape[-1]
        return first.new_empty((first.shape[1], length if causal else 2 * length - 1), dtype=dtype)
    keep_layout = keep_layout and channels_adjacent(first)
    return torch.empty_like(first, memory_format=torch.preserve_format if keep_layout else torch.contiguous_format)


def _kernel_spectrum(kernel: Tensor, wrt: str, causal: bool, fft_length: int) -> Tensor:
    """Spectrum of the taps that make the product a plain convolution, or, for the transpose, its mirror image."""
    transpose = wrt == "input"
    if causal:
        taps = spectrum(kernel, fft_length, kernel.dtype, scaled=True)
        return taps.conj_physical_() if transpose else taps
    return spectrum(kernel.flip(-1) if transpose else kernel, fft_length, kernel.dtype, scaled=True)


def _crop(full: Tensor, length: int, causal: bool) -> Tensor:
    # Bidirectional taps are stored from lag -(n - 1), which delays the convolution by n - 1 samples.
    return full[..., :length] if causal else full[..., length - 1 : 2 * length - 1]


def _write_taps(out: Tensor, correlation: Tensor, length: int, causal: bool) -> None:
    if causal:
        out.copy_(correlation[..., :length])
    else:
        out[..., length - 1 :] = correlation[..., :length]
        if length > 1:
            out[..., : length - 1] = correlation[..., -(length - 1) :]
