"""Heads of one degree: their projections, their product, and the numbers that a cache keeps of them."""

from itertools import pairwise

import torch
from torch import Tensor

from ...modules.products import PolynomialProduct
from ...modules.sharding import split_heads
from ...ops.common.dispatch import cast, compute_dtype
from ...ops.polynomial.product import StageRows, own_form, row_factors, row_kinds, row_widths, sum_rows, sum_widths
from .factor_group import FactorGroup

__all__ = ["PolynomialGroup"]


class PolynomialGroup(FactorGroup):
    """Heads of one degree, the product of their projections, and how a cache packs what the product adds up.

    Args:
        hidden_size: channels in.
        degree: at least 2; see `FactorGroup` for fractions.
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
        super().__init__(hidden_size, degree, num_heads, head_dim, degree_form, use_bias)
        number = len(self.factors)
        self.product = PolynomialProduct()
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

    def mix(
        self,
        factors: list[Tensor],
        real: Tensor | None,
        causal: bool,
        weights: Tensor | None = None,
        sums: Tensor | None = None,
        recent: Tensor | None = None,
        held: Tensor | None = None,
    ) -> tuple[Tensor, list[StageRows]]:
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
            own_form(len(factors), self.degree_form),
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

    def fold(self, rows: Tensor) -> Tensor:
        """Sum packed rows, (batch, steps, row_width), into packed sums, (batch, sum_width), of as many heads."""
        totals = sum_rows(self._unpack_rows(rows))  # not reshaped, since there may be no row
        return torch.cat([x.flatten(1) if x.ndim > 1 else x.unsqueeze(-1) for x in totals], dim=-1)

    def _unpack_rows(self, rows: Tensor) -> list[StageRows]:
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
