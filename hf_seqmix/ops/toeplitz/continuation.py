"""What earlier inputs add to the outputs of a causal Toeplitz product at new positions.

`toeplitz_continuation` is the fast way and `toeplitz_continuation_dense` the definition. Training on segments of a
text asks for this. The transform is as long as all inputs, where the product of all inputs takes twice that, and no
derivatives are computed of earlier inputs that are constants.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.dispatch import compute_dtype
from ..common.fft import channel_blocks, circular_product, correlate, fast_length, spectrum
from ..common.layout import positions_adjacent
from ..common.once import once

__all__ = ["toeplitz_continuation", "toeplitz_continuation_dense"]


def toeplitz_continuation(past: Tensor, kernel: Tensor, length: int) -> Tensor:
    """Compute y[b, c, i] = sum_j k[c, P + i - j] x[b, c, j] over the P earlier inputs, in O((P + n) log(P + n)).

    With the causal product of the n new inputs this is the causal product of all inputs, at new positions. Circular
    convolution of length P + n - 1 serves: what wraps around falls on earlier positions. First derivatives only.

    Args:
        past: x, (batch, channels, P), P at least 1.
        kernel: (channels, taps) with at least P + n taps, lags from 0, of which lag 0 does not count.
        length: n, new positions, at least 1.

    Returns:
        (batch, channels, n) in the dtype of the transform, float32 (float64 for float64 `past`).

    Raises:
        ValueError: for shapes that do not fit.
    """
    taps = _used(past, kernel, length)
    y: Tensor = _Continuation.apply(past, taps.to(compute_dtype(past.dtype)), length)
    return y


def toeplitz_continuation_dense(past: Tensor, kernel: Tensor, length: int) -> Tensor:
    """Compute `toeplitz_continuation` by building the matrices: the definition, O(n P), in the promoted dtype."""
    taps = _used(past, kernel, length)
    dtype = torch.promote_types(past.dtype, kernel.dtype)
    new, earlier = (torch.arange(size, device=past.device) for size in (length, past.shape[-1]))
    lags = past.shape[-1] + new[:, None] - earlier[None, :]  # (n, P), from 1
    return torch.einsum("cij,bcj->bci", taps.to(dtype)[:, lags - 1], past.to(dtype))


def _used(past: Tensor, kernel: Tensor, length: int) -> Tensor:
    """Return the taps at lags 1 to P + n - 1."""
    if past.ndim != 3 or kernel.ndim != 2 or past.shape[1] != len(kernel):
        raise ValueError(
            "expected past of shape (batch, channels, positions) and kernel of shape (channels, taps), got "
            f"{tuple(past.shape)} and {tuple(kernel.shape)}."
        )
    needed = past.shape[-1] + length
    if past.shape[-1] < 1 or length < 1 or kernel.shape[1] < needed:
        raise ValueError(
            f"{past.shape[-1]} earlier and {length} new positions need at least one each and {needed} taps, but the "
            f"kernel has {kernel.shape[1]}."
        )
    return kernel[:, 1:needed]


class _Continuation(torch.autograd.Function):
    """The product by transforms of blocks of channels; `taps` begin at lag 1 and are in the dtype of the transform."""

    @staticmethod
    def forward(ctx: Any, past: Tensor, taps: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(past, taps)
        out = taps.new_empty((*past.shape[:2], length))
        fft_length, blocks = _sizes(past, taps)
        for c in blocks:
            kernel_c = spectrum(taps[c], fft_length, taps.dtype, scaled=True)
            past_c = spectrum(positions_adjacent(past[:, c], taps.dtype), fft_length, taps.dtype)
            out[:, c] = circular_product(past_c, kernel_c, fft_length)[..., past.shape[-1] - 1 :][..., :length]
        return out

    @staticmethod
    @once
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        past, taps = ctx.saved_tensors
        wants_past, wants_taps, _ = ctx.needs_input_grad
        d_past = torch.empty_like(past) if wants_past else None
        d_taps = torch.empty_like(taps) if wants_taps else None
        fft_length, blocks = _sizes(past, taps)
        for c in blocks:
            # Outputs stand from P - 1 on in the circle.
            g = F.pad(positions_adjacent(upstream[:, c], taps.dtype), (past.shape[-1] - 1, 0))
            g_c = spectrum(g, fft_length, taps.dtype)
            if d_taps is not None:
                past_c = spectrum(positions_adjacent(past[:, c], taps.dtype), fft_length, taps.dtype)
                d_taps[c] = correlate(g_c, past_c, fft_length)[:, : taps.shape[1]]
            if d_past is not None:
                kernel_c = spectrum(taps[c], fft_length, taps.dtype, scaled=True).conj()
                d_past[:, c] = circular_product(g_c, kernel_c, fft_length)[..., : past.shape[-1]]
        return d_past, d_taps, None


def _sizes(past: Tensor, taps: Tensor) -> tuple[int, list[slice]]:
    """Return the length of the transform, and blocks of channels."""
    batch, channels, _ = past.shape
    fft_length = fast_length(taps.shape[1])
    block = channel_blocks(batch, channels, fft_length, taps.dtype, past.device)
    return fft_length, [slice(start, start + block) for start in range(0, channels, block)]
