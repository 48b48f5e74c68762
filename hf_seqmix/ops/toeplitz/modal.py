"""A causal convolution whose kernel is exact first taps and decaying modes, as a window of inputs and a state.

Outputs depend on all but the last inputs through one complex number a mode and channel, the state

    s[c, m] = w[c, m] sum_(j before the window) p[m]^(start - 1 - j) x[c, j],

where the window begins at position `start`. From L - 1 positions after the start on, the state adds
Re sum_m p[m]^(t - start + 1 - L) s[c, m] to the output at t. `distillation.py` makes the modes.
"""

from typing import Any

import torch
from torch import Tensor

from ..common.dispatch import compute_dtype, without_autocast
from .distillation import modal_taps, mode_powers

__all__ = ["ModalKernel"]

MOST_KEPT = 1024
"""Taps that are kept for further calls, as those of chunks and of windows."""


class ModalKernel:
    """Taps, and powers of the poles, in the dtype that sums are computed in; never changed, so that copies share it.

    Args:
        exact: (channels, L), the taps of lags 0 to L - 1.
        poles: (modes,) complex128.
        weights: (channels, modes) complex128, those of lag L.
        dtype: that of inputs; the kernel is in float64 for float64, else in float32.

    Raises:
        ValueError: for numbers of channels that differ.
    """

    def __init__(self, exact: Tensor, poles: Tensor, weights: Tensor, dtype: torch.dtype = torch.float32) -> None:
        if len(exact) != len(weights):
            raise ValueError(
                f"there are exact taps of {len(exact)} channels and modes of {len(weights)}: under tensor parallelism "
                "a device has some of the channels only; undo_distillation() before the model is split."
            )
        self.dtype = compute_dtype(dtype)
        self.exact = exact.detach().to(self.dtype)
        self._poles, self._modes = poles.to(exact.device), weights.to(exact.device)
        self._weights = self._modes.to(torch.promote_types(self.dtype, torch.complex64))
        self._taps = self.exact
        self._powers = self._weights[:0]  # (known, modes)
        self._pairs = self.exact[:0]  # (known, 2 modes), their real parts and minus their imaginary ones

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModalKernel":
        return self

    @property
    def reach(self) -> int:
        """L, number of exact taps."""
        return self.exact.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the kernel is."""
        return self.exact.device

    def first(self, length: int) -> Tensor:
        """Return the taps of lags 0 to length - 1, (channels, length), the modes' from L on."""
        if self._taps.shape[1] >= length:
            return self._taps[:, :length]
        tail = modal_taps(self._poles, self._modes, length - self.reach)
        taps = torch.cat([self.exact, tail.to(self.dtype)], dim=1)
        if length <= MOST_KEPT:  # those of a long prompt are wanted once, and memory is to be flat
            self._taps = taps
        return taps

    def advance(self, state: Tensor | None, inputs: Tensor, steps: Tensor | None = None) -> Tensor:
        """Take inputs, which leave the window, into the state.

        Args:
            state: (batch, channels, modes) complex; None for zeros.
            inputs: (batch, leaving, channels).
            steps: (batch,), by how many positions the window begins later in each row; `leaving` if not given. Then
                the first inputs, up to that many last ones, are zeros.

        Returns:
            (batch, channels, modes), the new state.
        """
        count = inputs.shape[1]
        powers = torch.view_as_real(self._power(count).flip(0)).flatten(1)  # (leaving, 2 modes)
        with without_autocast(inputs.device.type):
            added = torch.matmul(inputs.transpose(1, 2).to(self.dtype), powers).unflatten(-1, (-1, 2))
        new = torch.view_as_complex(added) * self._weights
        if state is None:
            return new
        decay = self._power(count + 1)[count if steps is None else steps.unsqueeze(1)]
        return state * decay + new

    def outputs(self, state: Tensor, first: int, count: int, late: Tensor | None = None) -> Tensor:
        """Return what the state adds to outputs.

        Args:
            state: (batch, channels, modes) complex.
            first: position of the first output, counted from the start of the window; at least L - 1.
            count: number of outputs.
            late: (batch,), by how many positions the window of each row begins later; outputs that are then nearer
                than L - 1 to the start are undefined.

        Returns:
            (batch, count, channels).
        """
        lag = first + 1 - self.reach
        self._power(lag + count)
        if late is None:
            pairs = self._pairs[lag : lag + count]
        else:
            places = torch.arange(lag, lag + count, device=late.device) - late.unsqueeze(1)
            pairs = self._pairs[places.clamp(min=0)]  # (batch, count, 2 modes)
        with without_autocast(pairs.device.type):
            return torch.matmul(pairs, torch.view_as_real(state).flatten(-2).transpose(1, 2))

    def _power(self, count: int) -> Tensor:
        """Return the powers 0 to count - 1 of the poles, (count, modes)."""
        if len(self._powers) < count:
            powers = mode_powers(self._poles, max(count, 2 * len(self._powers)))
            self._powers = powers.to(self._weights.dtype)
            self._pairs = torch.view_as_real(self._powers.conj().resolve_conj()).flatten(1)
        return self._powers[:count]
