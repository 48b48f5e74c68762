"""Products with Toeplitz matrices: y[i] = sum_j k[i - j] x[j], one matrix a channel.

The product is trilinear: L(x, k, g) = sum g[b, c, i] k[c, i - j] x[b, c, j]. Its value and both gradients are the three
partial derivatives of L, and every derivative of one of the three is again one of the three. So a single custom operator,
named by the argument it is the derivative in, is closed under differentiation of any order and saves nothing but x and k.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .fft_conv import channel_blocks, circular_product, compute_dtype, correlate, fast_length, spectrum

__all__ = ["toeplitz_matmul", "toeplitz_matmul_dense", "toeplitz_matrix", "toeplitz_step"]


def toeplitz_matmul(x: Tensor, kernel: Tensor, causal: bool = True) -> Tensor:
    """Multiply each channel of `x` by its own Toeplitz matrix, in O(n log n).

    y[b, c, i] = sum_j k[c, i - j] x[b, c, j], over 0 <= j <= i when causal and over all j otherwise.

    The transform runs in float32 (float64 for float64 `x`) whatever autocast says, at a fast length of at least 2n - 1.
    Backward keeps `x` and `kernel` and nothing else. In float32 the rounding error of an output is relative to the
    largest values of the whole row, later ones included, and a NaN or infinity anywhere in a row reaches all of it. Source: Qin et al. 2023 (arXiv 2305.04749), section 3.2.

    Args:
        x: (batch, channels, length) of any floating dtype; length 0 gives an empty result.
        kernel: (channels, length), lags 0 to length - 1, when `causal`; else (channels, 2 length - 1), lags
            -(length - 1) to length - 1. Best in float32 (float64 for float64 `x`): it is cast to that.
        causal: whether outputs see the past and the present only.

    Returns:
        (batch, channels, length) in the dtype of `x`.

    Raises:
        ValueError: for shapes, dtypes or devices that do not fit.
        NotImplementedError: under forward-mode differentiation, which is not supported.
    """
    _check(x, kernel, causal)
    if not torch.compiler.is_compiling():
        _refuse_forward_mode(x, kernel)
    kernel = kernel.to(compute_dtype(x.dtype))
    if x.numel() == 0:
        # The sum keeps the result attached to both inputs.
        return x.clone() + kernel.sum().to(x.dtype) * 0
    return _product(x, kernel, "output", causal)


def toeplitz_matrix(kernel: Tensor, length: int, causal: bool = True) -> Tensor:
    """Build the dense matrices T[c, i, j] = k[c, i - j].

    Args:
        kernel: (channels, length) when `causal`, else (channels, 2 length - 1).
        length: number of rows and columns.
        causal: whether entries above the diagonal are zero.

    Returns:
        (channels, length, length).
    """
    positions = torch.arange(length, device=kernel.device)
    lags = positions[:, None] - positions[None, :]  # (length, length)
    if causal:
        return kernel[:, lags.clamp(min=0)] * (lags >= 0)
    return kernel[:, lags + length - 1]


def toeplitz_matmul_dense(x: Tensor, kernel: Tensor, causal: bool = True) -> Tensor:
    """Compute `toeplitz_matmul` by building the matrices: the definition, O(n^2) in time and memory.

    Takes and returns what `toeplitz_matmul` does, in the dtype of the promoted inputs.
    """
    _check(x, kernel, causal)
    dtype = torch.promote_types(x.dtype, kernel.dtype)
    matrix = toeplitz_matrix(kernel.to(dtype), x.shape[-1], causal)
    return torch.einsum("cij,bcj->bci", matrix, x.to(dtype))


def toeplitz_step(history: Tensor, kernel: Tensor, position: Tensor | None = None) -> Tensor:
    """Compute one output of a causal product from the history of inputs: one step of decoding, O(n).

    y[b, c] = sum_(j <= p) k[c, p - j] x[b, j, c], accumulated in the dtype of the kernel.

    Args:
        history: (batch, length, channels).
        kernel: (channels, taps) with taps >= length, lags from 0.
        position: (1,) long, p, for a preallocated history with unused places after it; the last place by default.

    Returns:
        (batch, 1, channels) in the dtype of `history`.
    """
    length = history.shape[1]
    if position is None:
        taps = kernel[:, :length].flip(-1)  # (channels, length)
    else:
        lags = position - torch.arange(length, device=history.device)
        taps = kernel[:, lags.clamp(min=0)] * (lags >= 0)
    return torch.einsum("ct,btc->bc", taps, history.to(kernel.dtype)).unsqueeze(1).to(history.dtype)


def _check(x: Tensor, kernel: Tensor, causal: bool) -> None:
    if x.ndim != 3 or kernel.ndim != 2:
        raise ValueError(
            f"expected x of shape (batch, channels, length) and kernel of shape (channels, taps), got {tuple(x.shape)} "
            f"and {tuple(kernel.shape)}."
        )
    length = x.shape[-1]
    taps = length if causal else max(2 * length - 1, 0)
    if kernel.shape[0] != x.shape[1] or kernel.shape[1] != taps:
        kind = "a causal kernel has length" if causal else "a bidirectional kernel has 2 length - 1"
        raise ValueError(
            f"kernel has shape {tuple(kernel.shape)} but x has {x.shape[1]} channels and length {length}: {kind} taps a "
            f"channel, so ({x.shape[1]}, {taps}) is needed."
        )
    if not (x.is_floating_point() and kernel.is_floating_point()):
        raise ValueError(f"x and kernel must be real floating-point tensors, got {x.dtype} and {kernel.dtype}.")
    if x.device != kernel.device:
        raise ValueError(f"x is on {x.device} but kernel on {kernel.device}: move them to one device.")


def _refuse_forward_mode(x: Tensor, kernel: Tensor) -> None:
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in (x, kernel)):
        raise NotImplementedError(
            "toeplitz_matmul has no forward-mode derivative (it would silently be zero): use reverse mode, or "
            "toeplitz_matmul_dense."
        )


# The version is part of the name: exported model code may register the operator beside this package, and of two equal
# names the last registration wins. Change it with any change of meaning.
@torch.library.custom_op("hf_seqmix::toeplitz_product_v1", mutates_args=())
def _product(first: Tensor, second: Tensor, wrt: str, causal: bool) -> Tensor:
    """Return the derivative of L in the argument that `wrt` names, from the other two.

    "output": (x, k) -> y; "input": (g, k) -> dx; "kernel": (g, x) -> dk.
    """
    length = first.shape[-1]
    batch, channels = first.shape[:2]
    dtype = compute_dtype(first.dtype)
    fft_length = fast_length(2 * length - 1)
    block = channel_blocks(batch, channels, fft_length, dtype, first.device)
    blocks = [slice(start, start + block) for start in range(0, channels, block)]
    with torch.autocast(first.device.type, enabled=False):
        if wrt == "kernel":
            out = first.new_empty((channels, length if causal else 2 * length - 1), dtype=dtype)
            for c in blocks:
                g, x = spectrum(first[:, c], fft_length, dtype), spectrum(second[:, c], fft_length, dtype)
                _write_taps(out[c], correlate(g, x, fft_length), length, causal)
            return out
        out = torch.empty_like(first, memory_format=torch.contiguous_format)
        for c in blocks:
            taps = _kernel_spectrum(second[c], wrt, causal, fft_length)
            full = circular_product(spectrum(first[:, c], fft_length, dtype), taps, fft_length)
            out[:, c] = _crop(full, length, causal)
        return out


@_product.register_fake
def _(first: Tensor, second: Tensor, wrt: str, causal: bool) -> Tensor:
    if wrt == "kernel":
        taps = first.shape[-1] if causal else 2 * first.shape[-1] - 1
        return first.new_empty((first.shape[1], taps), dtype=compute_dtype(first.dtype))
    return torch.empty_like(first, memory_format=torch.contiguous_format)


@torch.library.custom_op("hf_seqmix::toeplitz_gradients_v1", mutates_args=())
def _gradients(g: Tensor, x: Tensor, kernel: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the "input" and the "kernel" product together, transforming `g` once for both."""
    batch, channels, length = x.shape
    dtype = compute_dtype(x.dtype)
    fft_length = fast_length(2 * length - 1)
    block = channel_blocks(batch, channels, fft_length, dtype, x.device)
    dx = torch.empty_like(g, memory_format=torch.contiguous_format)
    dkernel = torch.empty_like(kernel, memory_format=torch.contiguous_format)
    with torch.autocast(x.device.type, enabled=False):
        for start in range(0, channels, block):
            c = slice(start, start + block)
            g_spectrum = spectrum(g[:, c], fft_length, dtype)
            x_spectrum = spectrum(x[:, c], fft_length, dtype)
            _write_taps(dkernel[c], correlate(g_spectrum, x_spectrum, fft_length), length, causal)
            taps = _kernel_spectrum(kernel[c], "input", causal, fft_length)
            dx[:, c] = _crop(circular_product(g_spectrum, taps, fft_length), length, causal)
    return dx, dkernel


@_gradients.register_fake
def _(g: Tensor, x: Tensor, kernel: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(g, memory_format=torch.contiguous_format),
        torch.empty_like(kernel, memory_format=torch.contiguous_format),
    )


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


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, _wrt, ctx.causal = inputs
    ctx.wrt = _wrt
    ctx.save_for_backward(*tensors)


def _product_backward(ctx, upstream: Tensor):  # type: ignore[no-untyped-def]
    first, second = ctx.saved_tensors
    causal, needs = ctx.causal, ctx.needs_input_grad
    # The upstream gradient stands in the place of the argument that the product was the derivative in.
    if ctx.wrt == "output":  # first = x, second = k, upstream = g
        if needs[0] and needs[1]:
            dx, dkernel = _gradients(upstream, first, second, causal)
            return dx, dkernel, None, None
        dx = _product(upstream, second, "input", causal) if needs[0] else None
        dkernel = _product(upstream, first, "kernel", causal) if needs[1] else None
        return dx, dkernel, None, None
    if ctx.wrt == "input":  # first = g, second = k, upstream = x
        dg = _product(upstream, second, "output", causal) if needs[0] else None
        dkernel = _product(first, upstream, "kernel", causal) if needs[1] else None
        return dg, dkernel, None, None
    # first = g, second = x, upstream = k
    dg = _product(second, upstream, "output", causal) if needs[0] else None
    dx = _product(first, upstream, "input", causal) if needs[1] else None
    return dg, dx, None, None


_product.register_autograd(_product_backward, setup_context=_save)


def _save_gradients(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors)


def _gradients_backward(ctx, upstream_x: Tensor, upstream_kernel: Tensor):  # type: ignore[no-untyped-def]
    g, x, kernel = ctx.saved_tensors
    causal = ctx.causal
    dg = _product(upstream_x, kernel, "output", causal) + _product(x, upstream_kernel, "output", causal)
    dx = _product(g, upstream_kernel, "input", causal)
    dkernel = _product(g, upstream_x, "kernel", causal)
    return dg, dx, dkernel, None


_gradients.register_autograd(_gradients_backward, setup_context=_save_gradients)
