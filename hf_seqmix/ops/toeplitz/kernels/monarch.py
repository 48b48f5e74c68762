"""The Toeplitz product as a two-level (Monarch) Fourier transform on tensor cores, for lengths of about 2048 to 16384.

A real polynomial of degree below 2 N, sum_j c_j z^j, is known from its values at the N roots of z^N = -i, which are
z_q = exp(-2 pi i (q + 1/4) / N). Products modulo z^(2 N) + 1 are products of those values. So the complex transform of
length N >= n that takes the values does for real rows of n what a real transform of 2 N does ("right-angle" form),
without padding and without a wrap:

    X[q] = sum_j x[j] z_q^j,  K[q] = sum_t k[t] z_q^t over all lags,
    T x = Re F^-1 (K X),  T^T g = Re F^-1 (conj(K) G),
    dk[t] = Re c[t] and dk[-s] = Im c[N - s] for c = F^-1 (sum over batch of conj(X) G),

with negative lags in the imaginary part, since z^-s = i z^(N - s): a bidirectional product costs what a causal one
does.

N is a power of two, N1 N2, and a row a tile of N1 x N2 that one program holds from the reading of x to the writing of
y, with the matrices of `monarch_parts.py`: 8 N1 + 16 N2 operations an element. A program multiplies several rows of
the batch by the matrix of one channel. Sums over the batch are made in the spectrum, in a fixed order.

An error is relative to the norms of row and kernel, not to the single output, as with any transform: about 7e-4 of
them (root mean square) for half precision, whose transforms run in float16, and 3e-7 for float32.

Sources: Dao et al. 2022 (arXiv 2204.00595) for the name; Fu et al. 2023 (arXiv 2311.05908) for convolution by it on
tensor cores, from which this differs in the right-angle form and in having the first product real.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import pi
from typing import Any

import torch
import triton
from torch import Tensor

from .monarch_programs import gradients_kernel, product_kernel, spectrum_kernel, taps_kernel

__all__ = ["monarch_gradients", "monarch_kernel_gradient", "monarch_product", "monarch_suits"]

# N -> N1, N2, warps: one warp for 16 rows of the tile keeps every product of the chain in the registers of its own
# warps.
_PLANS = {
    256: (16, 16, 1),
    512: (32, 16, 2),
    1024: (64, 16, 4),
    2048: (64, 32, 4),
    4096: (128, 32, 8),
    8192: (128, 64, 8),
    16384: (128, 128, 8),
}
# Float32 takes twice the shared memory and registers and three times the work.
_LONGEST = {torch.bfloat16: 16384, torch.float16: 16384, torch.float32: 4096}

PROGRAMS = 2048
"""Programs that fill a GPU several times (528 run at a time on an H200 at N = 2048, by the model).

Rows of one program share the matrices and the spectrum of the kernel, so a program takes as many rows as this leaves
it."""

BLOCK_BYTES = 256 * 2**20
"""Bound on the memory of spectra and sums."""

# Where the sums over the batch and the spectra of a row of x and of g do not all fit the registers of the program that
# makes the gradients, some wait in memory, by N and whether float32: whether the sums are held, how many spectra are
# not.
_WAITING = {(8192, False): (False, 1), (16384, False): (False, 2), (2048, True): (False, 0), (4096, True): (False, 1)}


def monarch_suits(length: int, dtype: torch.dtype, device: torch.device | None = None) -> bool:
    """Return whether rows of `length` samples in `dtype` can be multiplied.

    Args:
        length: n, at least 1. Up to 16384 in half precision, 4096 in float32.
        dtype: of x.
        device: a GPU whose shared memory is to hold the matrices; left out, it is taken to be large enough.
    """
    if not 1 <= length <= _LONGEST.get(dtype, 0):
        return False
    if device is None or device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    # Elsewhere the transpose of a matrix is a second one in shared memory.
    reads_both_ways = torch.version.hip is None and properties.major in (9, 10)
    available = getattr(properties, "shared_memory_per_block_optin", 48 * 1024)
    return _shared_bytes(length, dtype, reads_both_ways) <= available


def monarch_product(
    x: Tensor,
    kernel: Tensor,
    causal: bool,
    transpose: bool = False,
    *,
    programs: int = PROGRAMS,
    block_bytes: int = BLOCK_BYTES,
) -> Tensor:
    """Compute y[i] = sum_j k[i - j] x[j], or, transposed, y[i] = sum_j k[j - i] x[j].

    Args:
        x: (batch, channels, length) in bfloat16, float16 or float32, of any strides, not empty.
        kernel: (channels, length), lags from 0, when `causal`; else (channels, 2 length - 1), from -(length - 1).
            float32.
        causal: whether outputs see the past and the present only.
        transpose: whether the transposed matrix multiplies.
        programs: that share the work, or as many as there are rows.
        block_bytes: bound on the memory of spectra and sums.

    Returns:
        (batch, channels, length) in the dtype of `x`, contiguous.

    Raises:
        ValueError: for a length or dtype that `monarch_suits` denies.
    """
    plan = _plan(x.shape[-1], x.dtype)
    x = _rows_apart(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    splits, rows = _split(x.shape[0], x.shape[1], programs)
    with torch.cuda.device_of(x):
        tables, sizes = _tables_of(x, plan)
        for c in _blocks(x, plan, splits, block_bytes):
            spectrum, scale = _spectrum(kernel[c], causal, x, tables, sizes)
            product_kernel[(len(spectrum) * splits,)](
                x[:, c],
                y[:, c],
                spectrum,
                scale,
                *tables,
                x.shape[-1],
                x.shape[0],
                splits,
                rows,
                *x.stride()[:2],
                *y.stride()[:2],
                TRANSPOSE=transpose,
                **sizes,
            )
    return y


def monarch_kernel_gradient(g: Tensor, x: Tensor, causal: bool) -> Tensor:
    """Compute dk[t] = sum over batch and i of g[i] x[i - t].

    Args:
        g: (batch, channels, length), the gradient of the product, in the dtype of `x`, of any strides.
        x: (batch, channels, length), as `monarch_product` takes it.
        causal: whether for lags 0 to length - 1 or -(length - 1) to length - 1.

    Returns:
        (channels, length) when `causal`, else (channels, 2 length - 1), in float32.

    Raises:
        ValueError: for a length or dtype that `monarch_suits` denies.
    """
    return _gradients(g, x, None, causal)[1]


def monarch_gradients(
    g: Tensor,
    x: Tensor,
    kernel: Tensor,
    causal: bool,
    *,
    programs: int = PROGRAMS,
    block_bytes: int = BLOCK_BYTES,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the product in x and in the kernel, transforming g once.

    Args:
        g: (batch, channels, length), as for `monarch_kernel_gradient`.
        x: likewise.
        kernel: as for `monarch_product`, and so all that follows.
        causal: whether outputs see the past and the present only.
        programs: see there.
        block_bytes: see there.

    Returns:
        dx, (batch, channels, length) in the dtype of `x`, contiguous; dk, in the shape of `kernel` in float32.

    Raises:
        ValueError: for a length or dtype that `monarch_suits` denies.
    """
    return _gradients(g, x, kernel, causal, programs, block_bytes)


def _gradients(
    g: Tensor,
    x: Tensor,
    kernel: Tensor | None,
    causal: bool,
    programs: int = PROGRAMS,
    block_bytes: int = BLOCK_BYTES,
) -> tuple[Tensor, Tensor]:
    batch, channels, length = x.shape
    plan = _plan(length, x.dtype)
    g, x = _rows_apart(g), _rows_apart(x)
    splits, rows = _split(batch, channels, programs)
    taps = torch.empty((channels, length if causal else 2 * length - 1), dtype=torch.float32, device=x.device)
    dx = taps if kernel is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        tables, sizes = _tables_of(x, plan)
        held, kept = _WAITING.get((plan[0] * plan[1], sizes["PAIR"]), (True, 0))
        for c in _blocks(x, plan, splits, block_bytes):
            some = len(taps[c])
            partial = torch.empty((some, splits, 2, *plan[:2]), dtype=torch.float32, device=x.device)
            store = torch.empty((some, splits, kept, *partial.shape[2:]), dtype=tables[2].dtype, device=x.device)
            # Without a kernel these are not looked at.
            spectrum, scale = (partial, partial) if kernel is None else _spectrum(kernel[c], causal, x, tables, sizes)
            gradients_kernel[(some * splits,)](
                g[:, c],
                x[:, c],
                dx if kernel is None else dx[:, c],
                partial,
                store,
                spectrum,
                scale,
                *tables,
                length,
                batch,
                splits,
                rows,
                *g.stride()[:2],
                *x.stride()[:2],
                *dx.stride()[:2],
                DX=kernel is not None,
                HELD=held,
                KEPT=kept,
                **sizes,
            )
            taps_kernel[(some,)](partial, taps[c], *tables, length, splits, CAUSAL=causal, **sizes)
    return dx, taps


def _spectrum(
    kernel: Tensor, causal: bool, x: Tensor, tables: tuple[Tensor, ...], sizes: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return K / s, (channels, 2, N1, N2), at most 1 in real and imaginary part, and s, (channels,)."""
    channels = kernel.shape[0]
    if kernel.stride(1) != 1:
        kernel = kernel.contiguous()  # small: it has no batch
    spectrum = torch.empty((channels, 2, sizes["N1"], sizes["N2"]), dtype=tables[2].dtype, device=x.device)
    scale = torch.empty(channels, dtype=torch.float32, device=x.device)
    arguments = (kernel, spectrum, scale, *tables, x.shape[-1], kernel.stride(0))
    spectrum_kernel[(channels,)](*arguments, CAUSAL=causal, **sizes)
    return spectrum, scale


def _blocks(x: Tensor, plan: tuple[int, int, int], splits: int, block_bytes: int) -> Iterator[slice]:
    """Yield slices of channels whose spectra and sums keep within a bound of memory."""
    channels = x.shape[1]
    block = max(1, block_bytes // (16 * plan[0] * plan[1] * splits))
    for start in range(0, channels, block):
        yield slice(start, start + block)


def _plan(length: int, dtype: torch.dtype) -> tuple[int, int, int]:
    if not monarch_suits(length, dtype):
        limits = ", ".join(f"{longest} in {of}" for of, longest in _LONGEST.items())
        raise ValueError(f"rows of {length} samples in {dtype} do not suit: lengths from 1 to {limits}.")
    return _PLANS[max(256, triton.next_power_of_2(length))]


def _split(batch: int, channels: int, programs: int = PROGRAMS) -> tuple[int, int]:
    """Return in how many parts a batch is cut, and the rows of each but the last."""
    rows = min(batch, max(1, batch * channels // programs))
    splits = -(-batch // rows)
    return splits, -(-batch // splits)


def _rows_apart(x: Tensor) -> Tensor:
    """Return x with time contiguous.

    With strided time, as of a transposed (batch, length, channels), each sample is fetched in a sector of 32 bytes:
    5.8 ps a sample from the second-level cache of an H200, where a copy takes about 1 ps (a model, not a measurement).
    """
    return x if x.stride(-1) == 1 else x.contiguous()


def _tables_of(x: Tensor, plan: tuple[int, int, int]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    first, second, warps = plan
    pair = x.dtype == torch.float32
    sizes = {"N1": first, "N2": second, "PAIR": pair, "num_warps": warps, "num_stages": 1}
    return _tables(first, second, pair, x.device), sizes


@lru_cache(maxsize=64)
def _tables(first: int, second: int, pair: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return F1, F2 and the turns T, 1 / (T N2) of `monarch_parts.py`, rounded from float64.

    Returns:
        (2 or 4, N1, N1) and (2 or 4, N2, N2) in float16: real, imaginary and, if `pair`, what rounding leaves of each,
        times 2048; (4, N1, N2) in float32 if `pair`, else float16.
    """
    rows = torch.arange(first, dtype=torch.float64) + 0.25
    columns = torch.arange(second, dtype=torch.float64)
    turns = _unit_circle(rows[:, None] * columns / (first * second))
    back = turns * torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None] / second
    turns = torch.cat([turns, back]).to(torch.float32 if pair else torch.float16)
    matrices = (
        _unit_circle(rows[:, None] * torch.arange(first, dtype=torch.float64) / first),
        _unit_circle(columns[:, None] * columns / second),
    )
    f1, f2 = (_factors(matrix, pair) for matrix in matrices)
    return f1.to(device), f2.to(device), turns.to(device)


def _unit_circle(turns: Tensor) -> Tensor:
    """Return exp(-2 pi i turns) as (2, ...): real, imaginary."""
    angles = -2 * pi * (turns % 1.0)
    return torch.stack([angles.cos(), angles.sin()])


def _factors(matrix: Tensor, pair: bool) -> Tensor:
    high = matrix.half()
    return torch.cat([high, ((matrix - high) * 2048).half()]) if pair else high


def _shared_bytes(length: int, dtype: torch.dtype, reads_both_ways: bool) -> int:
    """Return the bytes of the matrices and of a row, compiled for sm_90 if matrices are read both ways, else sm_80."""
    first, second, _ = _plan(length, dtype)
    copies = 1 if reads_both_ways else 2
    return (8 if dtype == torch.float32 else 4) * (copies * first * first + second * second + first * second)
