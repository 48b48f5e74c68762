"""The programs of `monarch.py`: spectra of kernels, products, and the gradients of both, each a channel at a time."""

import triton
import triton.language as tl

from .monarch_parts import (
    half_inverse,
    halves,
    inverse,
    largest_size,
    load_matrix,
    load_row,
    powers,
    sum_of_products,
    transform,
    transform_rows,
    turned,
)

__all__ = ["gradients_kernel", "product_kernel", "spectrum_kernel", "taps_kernel"]


@triton.jit
def spectrum_kernel(
    taps,
    spectrum,
    scale,
    f1_table,
    f2_table,
    turns,
    length,
    stride,
    CAUSAL: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    PAIR: tl.constexpr,
):
    """Transform the taps of a channel. Negative lags are the imaginary part: lag -s stands at N - s."""
    SIZE: tl.constexpr = N1 * N2
    channel = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, N1)[:, None] * N2 + tl.arange(0, N2)[None, :]
    f1 = load_matrix(f1_table, N1, PAIR)
    f2 = load_matrix(f2_table, N2, PAIR)
    taps += channel * stride
    if CAUSAL:
        past, tap_up = load_row(taps, at, length)
        real, imaginary = transform(past, f1, f2, turns, at, SIZE, PAIR)
    else:
        past = tl.load(taps + length - 1 + at, mask=at < length, other=0.0)
        future = tl.load(taps + length - 1 - SIZE + at, mask=at > SIZE - length, other=0.0)
        down, tap_up = powers(tl.maximum(largest_size(past), largest_size(future)))
        past, past_low = halves(past * down, PAIR)
        future, future_low = halves(future * down, PAIR)
        imaginary = sum_of_products(f1[1], f1[3], past, past_low, f1[0], f1[2], future, future_low, PAIR)
        real = sum_of_products(f1[0], f1[2], past, past_low, f1[1], f1[3], -future, -future_low, PAIR)
        real, imaginary = turned(real, imaginary, turns, at, SIZE)
        real, imaginary = transform_rows(real, imaginary, f2, PAIR)
    down, up = powers(tl.maximum(largest_size(real), largest_size(imaginary)))
    to = spectrum + channel * 2 * SIZE + at
    tl.store(to, (real * down).to(spectrum.dtype.element_ty))
    tl.store(to + SIZE, (imaginary * down).to(spectrum.dtype.element_ty))
    tl.store(scale + channel, up * tap_up)


@triton.jit(do_not_specialize=["batch", "splits", "rows"])
def product_kernel(
    x,
    y,
    spectrum,
    scale,
    f1_table,
    f2_table,
    turns,
    length,
    batch,
    splits,
    rows,
    x_batch,
    x_channel,
    y_batch,
    y_channel,
    TRANSPOSE: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    PAIR: tl.constexpr,
):
    """Multiply some rows of the batch, one after the other, by the matrix of a channel."""
    SIZE: tl.constexpr = N1 * N2
    program = tl.program_id(0)
    channel = (program // splits).to(tl.int64)
    first = (program % splits) * rows
    at = tl.arange(0, N1)[:, None] * N2 + tl.arange(0, N2)[None, :]
    f1 = load_matrix(f1_table, N1, PAIR)
    f2 = load_matrix(f2_table, N2, PAIR)
    spectrum += channel * 2 * SIZE
    kernel_up = tl.load(scale + channel)
    first_row = first.to(tl.int64)
    x += first_row * x_batch + channel * x_channel
    y += first_row * y_batch + channel * y_channel
    for _ in range(first, tl.minimum(first + rows, batch)):
        tile, up = load_row(x, at, length)
        real, imaginary = transform(tile, f1, f2, turns, at, SIZE, PAIR)
        k_real = tl.load(spectrum + at).to(tl.float32)
        k_imaginary = tl.load(spectrum + SIZE + at).to(tl.float32)
        if TRANSPOSE:
            k_imaginary = -k_imaginary
        p_real = real * k_real - imaginary * k_imaginary
        p_imaginary = real * k_imaginary + imaginary * k_real
        out = inverse(p_real, p_imaginary, f1, f2, turns, at, N1, SIZE, PAIR) * up * kernel_up
        tl.store(y + at, out.to(y.dtype.element_ty), mask=at < length)
        x += x_batch
        y += y_batch


@triton.jit(do_not_specialize=["batch", "splits", "rows"])
def gradients_kernel(
    g,
    x,
    dx,
    partial,
    kept,
    spectrum,
    scale,
    f1_table,
    f2_table,
    turns,
    length,
    batch,
    splits,
    rows,
    g_batch,
    g_channel,
    x_batch,
    x_channel,
    dx_batch,
    dx_channel,
    DX: tl.constexpr,
    HELD: tl.constexpr,
    KEPT: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    PAIR: tl.constexpr,
):
    """Sum conj(X) G over some rows of the batch, and, if DX, multiply the rows of g by the transposed matrix.

    What registers cannot hold goes to memory: the sums unless HELD, and KEPT spectra, of x (1) or of x and g (2).
    """
    SIZE: tl.constexpr = N1 * N2
    program = tl.program_id(0).to(tl.int64)
    channel = program // splits
    first = (program % splits).to(tl.int32) * rows
    at = tl.arange(0, N1)[:, None] * N2 + tl.arange(0, N2)[None, :]
    f1 = load_matrix(f1_table, N1, PAIR)
    f2 = load_matrix(f2_table, N2, PAIR)
    partial += program * 2 * SIZE
    kept += program * KEPT * 2 * SIZE
    sum_real = tl.zeros((N1, N2), tl.float32)
    sum_imaginary = tl.zeros((N1, N2), tl.float32)
    if not HELD:
        tl.store(partial + at, sum_real)
        tl.store(partial + SIZE + at, sum_imaginary)
    if DX:
        spectrum += channel * 2 * SIZE
        kernel_up = tl.load(scale + channel)
    first_row = first.to(tl.int64)
    g += first_row * g_batch + channel * g_channel
    x += first_row * x_batch + channel * x_channel
    dx += first_row * dx_batch + channel * dx_channel
    for _ in range(first, tl.minimum(first + rows, batch)):
        tile, x_up = load_row(x, at, length)
        x_real, x_imaginary = transform(tile, f1, f2, turns, at, SIZE, PAIR)
        if not PAIR:
            # Held in half the registers while g is transformed.
            x_real = x_real.to(tl.float16)
            x_imaginary = x_imaginary.to(tl.float16)
        if KEPT > 0:
            tl.store(kept + at, x_real)
            tl.store(kept + SIZE + at, x_imaginary)
        tile, g_up = load_row(g, at, length)
        real, imaginary = transform(tile, f1, f2, turns, at, SIZE, PAIR)
        if KEPT > 1:
            tl.store(kept + 2 * SIZE + at, real.to(kept.dtype.element_ty))
            tl.store(kept + 3 * SIZE + at, imaginary.to(kept.dtype.element_ty))
        if KEPT > 0:
            # Without barriers the compiler would see what was stored, and hold it after all.
            tl.debug_barrier()
            x_real = tl.load(kept + at)
            x_imaginary = tl.load(kept + SIZE + at)
        if KEPT > 1:
            real = tl.load(kept + 2 * SIZE + at).to(tl.float32)
            imaginary = tl.load(kept + 3 * SIZE + at).to(tl.float32)
        both_up = x_up * g_up
        cross_real = (x_real * real + x_imaginary * imaginary) * both_up
        cross_imaginary = (x_real * imaginary - x_imaginary * real) * both_up
        if HELD:
            sum_real += cross_real
            sum_imaginary += cross_imaginary
        else:
            tl.debug_barrier()
            tl.store(partial + at, tl.load(partial + at) + cross_real)
            tl.store(partial + SIZE + at, tl.load(partial + SIZE + at) + cross_imaginary)
        if DX:
            if KEPT > 1:
                tl.debug_barrier()
                real = tl.load(kept + 2 * SIZE + at).to(tl.float32)
                imaginary = tl.load(kept + 3 * SIZE + at).to(tl.float32)
            k_real = tl.load(spectrum + at).to(tl.float32)
            k_imaginary = tl.load(spectrum + SIZE + at).to(tl.float32)
            p_real = real * k_real + imaginary * k_imaginary
            p_imaginary = imaginary * k_real - real * k_imaginary
            out = inverse(p_real, p_imaginary, f1, f2, turns, at, N1, SIZE, PAIR) * g_up * kernel_up
            tl.store(dx + at, out.to(dx.dtype.element_ty), mask=at < length)
        g += g_batch
        x += x_batch
        dx += dx_batch
    if HELD:
        tl.store(partial + at, sum_real)
        tl.store(partial + SIZE + at, sum_imaginary)


@triton.jit(do_not_specialize=["splits"])
def taps_kernel(
    partial,
    taps,
    f1_table,
    f2_table,
    turns,
    length,
    splits,
    CAUSAL: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    PAIR: tl.constexpr,
):
    """Add up the partial sums of a channel and transform them back to the gradient of its taps."""
    SIZE: tl.constexpr = N1 * N2
    channel = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, N1)[:, None] * N2 + tl.arange(0, N2)[None, :]
    real = tl.zeros((N1, N2), tl.float32)
    imaginary = tl.zeros((N1, N2), tl.float32)
    source = partial + channel * splits * 2 * SIZE + at
    for _ in range(splits):
        real += tl.load(source)
        imaginary += tl.load(source + SIZE)
        source += 2 * SIZE
    f1 = load_matrix(f1_table, N1, PAIR)
    f2 = load_matrix(f2_table, N2, PAIR)
    down, up = powers(tl.maximum(largest_size(real), largest_size(imaginary)))
    up = up * (1.0 / N1)
    real, imaginary = half_inverse(real * down, imaginary * down, f2, turns, at, SIZE, PAIR)
    re, re_low = halves(real, PAIR)
    im, im_low = halves(imaginary, PAIR)
    cosine = tl.trans(f1[0])
    cosine_low = tl.trans(f1[2])
    sine = tl.trans(f1[1])
    sine_low = tl.trans(f1[3])
    past = sum_of_products(cosine, cosine_low, re, re_low, sine, sine_low, im, im_low, PAIR) * up
    if CAUSAL:
        tl.store(taps + channel * length + at, past, mask=at < length)
    else:
        taps += channel * (2 * length - 1)
        tl.store(taps + length - 1 + at, past, mask=at < length)
        future = sum_of_products(cosine, cosine_low, im, im_low, sine, sine_low, -re, -re_low, PAIR) * up
        tl.store(taps + length - 1 - SIZE + at, future, mask=at > SIZE - length)
