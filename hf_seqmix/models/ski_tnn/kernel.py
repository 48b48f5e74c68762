"""The kernel of SKI-TNN's smooth part: piecewise linear over an inverse time warp."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...modules.sharding import own_values
from ...ops.common.dispatch import without_autocast
from ...ops.common.invariance import is_batch_invariant
from ..toeplitz.channel_decays import by_channel

__all__ = ["InverseTimeWarpKernel"]


class InverseTimeWarpKernel(nn.Module):
    """Evaluate k(t) = s PL(x(t)) with x(t) = sign(t) lambda^|t|, sign(0) = 1.

    PL is piecewise linear on [-1, 1] with knots at j / r, j = -r..r, and PL(0) = 0. So k vanishes at infinity, and any
    lag, however great, falls inside the trained interval. Always in float32 (float64 for float64 weights). Source:
    Moreno, Mei, Walters 2023 (arXiv 2305.09028), section 3.2.2. 2 r m parameters for m channels. Departures: s is
    n^-1/2 for n = length_scale positions instead of 1, and s times a knot begins as N(0, 1 / n^2) instead of N(0, 1).
    The kernel is smooth, so that inputs with a mean are summed over all lags. At N(0, 1) outputs are larger than
    inputs by the length, and a convolution beside them is lost. An optimizer that moves a knot by its learning rate
    moves the sum over n tokens by n s times that. With s = 1, models of 500 updates of AdamW were worse than with the
    convolution alone.

    Args:
        channels: m.
        num_knots: r, knots on each side of zero.
        decay: lambda, strictly between 0 and 1; at 1 the warp would be a sign and the kernel two constants. With n of
            them, channel c has number floor(c n / m).
        length_scale: n, number of positions that outputs sum over, so that they begin no larger than the inputs.
        scaled: whether s is n^-1/2; 1 otherwise, as in versions up to 0.2.
    """

    def __init__(
        self,
        channels: int,
        num_knots: int,
        decay: float | Sequence[float],
        length_scale: float,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        self.decay = tuple(decay) if isinstance(decay, Sequence) else decay
        if not 1 <= len(self._decays) <= channels:
            raise ValueError(f"there are {len(self._decays)} decays, but {channels} channels: give each at least one.")
        if not all(0 < number < 1 for number in self._decays):
            raise ValueError(
                f"decay is {decay}; the inverse time warp needs a number strictly between 0 and 1, such as "
                "exp(-5 / length): at 1 it maps every lag to its sign."
            )
        if num_knots < 1:
            raise ValueError(f"num_knots is {num_knots}; at least 1 is needed.")
        self.num_knots = num_knots
        self.length_scale = length_scale
        self.scale = length_scale**-0.5 if scaled else 1.0
        self.past_knots = nn.Parameter(torch.empty(channels, num_knots))  # x = 1/r, .., 1: lags from far to 0
        self.future_knots = nn.Parameter(torch.empty(channels, num_knots))  # x = -1/r, .., -1: lags from far to -1
        self.init_weights()

    @property
    def _decays(self) -> tuple[float, ...]:
        """The decays of the blocks of channels."""
        return self.decay if isinstance(self.decay, tuple) else (self.decay,)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the kernel is computed, and which its lags need."""
        return torch.promote_types(self.past_knots.dtype, torch.float32)

    def init_weights(self, config: Any = None) -> None:
        """Draw the knots; `config` does not matter to them."""
        for knots in (self.past_knots, self.future_knots):
            init.normal_(knots, std=1 / (self.scale * self.length_scale))

    def forward(self, lags: Tensor) -> Tensor:
        """Evaluate the kernel.

        Args:
            lags: (points,), in tokens, positive in the past, not necessarily integers.

        Returns:
            (channels, points).
        """
        dtype = self.dtype
        with without_autocast(lags.device.type):
            lags = lags.to(dtype)
            places = torch.arange(1, self.num_knots + 1, device=lags.device, dtype=dtype)
            # Hat functions: linear between neighboring knots, and from the first knot down to 0 at x = 0.
            knots = [torch.exp(lags.abs() * math.log(decay)) * self.num_knots for decay in self._decays]  # in (0, r]
            hats = torch.cat([(1 - (knot - places.unsqueeze(-1)).abs()).clamp(min=0) for knot in knots])
            past = (lags >= 0).to(dtype)
            # (channels, decays x r) knots times (decays x r, points) hats
            before, after = self._at_decays(self.past_knots, lags), self._at_decays(self.future_knots, lags)
            return self.scale * (_product(before, hats * past) + _product(after, hats * (1 - past)))

    def _at_decays(self, weight: Tensor, lags: Tensor) -> Tensor:
        """Return the knots of this device's channels, (channels, decays x r), zero at the decays of other channels."""
        knots, count = own_values(weight).to(lags.dtype), len(self._decays)
        if count == 1:
            return knots
        chosen = [[float(block == own) for block in range(count)] for own in range(count)]
        is_own = torch.cat([by_channel(row, weight.shape[0], lags, weight) for row in chosen], dim=1)
        return (knots.unsqueeze(1) * is_own.unsqueeze(2)).flatten(1)

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        decays = ", ".join(f"{decay:.6g}" for decay in self._decays)
        return (
            f"channels={self.past_knots.shape[0]}, num_knots={self.num_knots}, decay={decays}, scale={self.scale:.6g}"
        )


def _product(knots: Tensor, hats: Tensor) -> Tensor:
    """Return knots @ hats, (channels, points)."""
    # A fixed order is one of rows, and how many points there are must not matter.
    return (hats.T @ knots.T).T if is_batch_invariant() else knots @ hats
