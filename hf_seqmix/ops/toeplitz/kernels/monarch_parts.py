"""The transform of `monarch.py` in tiles: what a program of `monarch_programs.py` does with the row that it holds.

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

__all__ = [
    "half_inverse",
    "halves",
    "inverse",
    "largest_size",
    "load_matrix",
    "load_row",
    "powers",
    "sum_of_products",
    "transform",
    "transform_rows",
    "turned",
]


@triton.jit
def powers(largest):
    """Return 2^-e and 2^e, such that 2^-e brings `largest` into [1/2, 1)."""
    # The limit keeps both finite; an infinity stays one, and spoils its row as it should.
    exponent = tl.minimum((largest.to(tl.int32, bitcast=True) >> 23) & 255, 252)
    down = ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    up = ((exponent + 1) << 23).to(tl.float32, bitcast=True)
    return down, up


@triton.jit
def largest_size(tile):
    """Return the largest |element| of a tile."""
    return tl.max(tl.max(tl.abs(tile), 1), 0)


@triton.jit
def halves(tile, PAIR: tl.constexpr):
    """Return the float16 factors (high, low) of a float32 tile."""
    high = tile.to(tl.float16)
    low = high
    if PAIR:
        low = ((tile - high.to(tl.float32)) * 2048.0).to(tl.float16)
    return high, low


@triton.jit
def load_matrix(pointer, SIZE: tl.constexpr, PAIR: tl.constexpr):
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
def product(a, a_low, b, b_low, PAIR: tl.constexpr):
    """Return a b."""
    if PAIR:
        sums = tl.dot(a, b_low, tl.dot(a_low, b)) * (1.0 / 2048)
        sums = tl.dot(a, b, sums)
    else:
        sums = tl.dot(a, b)
    return sums


@triton.jit
def sum_of_products(a, a_low, b, b_low, c, c_low, d, d_low, PAIR: tl.constexpr):
    """Return a b + c d."""
    if PAIR:
        sums = tl.dot(a, b_low, tl.dot(a_low, b))
        sums = tl.dot(c, d_low, tl.dot(c_low, d, sums)) * (1.0 / 2048)
        sums = tl.dot(c, d, tl.dot(a, b, sums))
    else:
        sums = tl.dot(c, d, tl.dot(a, b))
    return sums


@triton.jit
def turned(real, imaginary, pointer, at, SIZE: tl.constexpr):
    """Multiply by a table of complex numbers, elementwise."""
    # Loaded where it is used, and from a table of its own for each direction: held over a row it would cost registers.
    cosine = tl.load(pointer + at).to(tl.float32)
    sine = tl.load(pointer + SIZE + at).to(tl.float32)
    return real * cosine - imaginary * sine, real * sine + imaginary * cosine


@triton.jit
def transform_rows(real, imaginary, f2, PAIR: tl.constexpr):
    """Return (real + i imaginary) F2, in float32; times the conjugate of F2 with both pairs of tiles exchanged."""
    re, re_low = halves(real, PAIR)
    im, im_low = halves(imaginary, PAIR)
    out_imaginary = sum_of_products(re, re_low, f2[1], f2[3], im, im_low, f2[0], f2[2], PAIR)
    out_real = sum_of_products(re, re_low, f2[0], f2[2], -im, -im_low, f2[1], f2[3], PAIR)
    return out_real, out_imaginary


@triton.jit
def transform(x, f1, f2, turns, at, SIZE: tl.constexpr, PAIR: tl.constexpr):
    """Return the spectrum (real, imaginary) of a real tile of numbers up to 1."""
    high, low = halves(x, PAIR)
    real = product(f1[0], f1[2], high, low, PAIR)
    imaginary = product(f1[1], f1[3], high, low, PAIR)
    real, imaginary = turned(real, imaginary, turns, at, SIZE)
    return transform_rows(real, imaginary, f2, PAIR)


@triton.jit
def half_inverse(real, imaginary, f2, turns, at, SIZE: tl.constexpr, PAIR: tl.constexpr):
    """Rows and turns of the inverse, with 1 / N2 of it in the table of turns."""
    out_imaginary, out_real = transform_rows(imaginary, real, f2, PAIR)
    return turned(out_real, out_imaginary, turns + 2 * SIZE, at, SIZE)


@triton.jit
def inverse(
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
    real, imaginary = half_inverse(real, imaginary, f2, turns, at, SIZE, PAIR)
    re, re_low = halves(real, PAIR)
    im, im_low = halves(imaginary, PAIR)
    y = sum_of_products(
        tl.trans(f1[0]), tl.trans(f1[2]), re, re_low, tl.trans(f1[1]), tl.trans(f1[3]), im, im_low, PAIR
    )
    return y * (1.0 / N1)


@triton.jit
def load_row(pointer, at, length):
    """Load a row, scaled to at most 1, and what undoes the scale."""
    x = tl.load(pointer + at, mask=at < length, other=0.0).to(tl.float32)
    down, up = powers(largest_size(x))
    return x * down, up
