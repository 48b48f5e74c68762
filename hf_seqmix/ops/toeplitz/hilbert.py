"""From a frequency response on a grid to the taps of a kernel, causal by the discrete Hilbert transform.

The grid is omega_q = pi q / M, q = 0..M: the bins of a real transform of length F = 2M.
"""

import math

import torch
from torch import Tensor

from ..common.dispatch import cast, compute_dtype, dispatch, without_autocast
from ..common.fft import impulse_response
from ..common.trigonometry import cosines

__all__ = ["causal_taps", "hilbert_transform_dense", "two_sided_taps"]


def causal_taps(response: Tensor) -> Tensor:
    """Return the causal kernel whose frequency response has the given real part.

    c = irfft(R, 2M);  k[0] = c[0],  k[t] = 2 c[t] for 0 < t < M,  k[M] = c[M],  and k[t] = 0 for t > M. Then Re
    rfft(k, 2M) = R exactly, and Im rfft(k, 2M) = -H{R} with the discrete Hilbert transform H, which is never formed.
    Source: Moreno, Mei, Walters 2023 (arXiv 2305.09028), section 3.3.1 and algorithm 2. Departure: the published code
    doubles k[M], too, which leaves Re K different from R and changes no output for at most M inputs.

    Args:
        response: (channels, M + 1), real, at omega_q = pi q / M. Computed in float32 (float64 for float64).

    Returns:
        (channels, M + 1), lags 0 to M, in the dtype of `response`.

    Raises:
        ValueError: for a response that is complex or integer, or has no channels or fewer than two frequencies.
    """
    last = _last_lag(response)
    if response.is_complex():
        raise ValueError("the response of a causal kernel is given by its real part, got a complex tensor.")
    given, response = response.dtype, cast(response, compute_dtype(response.dtype))
    if dispatch(response)[0] == "real":
        taps = _even_part(response)
    else:
        taps = impulse_response(response, 2 * last)[..., : last + 1]
    lags = torch.arange(last + 1, device=response.device)
    # The mirror image of c folds onto the lags that have one.
    return cast(taps * torch.where((lags == 0) | (lags == last), 1, 2).to(taps.dtype), given)


def two_sided_taps(response: Tensor, imaginary: Tensor | None = None) -> Tensor:
    """Return the bidirectional kernel with the given complex frequency response.

    c = irfft(K, 2M);  k[t] = c[t] and k[-t] = c[2M - t] for 0 <= t < M. The grid cannot tell lag M from lag -M, which
    only inputs longer than M reach: each gets half of c[M], so that the taps have the response K on the grid. Source:
    Moreno, Mei, Walters 2023 (arXiv 2305.09028), section 3.3.2.

    Args:
        response: (channels, M + 1), complex, or real for an even kernel; its imaginary part at 0 and pi has no effect.
            Computed in float32 (float64 for float64).
        imaginary: (channels, M + 1), its imaginary part, where `response` is the real part alone.

    Returns:
        (channels, 2M + 1), lags -M to M, in the dtype of the real part.

    Raises:
        ValueError: for a response that is integer, or has no channels or fewer than two frequencies; for an imaginary
            part of another shape, or beside a complex response.
    """
    last = _last_lag(response)
    if response.is_complex():
        if imaginary is not None:
            raise ValueError("response is complex, but imaginary is given, too: leave imaginary out.")
        response, imaginary = response.real, response.imag
    given, dtype = response.dtype, compute_dtype(response.dtype)
    response = cast(response, dtype)
    if imaginary is not None:
        if imaginary.shape != response.shape or not imaginary.is_floating_point():
            raise ValueError(
                f"imaginary has shape {tuple(imaginary.shape)} and {imaginary.dtype}; it must be real, of the shape "
                f"of response, {tuple(response.shape)}."
            )
        imaginary = cast(imaginary, dtype)
    if dispatch(response)[0] == "real":
        return cast(_two_sided_by_cosines(response, imaginary), given)
    taps = impulse_response(response if imaginary is None else torch.complex(response, imaginary), 2 * last)
    edge = taps[..., last : last + 1] / 2
    return cast(torch.cat([edge, taps[..., last + 1 :], taps[..., :last], edge], dim=-1), given)


def _two_sided_by_cosines(response: Tensor, imaginary: Tensor | None) -> Tensor:
    """Compute `two_sided_taps` without complex numbers, O(M^2)."""
    last = response.shape[-1] - 1
    even = _even_part(response)
    odd = torch.zeros_like(even) if imaginary is None else _odd_part(imaginary)
    past, future = even - odd, even + odd  # c[t] and c[-t]
    edge = even[..., last:] / 2
    return torch.cat([edge, future[..., 1:last].flip(-1), past[..., :last], edge], dim=-1)


def _even_part(response: Tensor) -> Tensor:
    """Return c[t] = (R[0] + (-1)^t R[M]) / 2M + sum_(0 < q < M) R[q] cos(pi q t / M) / M, (channels, M + 1)."""
    last = response.shape[-1] - 1
    bins = torch.arange(last + 1, device=response.device)
    weights = torch.where((bins == 0) | (bins == last), 1, 2).to(response.dtype) / (2 * last)
    # Autocast would multiply in half precision.
    with without_autocast(response.device.type):
        return (response * weights) @ cosines(bins.unsqueeze(1) * bins, 2 * last, response.dtype)


def _odd_part(imaginary: Tensor) -> Tensor:
    """Return sum_(0 < q < M) I[q] sin(pi q t / M) / M, (channels, M + 1)."""
    last = imaginary.shape[-1] - 1
    bins = torch.arange(last + 1, device=imaginary.device)
    # A quarter of a period after the cosine.
    sines = cosines(2 * bins.unsqueeze(1) * bins - last, 4 * last, imaginary.dtype)
    with without_autocast(imaginary.device.type):
        return imaginary @ sines / last


def hilbert_transform_dense(response: Tensor) -> Tensor:
    """Compute the discrete Hilbert transform from its definition, O(M^2): the oracle of `causal_taps`.

    H{R}[q] = sum_m R[m] h[(q - m) mod F] over the even extension of R to F = 2M bins, h[l] = (2 / F) cot(pi l / F) for
    odd l and 0 for even l. The spectrum of `causal_taps(R)` is R - i H{R}. Source: Moreno, Mei, Walters 2023 (arXiv
    2305.09028), definition 1.

    Args:
        response: (channels, M + 1), real.

    Returns:
        (channels, M + 1).
    """
    last = _last_lag(response)
    bins = 2 * last
    full = torch.cat([response, response[..., 1:last].flip(-1)], dim=-1)  # (channels, 2M), even in q
    lags = torch.arange(bins, device=response.device)
    angles = lags.clamp(min=1).to(response.dtype) * (math.pi / bins)
    weights = torch.where(lags % 2 == 1, (2 / bins) / torch.tan(angles), 0)
    q = torch.arange(last + 1, device=response.device)
    return full @ weights[(q[:, None] - lags[None, :]) % bins].transpose(0, 1)


def _last_lag(response: Tensor) -> int:
    if not (response.is_floating_point() or response.is_complex()):
        raise ValueError(f"a response must be of floating point, got {response.dtype}.")
    if response.ndim < 2 or response.shape[0] == 0:
        raise ValueError(
            f"the response has shape {tuple(response.shape)}; it must be (channels, M + 1) with at least one channel."
        )
    if response.shape[-1] < 2:
        raise ValueError(
            f"a response needs the frequencies 0 and pi at least, got {response.shape[-1]} of them: the grid of "
            "length M has M + 1, M at least 1."
        )
    return response.shape[-1] - 1
