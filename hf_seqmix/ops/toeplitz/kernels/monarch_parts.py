"""The transform of `monarch.py` in tiles: what a program does with the row that it holds.

A row of N = N1 N2 samples is a tile x[j1, j2], j = j1 N2 + j2. Its transform at the angles of `monarch.py`,

    X[q1, q2] = sum_j x[j] exp(-2 pi i j (q + 1/4) / N),   q = q1 + N1 q2,

falls apart into columns, a turn of every element, and rows:

    a[q1, j2] = sum_j1 F1[q1, j1] x[j1, j2],        F1[q1, j1] = exp(-2 pi i j1 (q1 + 1/4) / N1),
    b[q1, j2] = T[q1, j2] a[q1, j2],                T[q1, j2] = exp(-2 pi i j2 (q1 + 1/4) / N),
    X[q1, q2] = sum_j2 b[q1, j2] F2[j2, q2],        F2[j2, q2] = exp(-2 pi i j2 q2 / N2).

The quarter, which makes the product linear rather than circular, costs nothing, and the first of the matrix products
is of real data. Spectra stay in the order [q1, q2]; the inverse goes backward, so nothing is ever reordered.

Factors of all matrix products are float16, sums float32. For float32 data a number is a pair of them, v = high + low /
2048, 22 bits, and a product three products (the fourth lies below the rounding): half the work of three products in
tf32, and half the shared memory. Rows and kernels are scaled by powers of two to at most 1, so that |X| <= N <= 16384
fits float16.
"""

import triton
import triton.language as tl

__all__ = ["gradients_kernel", "product_kernel", "spectrum_kernel", "taps_kernel"]


@triton.jit
def _powers(largest):
    """Return 2^-e and 2^e, such that 2^-e brings `largest` into [1/2, 1)."""
    # The limit keeps both finite; an infinity stays one, and spoils its row as it should.
    exponent = tl.minimum((largest.to(tl.int32, bitcast=True) >> 23) & 255, 252)
    down = ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    up = ((exponent + 1) << 23).to(tl.float32, bitcast=True)
    return down, up


@triton.jit
def _largest(tile):
    return tl.max(tl.max(tl.abs(tile), 1), 0)


@triton.jit
def _halves(tile, PAIR: tl.constexpr):
    """Return the float16 factors (high, low) of a float32 tile."""
    high = tile.to(tl.float16)
    low = high
    if PAIR:
        low = ((tile - high.to(tl.float32)) * 2048.0).to(tl.float16)
    return high, low


@triton.jit
def _matrix(pointer, SIZE: tl.constexpr, PAIR: tl.constexpr):
    """Load a complex matrix: real high, imaginary high, real low, imaginary low."""
    at = tl.arange(0, SIZE)
    at = at[:, None] * SIZE + at[None, :]
    real = tl.load(pointer + at)
    imaginary = tl.load(pointer + SIZE * SIZE + at)
    real_low = real
    imaginary_low = imaginary
    if PAIR:
        real_low = tl.load(pointer + 2 * SIZE * SIZE + at)
        imaginary_low = tl.load(pointer + 3 * SIZE * SIZE + at)
    return real, imaginary, real_low, imaginary_low


@triton.jit
def _dot(a, a_low, b, b_low, PAIR: tl.constexpr):
    """Return a b."""
    if PAIR:
        sums = tl.dot(a, b_low, tl.dot(a_low, b)) * (1.0 / 2048)
        sums = tl.dot(a, b, sums)
    else:
        sums = tl.dot(a, b)
    return sums


@triton.jit
def _dots(a, a_low, b, b_low, c, c_low, d, d_low, PAIR: tl.constexpr):
    """Return a b + c d."""
    if PAIR:
        sums = tl.dot(a, b_low, tl.dot(a_low, b))
        sums = tl.dot(c, d_low, tl.dot(c_low, d, sums)) * (1.0 / 2048)
        sums = tl.dot(c, d, tl.dot(a, b, sums))
    else:
        sums = tl.dot(c, d, tl.dot(a, b))
    return sums


@triton.jit
def _turned(real, imaginary, pointer, at, SIZE: tl.constexpr):
    """Multiply by a table of complex numbers, elementwise."""
    # Loaded where it is used, and from a table of its own for each direction: held over a row it would cost registers.
    cosine = tl.load(pointer + at).to(tl.float32)
    sine = tl.load(pointer + SIZE + at).to(tl.float32)
    return real * cosine - imaginary * sine, real * sine + imaginary * cosine


@triton.jit
def _rows(real, imaginary, f2, PAIR: tl.constexpr):
    """Return (real + i imaginary) F2, in float32; times the conjugate of F2 with both pairs of tiles exchanged."""
    re, re_low = _halves(real, PAIR)
    im, im_low = _halves(imaginary, PAIR)
    out_imaginary = _dots(re, re_low, f2[1], f2[3], im, im_low, f2[0], f2[2], PAIR)
    out_real = _dots(re, re_low, f2[0], f2[2], -im, -im_low, f2[1], f2[3], PAIR)
    return out_real, out_imaginary


@triton.jit
def _forward(x, f1, f2, turns, at, SIZE: tl.constexpr, PAIR: tl.constexpr):
    """Return the spectrum (real, imaginary) of a real tile of numbers up to 1."""
    high, low = _halves(x, PAIR)
    real = _dot(f1[0], f1[2], high, low, PAIR)
    imaginary = _dot(f1[1], f1[3], high, low, PAIR)
    real, imaginary = _turned(real, imaginary, turns, at, SIZE)
    return _rows(real, imaginary, f2, PAIR)


@triton.jit
def _half_inverse(real, imaginary, f2, turns, at, SIZE: tl.constexpr, PAIR: tl.constexpr):
    """Rows and turns of the inverse, with 1 / N2 of it in the table of turns."""
    out_imaginary, out_real = _rows(imaginary, real, f2, PAIR)
    return _turned(out_real, out_imaginary, turns + 2 * SIZE, at, SIZE)


@triton.jit
def _inverse(
    real,
    imaginary,
    f1,
    f2,
    turns,
    at,
    N1: tl.constexpr,
    SIZE: tl.constexpr,
    PAIR: tl.constexpr,
):
    """The real part of the inverse transform of a spectrum."""
    real, imaginary = _half_inverse(real, imaginary, f2, turns, at, SIZE, PAIR)
    re, re_low = _halves(real, PAIR)
    im, im_low = _halves(imaginary, PAIR)
    y = _dots(tl.trans(f1[0]), tl.trans(f1[2]), re, re_low, tl.trans(f1[1]), tl.trans(f1[3]), im, im_low, PAIR)
    return y * (1.0 / N1)


@triton.jit
def _scaled_row(pointer, at, length):
    """Load a row, scaled to at most 1, and what undoes the scale."""
    x = tl.load(pointer + at, mask=at < length, other=0.0).to(tl.float32)
    down, up = _powers(_largest(x))
    return x * down, up


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
    f1 = _matrix(f1_table, N1, PAIR)
    f2 = _matrix(f2_table, N2, PAIR)
    taps += channel * stride
    if CAUSAL:
        past, tap_up = _scaled_row(taps, at, length)
        real, imaginary = _forward(past, f1, f2, turns, at, SIZE, PAIR)
    else:
        past = tl.load(taps + length - 1 + at, mask=at < length, other=0.0)
        future = tl.load(taps + length - 1 - SIZE + at, mask=at > SIZE - length, other=0.0)
        down, tap_up = _powers(tl.maximum(_largest(past), _largest(future)))
        past, past_low = _halves(past * down, PAIR)
        future, future_low = _halves(future * down, PAIR)
        imaginary = _dots(f1[1], f1[3], past, past_low, f1[0], f1[2], future, future_low, PAIR)
        real = _dots(f1[0], f1[2], past, past_low, f1[1], f1[3], -future, -future_low, PAIR)
        real, imaginary = _turned(real, imaginary, turns, at, SIZE)
        real, imaginary = _rows(real, imaginary, f2, PAIR)
    down, up = _powers(tl.maximum(_largest(real), _largest(imaginary)))
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
    f1 = _matrix(f1_table, N1, PAIR)
    f2 = _matrix(f2_table, N2, PAIR)
    spectrum += channel * 2 * SIZE
    kernel_up = tl.load(scale + channel)
    first_row = first.to(tl.int64)
    x += first_row * x_batch + channel * x_channel
    y += first_row * y_batch + channel * y_channel
    for _ in range(first, tl.minimum(first + rows, batch)):
        tile, up = _scaled_row(x, at, length)
        real, imaginary = _forward(tile, f1, f2, turns, at, SIZE, PAIR)
        k_real = tl.load(spectrum + at).to(tl.float32)
        k_imaginary = tl.load(spectrum + SIZE + at).to(tl.float32)
        if TRANSPOSE:
            k_imaginary = -k_imaginary
        p_real = real * k_real - imaginary * k_imaginary
        p_imaginary = real * k_imaginary + imaginary * k_real
        out = _inverse(p_real, p_imaginary, f1, f2, turns, at, N1, SIZE, PAIR) * up * kernel_up
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
    f1 = _matrix(f1_table, N1, PAIR)
    f2 = _matrix(f2_table, N2, PAIR)
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
        tile, x_up = _scaled_row(x, at, length)
        x_real, x_imaginary = _forward(tile, f1, f2, turns, at, SIZE, PAIR)
        if not PAIR:
            # Held in half the registers while g is transformed.
            x_real = x_real.to(tl.float16)
            x_imaginary = x_imaginary.to(tl.float16)
        if KEPT > 0:
            tl.store(kept + at, x_real)
            tl.store(kept + SIZE + at, x_imaginary)
        tile, g_up = _scaled_row(g, at, length)
        real, imaginary = _forward(tile, f1, f2, turns, at, SIZE, PAIR)
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
            out = _inverse(p_real, p_imaginary, f1, f2, turns, at, N1, SIZE, PAIR) * g_up * kernel_up
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
    f1 = _matrix(f1_table, N1, PAIR)
    f2 = _matrix(f2_table, N2, PAIR)
    down, up = _powers(tl.maximum(_largest(real), _largest(imaginary)))
    up = up * (1.0 / N1)
    real, imaginary = _half_inverse(real * down, imaginary * down, f2, turns, at, SIZE, PAIR)
    re, re_low = _halves(real, PAIR)
    im, im_low = _halves(imaginary, PAIR)
    cosine = tl.trans(f1[0])
    cosine_low = tl.trans(f1[2])
    sine = tl.trans(f1[1])
    sine_low = tl.trans(f1[3])
    past = _dots(cosine, cosine_low, re, re_low, sine, sine_low, im, im_low, PAIR) * up
    if CAUSAL:
        tl.store(taps + channel * length + at, past, mask=at < length)
    else:
        taps += channel * (2 * length - 1)
        tl.store(taps + length - 1 + at, past, mask=at < length)
        future = _dots(cosine, cosine_low, im, im_low, sine, sine_low, -re, -re_low, PAIR) * up
        tl.store(taps + length - 1 - SIZE + at, future, mask=at > SIZE - length)
