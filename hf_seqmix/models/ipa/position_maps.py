"""Affine maps of IPA that differ from position to position, or from pair to pair."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .row import draw_linear

__all__ = ["PairMaps", "PositionLinear"]


class PositionLinear(nn.Module):
    """A linear layer with a weight for each position: y[l] = W[l] x[l] + b.

    Args:
        positions: number of positions.
        in_features, out_features: channels.
        is_output: whether it ends a branch, see `draw_linear`.
    """

    def __init__(self, positions: int, in_features: int, out_features: int, is_output: bool = False) -> None:
        super().__init__()
        self.is_output = is_output
        self.weight = nn.Parameter(torch.empty(positions, out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.uniform_(self.weight, -1 / math.sqrt(in_features), 1 / math.sqrt(in_features))

    def init_weights(self, config: Any) -> None:
        """Draw each weight as that of a linear layer; the bias is 0."""
        draw_linear(self.weight, config, self.is_output)
        init.zeros_(self.bias)

    def forward(self, hidden_states: Tensor, positions: Tensor) -> Tensor:
        """Map (batch, length, in) to (batch, length, out), without a weight for each row and position in memory.

        Compiled graphs cannot look at positions: where those differ from row to row, they do have a weight for each.

        Args:
            hidden_states: (batch, length, in_features).
            positions: (batch or 1, length) long.
        """
        weight, bias = self.weight.to(hidden_states.dtype), self.bias.to(hidden_states.dtype)
        if positions.shape[0] == 1:
            return torch.einsum("loi,bli->blo", weight[positions[0]], hidden_states) + bias
        if torch.compiler.is_compiling() or positions.numel() <= len(weight):
            return (weight[positions] @ hidden_states.unsqueeze(-1)).squeeze(-1) + bias
        # The tokens of each position together, whichever rows they are of.
        places = positions.flatten()
        order = places.argsort()
        parts = hidden_states.flatten(0, 1)[order].split(places.bincount(minlength=len(weight)).tolist())
        mapped = torch.cat([part @ own.T for part, own in zip(parts, weight.unbind(), strict=True) if len(part)])
        return mapped[order.argsort()].unflatten(0, positions.shape) + bias

    def extra_repr(self) -> str:
        return f"positions={self.weight.shape[0]}, in_features={self.weight.shape[2]}, out_features={self.weight.shape[1]}"


class PairMaps(nn.Module):
    """Maps of rank k for each pair of positions and centre, summed with kernels: an oracle, far too large to be useful.

    y[l] = sum_j sum_p K[p, l, j] U[p, l, j] (V[p, l, j] x[j] + b[p]) + d. With all pairs equal it is the shared coupling.

    Args:
        positions: m, number of positions.
        channels: channels in and out.
        num_centers: P.
        rank: k.
        is_causal: whether there are pairs (l, j) with j <= l only, m (m + 1) / 2 of them, row after row; else m m.
    """

    def __init__(self, positions: int, channels: int, num_centers: int, rank: int, is_causal: bool) -> None:
        super().__init__()
        self.positions, self.is_causal, self.num_centers = positions, is_causal, num_centers
        pairs = positions * (positions + 1) // 2 if is_causal else positions**2
        self.v_weight = nn.Parameter(torch.empty(pairs, num_centers * rank, channels))
        self.v_bias = nn.Parameter(torch.zeros(num_centers * rank))
        self.o_weight = nn.Parameter(torch.empty(pairs, channels, num_centers * rank))
        self.o_bias = nn.Parameter(torch.zeros(channels))
        for weight in (self.v_weight, self.o_weight):
            nn.init.uniform_(weight, -1 / math.sqrt(weight.shape[-1]), 1 / math.sqrt(weight.shape[-1]))

    def init_weights(self, config: Any) -> None:
        """Draw each weight as that of a linear layer; biases are 0."""
        draw_linear(self.v_weight, config)
        draw_linear(self.o_weight, config, is_output=True)
        init.zeros_(self.v_bias)
        init.zeros_(self.o_bias)

    def forward(self, kernels: Tensor, hidden_states: Tensor) -> Tensor:
        """Sum the maps of all tokens.

        Args:
            kernels: (batch, num_centers, length, length), 0 where a token is not seen.
            hidden_states: (batch, length, channels).

        Returns:
            (batch, length, channels).
        """
        place = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        rows, columns = place.unsqueeze(1), place
        if self.is_causal:
            index = rows * (rows + 1) // 2 + torch.minimum(rows, columns)
        else:
            index = rows * self.positions + columns
        dtype = hidden_states.dtype
        inner = torch.einsum("bjd,ljkd->bljk", hidden_states, self.v_weight.to(dtype)[index]) + self.v_bias.to(dtype)
        inner = inner.unflatten(-1, (self.num_centers, -1)) * kernels.permute(0, 2, 3, 1).unsqueeze(-1)
        return torch.einsum("bljk,ljdk->bld", inner.flatten(-2), self.o_weight.to(dtype)[index]) + self.o_bias.to(
            dtype
        )
