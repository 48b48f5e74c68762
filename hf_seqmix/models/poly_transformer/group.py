"""Heads of one degree: their projections, their product, and the numbers that a cache keeps of them."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from ...modules.products import PolynomialProduct
from ...modules.sharding import split_heads
from ...ops.common.dispatch import cast, compute_dtype
from ...ops.polynomial.product import row_factors, row_kinds, row_widths, sum_rows, sum_widths
from ...ops.polynomial.stages import signed_power
from .factor_linear import FactorLinear

__all__ = ["LowRankLinear", "PolynomialGroup"]

Rows = tuple[Tensor, ...]


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


class PolynomialGroup(nn.Module):
    """Heads of one degree of a `PolynomialMixer`: ceil(degree) projections, and their product.

    With a fractional degree d one factor passes through the signed power of exponent a = d - floor(d). The factor is
    the query for 2 < d < 3, so that the product is <sgnpow(q_t, d - 2), k_s> v_s, and the last factor otherwise. The
    projection of this factor has rank a D w / (D + w), with w = num_heads * head_dim: a D w weights, a share a of a
    full projection.

    Args:
        hidden_size: D, channels in.
        degree: at least 2.
        num_heads: heads of this degree.
        head_dim: channels of a head.
        degree_form: see `polynomial_product`.
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
        self.product = PolynomialProduct()
        self.factors = nn.ModuleList()
        for k in range(number):
            if k == self.power_factor:
                rank = max(1, round(self.exponent * hidden_size * channels / (hidden_size + channels)))
                self.factors.append(LowRankLinear(hidden_size, channels, rank, use_bias))
            else:
                self.factors.append(FactorLinear(hidden_size, channels, bias=use_bias))
        self.kinds = row_kinds(number, degree_form)
        self.row_factors = row_factors(number, degree_form)
        # The first kind is one number, whatever the heads.
        self.row_parts = sum(len(row_widths(kind, head_dim)) for kind in self.kinds[1:])
        self.sums_of_head = sum(sum_widths(kind, 1, head_dim) for kind in self.kinds[1:])

    def row_width(self, heads: int) -> int:
        """Return how many numbers a token has in packed rows of so many heads."""
        return 1 + self.row_parts * heads * self.head_dim

    def sum_width(self, heads: int) -> int:
        """Return how many numbers the packed sums of so many heads have."""
        return 1 + self.sums_of_head * heads

    def project(self, hidden_states: Tensor) -> list[Tensor]:
        """Return the factors, each (batch, length, num_heads * head_dim), for (batch, length, hidden_size)."""
        factors = [projection(hidden_states) for projection in self.factors]
        if self.power_factor is not None:
            factors[self.power_factor] = signed_power(factors[self.power_factor], self.exponent)
        return factors

    def mix(
        self,
        factors: list[Tensor],
        real: Tensor | None,
        causal: bool,
        weights: Tensor | None = None,
        sums: Tensor | None = None,
        recent: Tensor | None = None,
        held: Tensor | None = None,
    ) -> tuple[Tensor, list[Rows]]:
        """Multiply the factors.

        Args:
            factors: as `project` returns them, zero at pads.
            real: (batch, length), nonzero at real tokens; None when all are.
            causal: whether a token sees no later ones.
            weights: (3,), of the degrees of a soft one.
            sums: (batch, sum_width(heads)), what `fold` returned for the tokens before; None for none.
            recent: (batch, steps, row_width(heads)), rows of further tokens before; None for none.
            held: `recent` with the rows of these tokens, where they are `given_rows`, instead of `recent`.

        Returns:
            (batch, length, heads, head_dim) in float32 (float64), with as many heads as the factors have channels for
            (all, or those of this device), and the rows, as `pack_rows` takes them.
        """
        # What stages add up, and nothing else is made of, is in `held`.
        whole = () if held is None else self.row_factors or ()
        product = self.product(
            [x if index in whole else split_heads(x, self.head_dim) for index, x in enumerate(factors)],
            self.degree_form,
            real=real,
            causal=causal,
            sums=None if sums is None else self._unpack_sums(sums),
            recent=None if recent is None else self._unpack_rows(recent),
            held=None if held is None else self._unpack_rows(held),
            weights=weights,
        )
        return product.y, product.rows

    def given_rows(self, factors: list[Tensor], real: Tensor | None) -> Tensor:
        """Return what `pack_rows` does of a product whose stages add up factors as they are (`row_factors`)."""
        assert self.row_factors is not None
        like = factors[0]
        dtype = compute_dtype(like.dtype)
        flag = like.new_ones((*like.shape[:2], 1), dtype=dtype) if real is None else real.unsqueeze(-1).to(dtype)
        return torch.cat([flag, *[cast(factors[index], dtype) for index in self.row_factors]], dim=-1)

    def pack_rows(self, rows: list[Rows]) -> Tensor:
        """Lay what the stages add up side by side, (batch, length, row_width(heads)) in float32 (float64)."""
        parts = [part.flatten(2) if part.ndim > 2 else part.unsqueeze(-1) for stage in rows for part in stage]
        dtype = compute_dtype(parts[0].dtype)
        return torch.cat([cast(part, dtype) for part in parts], dim=-1)

    def fold(self, rows: Tensor) -> Tensor:
        """Sum packed rows, (batch, steps, row_width), into packed sums, (batch, sum_width), of as many heads."""
        return torch.cat([total.reshape(len(rows), -1) for total in sum_rows(self._unpack_rows(rows))], dim=-1)

    def _unpack_rows(self, rows: Tensor) -> list[Rows]:
        parts = [rows[..., 0], *rows[..., 1:].unflatten(-1, (self.row_parts, -1, self.head_dim)).unbind(-3)]
        ends = [0]
        for kind in self.kinds:
            ends.append(ends[-1] + (2 if kind == "pair" else 1))
        return [tuple(parts[start:end]) for start, end in pairwise(ends)]

    def _unpack_sums(self, sums: Tensor) -> list[Tensor]:
        a_head = [sum_widths(kind, 1, self.head_dim) for kind in self.kinds[1:]]
        heads = (sums.shape[-1] - 1) // self.sums_of_head
        rest = sums[:, 1:].split([heads * width for width in a_head], dim=-1)
        shape = (heads, self.head_dim)
        shapes = [shape if kind == "mean" else (*shape, self.head_dim) for kind in self.kinds[1:]]
        return [sums[:, 0], *(part.unflatten(-1, shape) for part, shape in zip(rest, shapes, strict=True))]
