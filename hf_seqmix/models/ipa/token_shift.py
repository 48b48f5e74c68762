"""A short causal convolution of each channel, by which a key sees the tokens just before its own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...ops.common.ordering import inverse_order, places_first
from ...ops.masking import TokenLayout
from ...ops.rows import RowOperation

__all__ = ["TokenShift"]


class TokenShift(nn.Module):
    """Convolve each channel over the last tokens.

    y[i] = sum_t w[t] x[i - t] with t from 0 to width - 1, and zeros before the first token. The taps begin as the
    identity, w = (1, 0, ..., 0). Source: with two taps this is the token shift of RWKV (Peng et al. 2023, arXiv
    2305.13048), there with weights m and 1 - m and before all projections; H3 (Fu et al. 2022, arXiv 2212.14052)
    convolves its keys, after their projection, with what it calls a shift state space model.

    Args:
        channels: channels in and out.
        width: number of taps, at least 1.

    Raises:
        ValueError: for no taps.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width is {width}; a token shift has at least 1 tap.")
        self.weight = nn.Parameter(torch.zeros(channels, width))
        self.weight.data[:, 0] = 1

    def init_weights(self, config: Any = None) -> None:
        """Start from the identity."""
        identity = torch.zeros_like(self.weight)
        identity[:, 0] = 1
        init.copy_(self.weight, identity)

    @property
    def width(self) -> int:
        """Number of taps."""
        return self.weight.shape[1]

    def forward(
        self, hidden_states: Tensor, before: Tensor | None = None, layout: TokenLayout | None = None
    ) -> Tensor:
        """Convolve along positions.

        Args:
            hidden_states: (batch, length, channels), one sequence a row without a layout.
            before: (batch, width - 1, channels), the inputs before them; None for zeros.
            layout: where the real tokens of each sequence lie, without inputs before them.

        Returns:
            (batch, length, channels).
        """
        if layout is not None:
            return layout.mix(_ON_ROWS, hidden_states, [self.weight], [])
        return _shift(hidden_states, [self.weight] if before is None else [self.weight, before])

    def continued(self, hidden_states: Tensor, before: Tensor, real: Tensor | None) -> Tensor:
        """Convolve over the real tokens of each row, after earlier ones.

        Args:
            hidden_states: (batch, length, channels), zeros at pads.
            before: (batch, width - 1, channels), the real inputs before them.
            real: (batch, length) bool, True at real tokens; None when all are.

        Returns:
            (batch, length, channels); pad positions are undefined.
        """
        if real is None:
            return self(hidden_states, before)
        # Pads are moved to the very front, where zeros count for nothing.
        count = before.shape[1]
        both = torch.cat([before, hidden_states], dim=1)
        places = places_first(nn.functional.pad(~real, (count, 0)))
        mixed = self(both.gather(1, inverse_order(places).unsqueeze(-1).expand_as(both)))
        back = places[:, count:]
        return mixed.gather(1, back.unsqueeze(-1).expand_as(hidden_states))

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return f"{self.weight.shape[0]}, width={self.width}"


def _shift(rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int] = ()) -> Tensor:
    """Convolve rows: tensors are the taps and, where they go on, the inputs before them."""
    weight, *before = tensors
    length, width = rows.shape[1], weight.shape[1]
    if before:
        padded = torch.cat([before[0].to(rows.dtype), rows], dim=1)
    else:
        padded = nn.functional.pad(rows, (0, 0, width - 1, 0))
    weight = weight.to(rows.dtype)
    out = rows * weight[:, 0]
    for tap in range(1, width):
        out = out + padded[:, width - 1 - tap : width - 1 - tap + length] * weight[:, tap]
    return out


_ON_ROWS = RowOperation("hf_seqmix::packed_token_shift_v1", _shift)
