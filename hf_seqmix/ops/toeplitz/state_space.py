"""A causal Toeplitz product as a linear recurrence with one mode for each tap, by one discrete Fourier transform.

Source: Qin & Zhong 2023 ("Accelerating Toeplitz Neural Network with Constant-time Inference Complexity", ETSC). The
taps of n lags and one more, which makes their sum zero, are a sum of powers of the roots of unity of order m = n + 1.

The conversion is here for what it says, not to decode with. Measured against the history of inputs, which it replaces:

* A step costs n / 2 complex multiplications a channel; the product with the history of n inputs costs n real ones.
* The recurrence is exact for lags below n. Beyond, the kernel it implies repeats with period n + 1, times decay^lag:
  with decay 1 that is no kernel that anybody meant; with decay^n near 0 the difference is small.
* All poles are at distance decay from 0. With decay 1 nothing contracts, and in complex64 rounding errors add up: to a
  share of 5e-6 of the output for n = 64, 1e-4 for 512, 3e-3 for 4096. In complex128 they are below 1e-11 there.
* A kernel that has its decay in it must not be divided by decay^lag, which overflows: pass decay 1 for it.
"""

import torch
from torch import Tensor

from ..common.fft import spectrum

__all__ = ["state_space_modes", "state_space_step", "state_space_taps"]


def state_space_modes(taps: Tensor, decay: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return poles p and weights w with decay^l taps[c, l] = Re sum_s w[c, s] p[s]^l for each lag l below n.

    Of two conjugate modes of a real kernel one is kept, with twice the weight (departure: the source keeps both).

    Args:
        taps: (channels, n), lags from 0, without decay; computed in float64.
        decay: per lag, above 0 and at most 1.

    Returns:
        poles: (modes,) complex128, modes = ceil(n / 2).
        weights: (channels, modes) complex128.

    Raises:
        ValueError: for a decay out of range or taps of a wrong shape.
    """
    if taps.ndim != 2 or taps.shape[1] < 1:
        raise ValueError(f"taps have shape {tuple(taps.shape)}: give (channels, taps), one tap or more.")
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay}, but must be above 0 and at most 1.")
    length = taps.shape[1] + 1
    exact = taps.double()
    closed = torch.cat([exact, -exact.sum(dim=1, keepdim=True)], dim=1)  # no constant mode
    numbers = torch.arange(1, length // 2 + 1, dtype=torch.float64, device=taps.device)
    poles = torch.polar(torch.full_like(numbers, decay), numbers * (-2 * torch.pi / length))
    weights = 2 * spectrum(closed, length, torch.float64, scaled=True).conj().resolve_conj()[:, 1:]
    if length % 2 == 0:
        weights[:, -1] /= 2  # the pole at -decay is its own conjugate
    return poles, weights


def state_space_taps(poles: Tensor, weights: Tensor, length: int) -> Tensor:
    """Return the kernel that a recurrence implies, Re sum_s w[c, s] p[s]^l, (channels, length), l from 0."""
    lags = torch.arange(length, dtype=torch.float64, device=poles.device)
    # By angles: a power of a rounded pole is further off.
    powers = torch.polar(poles.abs().unsqueeze(1) ** lags, poles.angle().unsqueeze(1) * lags)  # (modes, length)
    return (weights @ powers.to(weights.dtype)).real


def state_space_step(state: Tensor, x: Tensor, poles: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Add an input to a recurrence: state[c, s] <- p[s] state[c, s] + w[c, s] x[c], y[c] = Re sum_s state[c, s].

    Args:
        state: (batch, channels, modes), complex, zeros at first.
        x: (batch, channels).
        poles: (modes,), in the dtype of the state.
        weights: (channels, modes), in the dtype of the state.

    Returns:
        The new state, and the output, (batch, channels).
    """
    state = poles * state + weights * x.unsqueeze(-1)
    return state, state.real.sum(dim=-1)
