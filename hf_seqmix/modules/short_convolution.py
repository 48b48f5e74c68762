"""A short convolution of each channel over neighboring tokens."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..ops.common.invariance import is_batch_invariant
from ..ops.common.ordering import inverse_order, places_first
from ..ops.layout import TokenLayout, token_layout
from ..ops.rows import RowOperation
from ..ops.short_convolution.product import short_conv, short_conv_step
from .sharding import own_values

__all__ = ["INITS", "ShortConvolution"]

INITS = ("identity", "uniform")
"""How taps begin, see `ShortConvolution`."""


class ShortConvolution(nn.Module):
    """Convolve each channel over neighboring tokens with taps of its own.

    y[i] = sum_t w[t] x[i - t], with t from 0 to taps - 1 when causal, else from -(taps - 1) / 2 to (taps - 1) / 2, and
    zeros outside of the sequence. The parameter `weight` is (channels, taps), in the order of t: the newest token that
    an output sees first.

    Sources: H3 (Fu et al. 2022, arXiv 2212.14052) convolves its keys by what it calls a shift state space model. Mamba
    (Gu, Dao 2023, arXiv 2312.00752) and all linear models of zoology (Arora et al. 2023, arXiv 2312.04927) have such a
    convolution; Canon layers (Allen-Zhu 2025) are the same beside other mixers. With two taps this is the token shift
    of RWKV (Peng et al. 2023, arXiv 2305.13048), there with weights m and 1 - m. No bias, and no activation after it.

    Args:
        channels: channels in and out.
        taps: their number, at least 1, and odd unless causal.
        is_causal: whether an output sees the past and its own token only.
        start: "identity", taps that change nothing; or "uniform", U(+-1 / sqrt(taps)), as PyTorch draws them.

    Raises:
        ValueError: for no taps, an even number of centered ones, and an unknown start.
    """

    def __init__(self, channels: int, taps: int, is_causal: bool = True, start: str = "identity") -> None:
        super().__init__()
        if taps < 1:
            raise ValueError(f"taps is {taps}; a short convolution has at least 1 tap.")
        if not is_causal and taps % 2 == 0:
            raise ValueError(f"taps is {taps}; a centered convolution (is_causal=False) needs an odd number.")
        if start not in INITS:
            raise ValueError(f"start is {start!r}; it must be one of {', '.join(map(repr, INITS))}.")
        self.weight = nn.Parameter(torch.empty(channels, taps))
        self.is_causal, self.start = is_causal, start
        self.init_weights()

    def init_weights(self, config: Any = None) -> None:
        """Draw the taps."""
        if self.start == "uniform":
            bound = 1 / math.sqrt(self.taps)
            init.uniform_(self.weight, -bound, bound)
            return
        identity = torch.zeros_like(self.weight)
        identity[:, self.ahead] = 1
        init.copy_(self.weight, identity)

    @property
    def taps(self) -> int:
        """Number of taps."""
        return self.weight.shape[1]

    @property
    def ahead(self) -> int:
        """How many tokens after its own an output sees."""
        return 0 if self.is_causal else self.taps // 2

    def forward(
        self, hidden_states: Tensor, layout: TokenLayout | Tensor | None = None, before: Tensor | None = None
    ) -> Tensor:
        """Convolve along positions.

        Args:
            hidden_states: (batch, length, channels), one sequence a row without a layout.
            layout: where the real tokens of each sequence lie, or (batch, length), 1 at real tokens and 0 at pads.
            before: (batch, taps - 1, channels), the inputs before them; None for zeros. Causal, without a layout.

        Returns:
            (batch, length, channels); pad positions are undefined.

        Raises:
            TypeError: for a layout that is neither.
            ValueError: for earlier inputs of another shape, together with a layout, or of a bidirectional convolution.
        """
        if before is not None:
            self._check_before(hidden_states, layout, before)
        if layout is not None:
            if not isinstance(layout, TokenLayout):
                layout = _layout_of(layout, hidden_states)
            return layout.mix(_ON_ROWS, hidden_states, [own_values(self.weight)], [self.ahead])
        if before is None:
            return _convolve(hidden_states, [own_values(self.weight)], [self.ahead])
        rows = torch.cat([before.to(hidden_states.dtype), hidden_states], dim=1)
        if hidden_states.shape[1] == 1 and not torch.compiler.is_compiling() and not is_batch_invariant():
            return short_conv_step(rows, own_values(self.weight).flip(1))
        return _convolve(rows, [own_values(self.weight)], [0])[:, before.shape[1] :]

    def continued(self, hidden_states: Tensor, before: Tensor, real: Tensor | None) -> Tensor:
        """Convolve over the real tokens of each row, after earlier ones.

        Args:
            hidden_states: (batch, length, channels), zeros at pads.
            before: (batch, taps - 1, channels), the real inputs before them.
            real: (batch, length) bool, True at real tokens; None when all are.

        Returns:
            (batch, length, channels); pad positions are undefined.

        Raises:
            ValueError: for earlier inputs of another shape, or of a bidirectional convolution.
        """
        if real is None:
            return self(hidden_states, before=before)
        self._check_before(hidden_states, None, before)
        # Pads are moved to the very front, where zeros count for nothing.
        count = before.shape[1]
        both = torch.cat([before.to(hidden_states.dtype), hidden_states], dim=1)
        places = places_first(nn.functional.pad(~real, (count, 0)))
        mixed = self(both.gather(1, inverse_order(places).unsqueeze(-1).expand_as(both)))
        back = places[:, count:]
        return mixed.gather(1, back.unsqueeze(-1).expand_as(hidden_states))

    def _check_before(self, hidden_states: Tensor, layout: Any, before: Tensor) -> None:
        if not self.is_causal:
            raise ValueError("a bidirectional convolution does not go on after earlier inputs: pass before=None.")
        if layout is not None:
            raise ValueError("before was given together with a layout, which knows none: call `continued` instead.")
        wanted = (hidden_states.shape[0], self.taps - 1, hidden_states.shape[2])
        if not torch.compiler.is_compiling() and before.shape != wanted:
            raise ValueError(
                f"before has shape {tuple(before.shape)}; it must be {wanted}, the last taps - 1 inputs: put zeros in "
                "front where there were fewer."
            )

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return f"{self.weight.shape[0]}, taps={self.taps}, is_causal={self.is_causal}, start={self.start!r}"


def _layout_of(mask: Any, hidden_states: Tensor) -> TokenLayout:
    if not isinstance(mask, Tensor):
        raise TypeError(f"layout is a {type(mask).__name__}; it must be a tensor, 1 at real tokens, or a TokenLayout.")
    return token_layout(mask, *hidden_states.shape[:2])


def _convolve(rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int]) -> Tensor:
    """Convolve rows (rows, positions, channels): tensors are the taps, settings how many of them look ahead."""
    (weight,), (ahead,) = tensors, settings
    return short_conv(rows.transpose(1, 2), weight.flip(1), weight.shape[1] - 1 - ahead).transpose(1, 2)


_ON_ROWS = RowOperation("hf_seqmix::packed_short_conv_v1", _convolve)
