"""Heads of one degree and their projections."""

import math

import torch
from torch import Tensor, nn

from ...ops.common.dispatch import cast, compute_dtype
from ...ops.polynomial.product import StageRows
from ...ops.polynomial.stages import signed_power
from .factor_linear import FactorLinear

__all__ = ["FactorGroup", "LowRankLinear"]


class LowRankLinear(nn.Module):
    """Affine map of low rank: y = x A B + b, A of shape (in_features, rank), B of shape (rank, out_features).

    Args:
        in_features: channels in.
        out_features: channels out.
        rank: the rank.
        bias: whether b is added.
    """

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        self.down_proj = FactorLinear(in_features, rank, bias=False)
        self.up_proj = FactorLinear(rank, out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return self.up_proj(self.down_proj(x))


class FactorGroup(nn.Module):
    """Heads of one degree of a `PolynomialMixer`: ceil(degree) projections.

    With a fractional degree d one factor passes through the signed power of exponent a = d - floor(d). The factor is
    the query for 2 < d < 3, so that the product is <sgnpow(q_t, d - 2), k_s> v_s, and the last factor otherwise. The
    projection of this factor has rank a D w / (D + w), with w = num_heads * head_dim: a D w weights, a share a of a
    full projection.

    Args:
        hidden_size: D, channels in.
        degree: at least 2.
        num_heads: heads of this degree.
        head_dim: channels of a head.
        degree_form: of the mixer, whose other heads may have it alone; see `own_form`.
        use_bias: whether projections are affine.
    """

    def __init__(
        self,
        hidden_size: int,
        degree: float,
        num_heads: int,
        head_dim: int,
        degree_form: str = "cumsum",
        use_bias: bool = True,
    ) -> None:
        super().__init__()
        self.degree = degree
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.degree_form = degree_form
        self.exponent = degree - math.floor(degree)
        number, channels = math.ceil(degree), num_heads * head_dim
        self.power_factor = None if self.exponent == 0 else 0 if number == 3 else number - 1
        self.factors = nn.ModuleList()
        for k in range(number):
            if k == self.power_factor:
                rank = max(1, round(self.exponent * hidden_size * channels / (hidden_size + channels)))
                self.factors.append(LowRankLinear(hidden_size, channels, rank, use_bias))
            else:
                self.factors.append(FactorLinear(hidden_size, channels, bias=use_bias))

    def project(self, hidden_states: Tensor) -> list[Tensor]:
        """Return the factors, each (batch, length, num_heads * head_dim), for (batch, length, hidden_size)."""
        factors = [projection(hidden_states) for projection in self.factors]
        if self.power_factor is not None:
            factors[self.power_factor] = signed_power(factors[self.power_factor], self.exponent)
        return factors

    def pack_rows(self, rows: list[StageRows]) -> Tensor:
        """Lay what the stages add up side by side, (batch, length, row_width(heads)) in float32 (float64)."""
        parts = [part.flatten(2) if part.ndim > 2 else part.unsqueeze(-1) for stage in rows for part in stage]
        dtype = compute_dtype(parts[0].dtype)
        return torch.cat([cast(part, dtype) for part in parts], dim=-1)
