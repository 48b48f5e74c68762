"""Products of circulant spectra: the one place that calls torch.fft.

Functions take real tensors whose last dimension is time. Transforms are in float32 (float64 for float64 input), at a
length that is fast. Channels are taken in blocks so small that temporaries stay in the allocator's pool and mostly in
cache.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

__all__ = [
    "channel_blocks",
    "circular_product",
    "correlate",
    "cross_spectrum",
    "fast_length",
    "impulse_response",
    "real_edges",
    "spectrum",
    "step_sizes",
    "stepped_inverse",
    "stepped_spectrum",
]

# On CPU, a block that fits the second-level cache of the cores that work on it measured fastest: 1 MiB a thread. Above
# about 32 MiB, glibc maps and faults every buffer anew. A GPU only needs its peak memory bounded.
_CPU_BYTES_PER_THREAD = 2**20
_CPU_BYTES_MOST = 16 * 2**20
_DEVICE_BYTES = 256 * 2**20


def fast_length(minimum: int) -> int:
    """Return the smallest even 2^a 3^b 5^c 7^d that is at least `minimum` (1 for a minimum of 1 or less)."""
    return _fast_length(int(minimum))  # torch.jit.trace hands lengths over as tensors


@lru_cache(maxsize=4096)
def _fast_length(minimum: int) -> int:
    if minimum <= 1:
        return 1
    best = 1 << (minimum - 1).bit_length()
    power7 = 1
    while power7 < best:
        power5 = power7
        while power5 < best:
            power3 = power5
            while power3 < best:
                power2 = max(2, 1 << (-(-minimum // power3) - 1).bit_length())
                best = min(best, power2 * power3)
                power3 *= 3
            power5 *= 5
        power7 *= 7
    return best


def channel_blocks(batch: int, channels: int, fft_length: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return how many channels to transform at a time.

    Args:
        batch: sequences.
        channels: of each.
        fft_length: transform length in samples.
        dtype: real dtype of the transform.
        device: where it runs; a block's padded input takes about 1 MiB a thread on CPU and 256 MiB elsewhere.
    """
    if device.type == "cpu":
        budget = min(_CPU_BYTES_PER_THREAD * torch.get_num_threads(), _CPU_BYTES_MOST)
    else:
        budget = _DEVICE_BYTES
    row_bytes = max(1, batch) * fft_length * dtype.itemsize
    return max(1, min(channels, budget // row_bytes))


def spectrum(x: Tensor, fft_length: int, dtype: torch.dtype, scaled: bool = False) -> Tensor:
    """Return the real FFT of `x` (..., length), zero-padded to `fft_length`, computed in `dtype`.

    Args:
        x: (..., length), real.
        fft_length: transform length in samples, at least length.
        dtype: float32 or float64.
        scaled: divide by `fft_length`, as `circular_product` wants its kernel.
    """
    return torch.fft.rfft(x.to(dtype), n=fft_length, norm="forward" if scaled else "backward")


def circular_product(x_spectrum: Tensor, kernel_spectrum: Tensor, fft_length: int) -> Tensor:
    """Return the circular convolution of two signals given by their spectra; overwrites `x_spectrum`.

    y = irfft(X K): the 1 / fft_length of the inverse lies in the kernel's spectrum, which has no batch dimension.

    Args:
        x_spectrum: (batch, channels, bins), destroyed.
        kernel_spectrum: (channels, bins), a scaled spectrum.
        fft_length: transform length in samples.
    """
    return torch.fft.irfft(x_spectrum.mul_(kernel_spectrum), n=fft_length, norm="forward")


def step_sizes(fft_length: int) -> tuple[int, int]:
    """Return the numbers of rows and columns by which a transform of a power of two is done in two steps.

    On a CPU, torch plans a transform anew in each call, in a time that grows with the length. For a few signals of
    16,384 samples that was 240 of 260 us (measured); with 128 rows and columns, 45 us in all. Below 4,096 samples one
    step, with one column, is faster.
    """
    columns = 1 if fft_length < 4096 else 1 << (fft_length.bit_length() - 1) // 2
    return fft_length // columns, columns


def _twiddles(rows: int, columns: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors for a tensor; what tells shapes alone is not kept for others."""
    make = _made_twiddles.__wrapped__ if isinstance(like, FakeTensor) else _made_twiddles
    return make(rows, columns, like.dtype.to_real(), like.device)


@lru_cache(maxsize=64)
def _made_twiddles(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return exp(-2 pi i k a / (rows columns)), (rows / 2 + 1, columns), with rows side by side, and its conjugate."""
    with torch.inference_mode(False):
        frequencies = torch.arange(rows // 2 + 1, dtype=torch.float64, device=device)
        places = torch.arange(columns, dtype=torch.float64, device=device)
        angle = frequencies * places.unsqueeze(1) * (-2 * torch.pi / (rows * columns))  # (columns, frequencies)
        forward = torch.polar(torch.ones_like(angle), angle).to(torch.promote_types(dtype, torch.complex64))
        return forward.t(), forward.t().conj().resolve_conj().contiguous()


def stepped_spectrum(x: Tensor, scaled: bool = False) -> Tensor:
    """Return the real FFT of signals of length rows * columns, in two steps; frequencies are in an order of their own.

    Args:
        x: (..., rows, columns) in float32 or float64, sizes from `step_sizes`; fastest with rows side by side.
        scaled: divide by the length, so that `stepped_inverse` of a product is a convolution.

    Returns:
        (..., rows / 2 + 1, columns), complex.
    """
    norm = "forward" if scaled else "backward"
    rows, columns = x.shape[-2:]
    first = torch.fft.rfft(x, dim=-2, norm=norm)
    if columns == 1:
        return first
    return torch.fft.fft(first.mul_(_twiddles(rows, columns, x)[0]), dim=-1, norm=norm)


def stepped_inverse(spectra: Tensor, rows: int) -> Tensor:
    """Return signals given by their `stepped_spectrum`, times their length; overwrites `spectra`.

    Args:
        spectra: (..., rows / 2 + 1, columns), destroyed.
        rows: number of rows.

    Returns:
        (..., rows, columns).
    """
    columns = spectra.shape[-1]
    if columns > 1:
        twiddles = _twiddles(rows, columns, spectra)[1]
        spectra = torch.fft.ifft(spectra, dim=-1, norm="forward").mul_(twiddles)
    return torch.fft.irfft(spectra, n=rows, dim=-2, norm="forward")


def correlate(g_spectrum: Tensor, x_spectrum: Tensor, fft_length: int) -> Tensor:
    """Return r[t] = sum over batch and i of g[i] x[i - t], circularly, from the spectra of g and x.

    The sum over the batch is taken in the spectrum, so that only one inverse transform a channel remains.

    Args:
        g_spectrum: (batch, channels, bins), left as it is.
        x_spectrum: (batch, channels, bins), destroyed.
        fft_length: transform length in samples.

    Returns:
        (channels, fft_length).
    """
    return torch.fft.irfft(cross_spectrum(g_spectrum, x_spectrum), n=fft_length)


def cross_spectrum(g_spectrum: Tensor, x_spectrum: Tensor) -> Tensor:
    """Return sum over batch of conj(X) G, (channels, bins); destroys `x_spectrum`. Arguments as for `correlate`."""
    return x_spectrum.conj_physical_().mul_(g_spectrum).sum(dim=0)


def impulse_response(response: Tensor, fft_length: int) -> Tensor:
    """Return the real signal of length F whose spectrum is `response`: c[t] = irfft(K), t = 0 to F - 1.

    Differentiable. Negative lags stand at F - t.

    Args:
        response: (..., fft_length / 2 + 1) at the frequencies 2 pi q / F, real (an even signal) or complex. Its
            imaginary part at 0 and pi has no effect.
        fft_length: F in samples, even.
    """
    if response.is_complex():
        response = torch.complex(response.real, real_edges(response.imag))
    return torch.fft.irfft(response, n=fft_length)


def real_edges(imaginary: Tensor) -> Tensor:
    """Return the imaginary part of a spectrum, zero in the bins of 0 and pi, as a real signal has it.

    Libraries of transforms differ in what they make of another value: cuFFT does not ignore it.

    Args:
        imaginary: (..., bins), of an even transform length.
    """
    return nn.functional.pad(imaginary[..., 1:-1], (1, 1))
