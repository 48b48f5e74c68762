"""Mixing along the sequence with learned matrices over positions, which do not depend on the content."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...cache import append_history
from ...ops.common.dispatch import has_numbers, without_autocast
from ...ops.layout import TokenLayout
from ...ops.rows import RowOperation
from ..toeplitz.operator import ToeplitzOperator

__all__ = ["LearnedTaps", "TriangularOperator", "build_static_operator"]


def build_static_operator(mixing: str, matrices: int, width: int, max_positions: int, is_causal: bool) -> nn.Module:
    """Build an operator that mixes `matrices` groups of `width` channels, "toeplitz" or "triangular"."""
    if mixing == "toeplitz":
        return ToeplitzOperator(LearnedTaps(matrices, width, max_positions, is_causal), is_causal)
    return TriangularOperator(matrices, width, max_positions, is_causal)


class LearnedTaps(nn.Module):
    """Learned taps k(t) of Toeplitz matrices, zero at lags beyond max_positions - 1.

    Drawn from N(0, 1 / ((|t| + 1) (1 + s ln max_positions))), s = 1 if causal, else 2, so that outputs keep
    the size of inputs at any length.

    Args:
        matrices: number of kernels.
        width: neighboring channels that share one.
        max_positions: lags from 0; bidirectional kernels have as many on either side.
        is_causal: lags 0 to n - 1, or -(n - 1) to n - 1.

    Raises:
        ValueError: for no positions.
    """

    def __init__(self, matrices: int, width: int, max_positions: int, is_causal: bool = True) -> None:
        super().__init__()
        _check_positions(max_positions)
        self.width = width
        self.max_positions = max_positions
        self.is_causal = is_causal
        self.taps = nn.Parameter(torch.empty(matrices, max_positions if is_causal else 2 * max_positions - 1))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self, config: Any = None) -> None:
        """Draw the taps."""
        first = 0 if self.is_causal else 1 - self.max_positions
        lags = torch.arange(first, self.max_positions, device=self.taps.device).abs()
        sides = 1 if self.is_causal else 2
        scale = ((lags + 1) * (1 + sides * math.log(self.max_positions))).rsqrt()
        init.copy_(self.taps, torch.randn_like(self.taps) * scale)

    def check_context_length(self, length: int) -> None:
        """Refuse another length than `max_positions`."""
        if length != self.max_positions:
            raise ValueError(
                f"the context length was to be {length}, but mixing is 'toeplitz' with learned taps for "
                f"{self.max_positions} positions: longer inputs are mixed with zeros beyond, and the context length "
                "cannot be changed."
            )

    def forward(self, length: int, device: torch.device | None = None) -> Tensor:
        """Return taps for sequences of `length`, (channels, length) when causal, else (channels, 2 length - 1)."""
        taps = self.taps.to(torch.promote_types(self.taps.dtype, torch.float32))
        reach = self.max_positions - 1
        origin = 0 if self.is_causal else reach
        # Without a comparison of lengths, so that one compiled graph serves all.
        lags = torch.arange(0 if self.is_causal else 1 - length, length, device=taps.device)
        # The gradient is a sum: selected rows would add theirs up in an order by chance on a GPU.
        taps = taps.unsqueeze(1).expand(-1, self.width, -1).flatten(0, 1)
        taps = taps.index_select(1, lags.clamp(-reach, reach) + origin)
        return taps.masked_fill(lags.abs() > reach, 0)

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return f"{len(self.taps)}, width={self.width}, max_positions={self.max_positions}, is_causal={self.is_causal}"


class TriangularOperator(nn.Module):
    """Apply y_t = sum_s M[t, s] x_s to each channel, M learned and lower triangular; full when bidirectional.

    Positions are counted over the real tokens of each sequence, from 0. Row t is drawn from N(0, 1 / (t + 1)), so that
    outputs keep the size of inputs (N(0, 1 / max_positions) when bidirectional).

    Args:
        matrices: number of matrices M.
        width: neighboring channels that share one.
        max_positions: rows and columns.
        is_causal: whether M is triangular.
        layer_idx: which layer of a cache is this operator's.

    Raises:
        ValueError: for no positions.
    """

    def __init__(
        self, matrices: int, width: int, max_positions: int, is_causal: bool = True, layer_idx: int = 0
    ) -> None:
        super().__init__()
        _check_positions(max_positions)
        self.width = width
        self.max_positions = max_positions
        self.is_causal = is_causal
        self.layer_idx = layer_idx
        self.weight = nn.Parameter(torch.empty(matrices, max_positions, max_positions))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self, config: Any = None) -> None:
        """Draw the matrices; entries above the diagonal of a triangular matrix are zero and stay zero."""
        weight = torch.randn_like(self.weight)
        if self.is_causal:
            rows = torch.arange(1, self.max_positions + 1, device=weight.device)
            weight = torch.tril(weight) * rows.rsqrt().unsqueeze(1)
        else:
            weight = weight * self.max_positions**-0.5
        init.copy_(self.weight, weight)

    def check_context_length(self, length: int) -> None:
        """Refuse another length than `max_positions`."""
        if length != self.max_positions:
            raise ValueError(
                f"the context length was to be {length}, but mixing is 'triangular' with learned matrices of "
                f"{self.max_positions} positions: the context length cannot be changed."
            )

    def forward(self, values: Tensor, layout: TokenLayout, past_key_values: Any = None) -> Tensor:
        """Mix positions.

        Args:
            values: (batch, length, channels), pads of any value.
            layout: where the real tokens lie.
            past_key_values: cache whose history these tokens continue; causal only.

        Returns:
            (batch, length, channels); pad positions are undefined.

        Raises:
            ValueError: for sequences of more than max_positions real tokens.
        """
        if values.shape[1] == 0:
            return values
        if past_key_values is None:
            self._check_length(layout, values.shape[1])
            return layout.mix(_ON_ROWS, values, *self._given(), align=True)
        # A last channel says which places of the history are real.
        flagged = torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)
        history, positions = append_history(past_key_values, self.layer_idx, flagged, layout)
        real = history[..., -1] != 0  # (batch, total), contiguous in each row
        pads = ((~real).long().cumprod(dim=1)).sum(dim=1, keepdim=True)  # (batch, 1), before the first real token
        total = history.shape[1]
        kept = min(total, self.max_positions)
        index = (torch.arange(kept, device=values.device) + pads).clamp(max=total - 1)  # (batch, kept)
        # Places behind the last real token meet the zeros of a triangular matrix, whatever they hold.
        rows = history[..., :-1].gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
        positions = (positions - pads).clamp(min=0)  # (batch, length)
        if not has_numbers(positions):
            self._check_length(layout, values.shape[1])
        elif positions.numel() and int(positions.max()) >= self.max_positions:
            raise _too_long(int(positions.max()) + 1, self.max_positions)
        positions = positions.clamp(max=self.max_positions - 1)
        if values.shape[1] == 1:
            weight = _matrices(self.weight, self.max_positions, self.is_causal)  # (matrices, rows, columns)
            weight = weight[:, positions[:, 0], :kept]  # (matrices, batch, kept)
            rows = rows.to(weight.dtype).unflatten(-1, (-1, self.width))
            with without_autocast(rows.device.type):
                mixed = torch.einsum("mbs,bsmc->bmc", weight, rows).flatten(1).unsqueeze(1)
            return mixed.to(values.dtype)
        mixed = _multiply(rows, *self._given())
        return mixed.gather(1, positions.clamp(max=kept - 1).unsqueeze(-1).expand(-1, -1, values.shape[-1]))

    def _given(self) -> tuple[list[Tensor], list[int]]:
        """Return the tensors and settings of `_multiply`; a graph looks at lengths when it runs."""
        return [self.weight], [self.width, int(self.is_causal), int(torch.compiler.is_compiling())]

    def _check_length(self, layout: TokenLayout, length: int) -> None:
        if torch.compiler.is_compiling() or length <= self.max_positions:
            return
        longest = length if layout.mask is None else int(layout.mask.sum(dim=1).max())
        if layout.sequence_ids is not None:
            longest = layout.longest(length)
        if longest > self.max_positions:
            raise _too_long(longest, self.max_positions)

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return (
            f"{len(self.weight)}, width={self.width}, max_positions={self.max_positions}, is_causal={self.is_causal}"
        )


def _matrices(weight: Tensor, length: int, causal: bool) -> Tensor:
    weight = weight[:, :length, :length]
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
    return torch.tril(weight) if causal else weight


def _multiply(rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int]) -> Tensor:
    """Mix rows whose real tokens stand first.

    Args:
        rows: (rows, length, channels).
        tensors: the matrices, (matrices, max_positions, max_positions).
        settings: channels that share a matrix; whether it is triangular; whether all of the longest row are tokens, of
            which there may not be more than positions.

    Returns:
        The shape of `rows`.
    """
    (weight,), (width, causal, full) = tensors, settings
    length, most = rows.shape[1], weight.shape[1]
    beyond = 0 if torch.compiler.is_compiling() else length - min(length, most)
    if beyond and full:
        raise _too_long(length, most)
    weight = _matrices(weight, length, bool(causal))
    x = rows[:, : length - beyond].to(weight.dtype).unflatten(-1, (-1, width))
    with without_autocast(rows.device.type):
        mixed = torch.einsum("mts,bsmc->btmc", weight, x).flatten(2)
    return nn.functional.pad(mixed, (0, 0, 0, beyond)).to(rows.dtype)


_ON_ROWS = RowOperation("hf_seqmix::packed_triangular_v1", _multiply)


def _too_long(length: int, max_positions: int) -> ValueError:
    return ValueError(
        f"a sequence has {length} tokens, but mixing='triangular' has learned positions 0 to {max_positions - 1} "
        "(max_position_embeddings): shorten the input, or use mixing='toeplitz' or 'content'."
    )


def _check_positions(max_positions: int) -> None:
    if max_positions < 1:
        raise ValueError(f"max_positions is {max_positions}; learned mixing over positions needs at least 1.")
