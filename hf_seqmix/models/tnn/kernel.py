"""The kernel of the Toeplitz neural network: an encoder of the lag, times a decay."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...modules.sharding import weight_of
from ...ops.common.dispatch import compute_dtype
from ..configuration import check_integer
from ..toeplitz.channel_decays import log_decays
from ..toeplitz.encoder import RelativePositionEncoder

__all__ = ["ToeplitzKernel"]

NEAR = 256
"""Lags whose taps are compared with those that are left out."""


class ToeplitzKernel(nn.Module):
    """Build taps k(t) = decay^|t| RPE(t) at integer lags; of several decays, each is that of a block of channels.

    Decays are plain numbers, not buffers; their powers are computed in float32 (float64) as exp(|t| ln decay). A tap
    does not depend on how many taps are asked for. Taps are built at each call, so that no weight update can make them
    stale. Source: Qin et al. 2023 (arXiv 2305.04749), sections 3.2 and 3.3.

    Args:
        encoder: maps (points,) lags to (channels, points).
        decay: in (0, 1]; 1 for none. With n of them, channel c of m has number floor(c n / m).
        is_causal: lags 0 to n - 1, or -(n - 1) to n - 1.
        max_lag: taps at greater lags are zero; None for no limit.

    Raises:
        TypeError: for a largest lag that is no integer.
        ValueError: for a decay outside (0, 1], more decays than channels, and a negative largest lag.
    """

    def __init__(
        self,
        encoder: RelativePositionEncoder,
        decay: float | Sequence[float] = 0.99,
        is_causal: bool = True,
        max_lag: int | None = None,
    ) -> None:
        super().__init__()
        check_integer("max_lag", max_lag, low=0)
        self.encoder = encoder
        self.channels = encoder.out_proj.out_features
        self.decay = tuple(decay) if isinstance(decay, Sequence) else decay
        decays = self.decay if isinstance(self.decay, tuple) else (self.decay,)
        if not 1 <= len(decays) <= self.channels:
            raise ValueError(f"there are {len(decays)} decays, but {self.channels} channels: give each at least one.")
        for number in decays:
            if not 0 < number <= 1:
                raise ValueError(f"decay is {number}; it must be greater than 0 and at most 1.")
        self.slowest_decay = max(decays)
        self.is_causal = is_causal
        self.max_lag = max_lag

    def forward(self, length: int, device: torch.device | None = None) -> Tensor:
        """Build the taps for sequences of `length`.

        Args:
            length: number of positions.
            device: where to build them, by default where the weights are. Offloaded weights are fetched only when a
                layer is called, so a mixer gives the device of its input.

        Returns:
            (channels, length) when causal, else (channels, 2 length - 1).
        """
        if self.max_lag is not None and torch.compiler.is_compiling():  # a graph for any length compares no lengths
            first = 0 if self.is_causal else 1 - length
            taps = self.between(first, length, device)
            lags = torch.arange(first, length, device=taps.device)
            return taps.masked_fill(lags.abs() > self.max_lag, 0)
        reach = length - 1 if self.max_lag is None else min(length - 1, self.max_lag)
        taps = self.between(0 if self.is_causal else -reach, reach + 1, device)
        beyond = length - 1 - reach
        return nn.functional.pad(taps, (0 if self.is_causal else beyond, beyond)) if beyond else taps

    def between(self, first: int, last: int, device: torch.device | None = None) -> Tensor:
        """Build the taps of lags first to last - 1, none of them beyond `max_lag`: (channels, last - first)."""
        device = weight_of(self.encoder.out_proj).device if device is None else device
        lags = torch.arange(first, last, device=device, dtype=self.encoder.dtype)
        taps = self.encoder(lags)
        return taps if self.decay == 1 else taps * torch.exp(lags.abs() * self._log_decays(lags))

    def _log_decays(self, like: Tensor) -> float | Tensor:
        """Return ln decay: a number, or (channels that this device has, 1) with the dtype and the device of `like`."""
        return log_decays(self.decay, self.channels, like, weight_of(self.encoder.out_proj))

    @torch.no_grad()
    def end(self, dtype: torch.dtype, device: torch.device | None = None) -> int | None:
        """Return how many first taps of a causal kernel count in sums of a dtype; None where all may.

        With |RPE(t)| <= C (see `RelativePositionEncoder.bound`), |k(t)| at lags from L on sums up to at most
        C decay^L / (1 - decay). L is the least at which this is below the dtype's resolution of the sum of |k(t)| at
        lags before `NEAR`, in each channel, with that channel's decay: for |x| <= 1, no output can tell.

        Args:
            dtype: of the sums.
            device: where to build taps, as in `forward`.
        """
        limit = None if self.max_lag is None else self.max_lag + 1
        bound = self.encoder.bound(device) if self.slowest_decay < 1 else None
        if bound is None:
            return limit
        taps = self(NEAR, device)
        total = taps.to(compute_dtype(taps.dtype)).abs().sum(dim=1)
        rates = (torch.zeros_like(total).unsqueeze(1) + self._log_decays(total)).squeeze(1)
        seen = total * (torch.finfo(dtype).eps * -rates.expm1())
        counts = bound > 0
        lags = (seen[counts].log() - bound[counts].log()) / rates[counts]
        last = float(lags.max()) if len(lags) else 0.0
        if math.isinf(last) or math.isnan(last):
            return limit
        end = max(1, math.ceil(last))
        return end if limit is None else min(end, limit)

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return f"decay={self.decay}, is_causal={self.is_causal}, max_lag={self.max_lag}"
