"""Products of projections whose sums over the past fade by gates, or weigh values by powers of products."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common.dispatch import dispatch
from .power_attention import power_attention, power_sums
from .power_chunks import PowerSums
from .product import PastRows, Product, StageRows, compose
from .symmetric_power import number_of_features

__all__ = ["fade", "gated_product", "gated_sum_shapes", "sum_gated_rows"]


def gated_product(
    factors: Sequence[Tensor],
    log_gates: Tensor | None = None,
    degree_form: str = "cumsum",
    *,
    power: int = 1,
    denominator: bool = False,
    real: Tensor | None = None,
    causal: bool = True,
    form: str = "chunked",
    sums: Sequence[Tensor] | None = None,
    recent: Sequence[StageRows] | None = None,
) -> Product:
    """Multiply projections as `polynomial_product` does, with the gated sums of `power_attention` for its stages.

    With D_ts the product of the gates f_(s+1) ... f_t, and r_s = 1 at real tokens, the stages are

        C(x)_t = sum_(s <= t) D_ts x_s / sum_(s <= t) D_ts r_s,   A(q, k, v) = `power_attention`.

    Without gates, power 1 and no denominator that is `polynomial_product`. A power p is for three factors, whose
    product then has degree p in the first, p in the second and 1 in the third: 2 p + 1.

    Args:
        factors: d tensors (batch, length, heads, width), zero at pads; three with a power or a denominator.
        log_gates: logarithms of the gates, (batch, length, heads), at most 0, and 0 at pads; None for none.
        degree_form: "cumsum", or "gate" for even d from 4 on.
        power: see `power_attention`.
        denominator: see `power_attention`.
        real: (batch, length), 1 at real tokens and 0 at pads; None when all are real.
        causal: whether a token sees no later ones; gates are causal.
        form: see `power_attention`.
        sums: what `sum_gated_rows` returns for the tokens before; None for none.
        recent: rows of further tokens before these, that `sums` does not count; None for none.

    Returns:
        The product, and the rows of its stages: first (real,) or (real, log_gates), then (x,) or (keys, values).

    Raises:
        ValueError: for a power or a denominator with another number of factors than three, and what `power_attention`
            refuses.
    """
    if len(factors) != 3 and (power != 1 or denominator):
        raise ValueError(
            f"power is {power} and denominator {denominator}, but there are {len(factors)} factors: give three."
        )
    stages = _GatedStages(factors[0], log_gates, power, denominator, real, causal, form, sums, recent)
    return Product(compose(stages, factors, degree_form), stages.rows)


def gated_sum_shapes(kinds: Sequence[str], width: int, power: int = 1, denominator: bool = False) -> list[list[int]]:
    """Return the shape of each sum, but for batch and heads, of stages named as `row_kinds` does."""
    pair = [number_of_features(width, power), width + int(denominator)]
    return [{"real": [], "mean": [width], "pair": pair}[kind] for kind in kinds]


def sum_gated_rows(rows: Sequence[StageRows], power: int = 1, denominator: bool = False) -> list[Tensor]:
    """Add up the rows of each stage, each row multiplied by the gates after it.

    Args:
        rows: as `gated_product` returns them.
        power: see `power_attention`.
        denominator: see `power_attention`.

    Returns:
        (batch, heads), the gated count, and for each stage its sum, of the shapes of `gated_sum_shapes`, in float32
        (float64).
    """
    (real, *gates), *stages = rows
    log_gates = gates[0] if gates else None
    found = []
    for stage in stages:
        if len(stage) == 1:
            ones = _ones(stage[0])
            sums = power_sums(ones, stage[0], log_gates, real=real)
            found.append(sums.products.squeeze(2))
        else:
            k, v = stage
            sums = power_sums(k, v, log_gates, power=power, denominator=denominator, real=real)
            found.append(sums.products)
    return [sums.tokens, *found]


def fade(sums: Sequence[Tensor], log_gates: Tensor) -> list[Tensor]:
    """Return what is left of sums (batch, heads, ...) after further positions with gates (batch, length, heads)."""
    left = log_gates.sum(dim=1).exp()  # (batch, heads)
    return [x * left.view(*left.shape, *[1] * (x.ndim - 2)) for x in sums]


class _GatedStages(PastRows):
    """The stages of one product with gated sums."""

    def __init__(
        self,
        like: Tensor,
        log_gates: Tensor | None,
        power: int,
        denominator: bool,
        real: Tensor | None,
        causal: bool,
        form: str,
        sums: Sequence[Tensor] | None,
        recent: Sequence[StageRows] | None,
    ) -> None:
        super().__init__(sums, recent)
        self.power, self.denominator = power, denominator
        self.causal, self.form = causal, form
        dtype = dispatch(like)[1]
        flags = like.new_ones(like.shape[:2], dtype=dtype) if real is None else real.to(dtype)
        self.tokens, (self.real, *gates) = self.past((flags,) if log_gates is None else (flags, log_gates))
        self.log_gates = gates[0] if gates else None

    def average(self, query: Tensor, x: Tensor, narrow: bool = False) -> Tensor:
        """Compute query * C(x), (batch, length, heads, width)."""
        total, (x,) = self.past((x,))
        ones = _ones(x)
        mean = self._attend(
            ones[:, x.shape[1] - query.shape[1] :], ones, x, None if total is None else total[:, :, None]
        )
        return query * mean

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute A(query, key, value), (batch, length, heads, width)."""
        products, (key, value) = self.past((key, value))
        return self._attend(query, key, value, products, self.power, self.denominator)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        products: Tensor | None,
        power: int = 1,
        denominator: bool = False,
    ) -> Tensor:
        sums = None
        if products is not None:
            assert self.tokens is not None
            sums = PowerSums(products, self.tokens)
        return power_attention(
            q,
            k,
            v,
            self.log_gates,
            power=power,
            denominator=denominator,
            real=self.real,
            sums=sums,
            causal=self.causal,
            form=self.form,
        )


def _ones(x: Tensor) -> Tensor:
    """Return queries or keys whose products are 1, of the positions and heads of x."""
    return torch.ones_like(x[..., :1])
