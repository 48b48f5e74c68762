"""Heads of one degree whose sums fade by gates, or weigh values by powers: their product, and what a cache keeps."""

import torch
from torch import Tensor

from ...modules.sharding import split_heads
from ...ops.polynomial.gated_product import fade, gated_product, gated_sum_shapes, sum_gated_rows
from ...ops.polynomial.product import StageRows, own_form, row_kinds, row_widths
from .factor_group import FactorGroup
from .forget_gate import ForgetGate, log_gates

__all__ = ["GatedGroup"]


class GatedGroup(FactorGroup):
    """Heads of one degree whose product is `gated_product`.

    Args:
        hidden_size: channels in.
        degree: of the product with power 1, an integer from 2 on; 3 with a power or a denominator. The attribute
            `degree` is 2 p + 1 with a power p.
        num_heads: heads of this degree.
        head_dim: channels of a head.
        degree_form: "cumsum" or "gate", see `gated_product`; of the mixer, whose other heads may have it alone.
        use_bias: whether the projections of the factors are affine.
        forget_gate: whether sums fade by the gates of `ForgetGate`.
        power: p, of the products of queries and keys.
        denominator: whether the sum of the weights divides.
    """

    def __init__(
        self,
        hidden_size: int,
        degree: int,
        num_heads: int,
        head_dim: int,
        degree_form: str = "cumsum",
        use_bias: bool = True,
        *,
        forget_gate: bool = False,
        power: int = 1,
        denominator: bool = False,
    ) -> None:
        super().__init__(hidden_size, degree, num_heads, head_dim, degree_form, use_bias)
        self.gate_proj = ForgetGate(hidden_size, num_heads) if forget_gate else None
        self.power = power
        self.denominator = denominator
        kinds = row_kinds(len(self.factors), degree_form)
        if power > 1:
            self.degree = 2 * power + 1
        self.row_parts = [len(row_widths(kind, head_dim)) for kind in kinds[1:]]
        self.sum_shapes = gated_sum_shapes(kinds, head_dim, power, denominator)
        self.sum_widths = [torch.Size(shape).numel() for shape in self.sum_shapes]

    @property
    def forgets(self) -> bool:
        """Whether sums fade."""
        return self.gate_proj is not None

    def row_width(self, heads: int) -> int:
        """Return how many numbers a token has in packed rows of so many heads."""
        return 1 + heads * (int(self.forgets) + sum(self.row_parts) * self.head_dim)

    def sum_width(self, heads: int) -> int:
        """Return how many numbers the packed sums of so many heads have."""
        return heads * sum(self.sum_widths)

    def project(self, hidden_states: Tensor) -> list[Tensor]:
        """Return the factors, each (batch, length, channels), and log gates, (batch, length, heads), where there are.

        Zeros at pads are right for both: a gate of 1 lets nothing fade.
        """
        factors = super().project(hidden_states)
        return factors if self.gate_proj is None else [*factors, log_gates(self.gate_proj(hidden_states))]

    def mix(
        self,
        factors: list[Tensor],
        real: Tensor | None,
        causal: bool,
        weights: Tensor | None = None,
        sums: Tensor | None = None,
        recent: Tensor | None = None,
    ) -> tuple[Tensor, list[StageRows]]:
        """Multiply the factors.

        Args:
            factors: as `project` returns them, zero at pads.
            real: (batch, length), nonzero at real tokens; None when all are.
            causal: whether a token sees no later ones.
            weights: None, since no degree is soft.
            sums: (batch, sum_width(heads)), what `fold` returned for the tokens before; None for none.
            recent: (batch, steps, row_width(heads)), rows of further tokens before; None for none.

        Returns:
            (batch, length, heads, head_dim) in float32 (float64), with as many heads as the factors have channels for
            (all, or those of this device), and the rows, as `pack_rows` takes them.
        """
        number = len(self.factors)
        product = gated_product(
            [split_heads(x, self.head_dim) for x in factors[:number]],
            factors[number] if self.forgets else None,
            own_form(number, self.degree_form),
            power=self.power,
            denominator=self.denominator,
            real=real,
            causal=causal,
            sums=None if sums is None else self._unpack_sums(sums),
            recent=None if recent is None else self._unpack_rows(recent),
        )
        return product.y, product.rows

    def fold(self, rows: Tensor) -> Tensor:
        """Sum packed rows, (batch, steps, row_width), each faded by the rest, into packed sums, (batch, sum_width)."""
        sums = sum_gated_rows(self._unpack_rows(rows), self.power, self.denominator)
        return torch.cat([x.flatten(2) if x.ndim > 2 else x.unsqueeze(-1) for x in sums], dim=-1).flatten(1)

    def carry(self, sums: Tensor, rows: Tensor) -> Tensor:
        """Return what is left of packed sums after further packed rows."""
        if not self.forgets:
            return sums
        gates = self._unpack_rows(rows)[0][1]
        (left,) = fade([sums.unflatten(-1, (gates.shape[-1], -1))], gates)
        return left.flatten(1)

    def _unpack_rows(self, rows: Tensor) -> list[StageRows]:
        parts = sum(self.row_parts)
        heads = (rows.shape[-1] - 1) // (int(self.forgets) + parts * self.head_dim)
        first, rest = rows[..., : 1 + heads * int(self.forgets)], rows[..., 1 + heads * int(self.forgets) :]
        flags: StageRows = (first[..., 0], first[..., 1:]) if self.forgets else (first[..., 0],)
        each = iter(rest.unflatten(-1, (parts, -1, self.head_dim)).unbind(-3))
        return [flags, *(tuple(next(each) for _ in range(number)) for number in self.row_parts)]

    def _unpack_sums(self, sums: Tensor) -> list[Tensor]:
        by_heads = sums.unflatten(-1, (-1, sum(self.sum_widths))).split(self.sum_widths, dim=-1)
        return [x.reshape(*x.shape[:2], *shape) for x, shape in zip(by_heads, self.sum_shapes, strict=True)]
