"""Products of projections of a given degree, over the positions up to each, and the sums by which they go on."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..common.dispatch import cast, check_real, dispatch
from .linear_attention import multiplies_halves
from .product_rows import StageRows, check_past, row_factors, row_kinds, row_widths, sum_rows, sum_widths
from .running_mean import running_product
from .stages import FORMS, attend, running_sum

__all__ = [
    "DEGREE_FORMS",
    "PastRows",
    "Product",
    "StageRows",
    "compose",
    "own_form",
    "polynomial_product",
    "row_factors",
    "row_kinds",
    "row_widths",
    "sum_rows",
    "sum_widths",
]

DEGREE_FORMS = ("cumsum", "gate", "soft")


class Product(NamedTuple):
    """What `polynomial_product` returns."""

    y: Tensor
    """(batch, length, heads, width) in float32 (float64)."""
    rows: list[StageRows]
    """What each stage adds up, position by position, in the order of `row_kinds`."""


def polynomial_product(
    factors: Sequence[Tensor],
    degree_form: str = "cumsum",
    *,
    real: Tensor | None = None,
    causal: bool = True,
    form: str = "chunked",
    sums: Sequence[Tensor] | None = None,
    recent: Sequence[StageRows] | None = None,
    held: Sequence[StageRows] | None = None,
    weights: Tensor | None = None,
) -> Product:
    """Multiply d projections P_1 ... P_d of the tokens into one of degree d, each head alone.

    With C(x)_t the mean of x_s over the n_t real tokens s <= t, and A(q, k, v)_t = sum_(s <= t) <q_t, k_s> v_s / (n_t
    sqrt(width)), linear attention without a denominator:

    * d = 2 (degree 2): P1 * C(P2)
    * d = 3 (degree 3): A(P1, P2, P3)
    * d = 4: A(P1 * C(P4), P2, P3), or P4 * A(P1, P2, P3) with `degree_form` "gate"
    * d = 5: A(P1, P2, A(P4, P5, P3))

    and on: a further stage A raises the degree by 2, a factor C or a gate by 1. Each stage is causal by itself. Pads
    are not masked: factors must be zero there. Exactly homogeneous: f(lambda x) = lambda^d f(x), since n_t is a count.
    "soft" mixes the degrees 2, 3 and 4 over shared projections: w_2 y^2 + w_3 y^3 + w_4 y^4.

    Source: Navon 2021 (unpublished notes), whose formula X prod(W_k X^T) has no fitting dimensions; this is one
    reading of it.

    Args:
        factors: d tensors (batch, length, heads, width), zero at pads. Where `held` is given, the factors that
            `row_factors` names are read from it, and of these here only the dtype counts.
        degree_form: "cumsum", "gate" (even d from 4 on), or "soft" (four factors).
        real: (batch, length), 1 at real tokens and 0 at pads; None when all are real.
        causal: whether a token sees no later ones.
        form: how linear attention is computed, see `linear_attention`.
        sums: what `sum_rows` returns for the tokens before; None for none.
        recent: rows of further tokens before these, that `sums` does not count; None for none.
        held: `recent` with the rows of these tokens, for a caller who has them side by side; instead of `recent`.
        weights: (3,), w_2, w_3 and w_4 of "soft".

    Returns:
        `Product`: `y` (batch, length, heads, width) in float32 (float64), and `rows`, what each stage adds up.

    Raises:
        ValueError: for fewer than two factors, an unknown form of the degree or of attention, "gate" with an odd
            number of factors or two, "soft" without four factors and three weights, shapes that do not fit, and
            factors that are integer or complex.
    """
    _check(factors, form, weights, held is not None)
    if (sums, recent, held) != (None, None, None) and not torch.compiler.is_compiling():
        check_past(row_kinds(len(factors), degree_form), factors[0].shape, sums, recent, held)
    stages = _Stages(factors, real, causal, form, sums, recent, held)
    return Product(compose(stages, factors, degree_form, weights), stages.rows)


def _check(factors: Sequence[Tensor], form: str, weights: Tensor | None, with_held: bool) -> None:
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; it must be one of {', '.join(map(repr, FORMS))}.")
    if len(factors) < 2:
        raise ValueError(f"there are {len(factors)} factors: give two or more.")
    if weights is not None and weights.shape != (3,):
        raise ValueError(f"weights have shape {tuple(weights.shape)}; they must be (3,), of the degrees 2, 3 and 4.")
    check_real(**{f"P{number}": factor for number, factor in enumerate(factors, 1)})
    # Of factors that are read from `held` only the dtype counts.
    if not with_held and not torch.compiler.is_compiling():
        first = factors[0].shape
        if len(first) != 4 or any(factor.shape != first for factor in factors):
            shapes = ", ".join(str(tuple(factor.shape)) for factor in factors)
            raise ValueError(
                f"factors have the shapes {shapes}; all must be (batch, length, heads, width), and equal."
            )


def compose(
    stages: "Stages", factors: Sequence[Tensor], degree_form: str = "cumsum", weights: Tensor | None = None
) -> Tensor:
    """Multiply factors by stages of two kinds, C and A of `polynomial_product`; see there."""
    degree = len(factors)
    if degree < 2:
        raise ValueError(f"there are {degree} factors: give two or more.")
    if degree_form not in DEGREE_FORMS:
        raise ValueError(f"degree_form is {degree_form!r}; it must be one of {', '.join(map(repr, DEGREE_FORMS))}.")
    if own_form(degree, degree_form) != degree_form:
        raise ValueError(
            f"degree_form is 'gate', which only even degrees from 4 on have, but there are {degree} factors: leave "
            "degree_form out."
        )
    if degree_form == "soft":
        if weights is None or degree != 4:
            raise ValueError(f"degree_form is 'soft' of {degree} factors: give four, and three weights.")
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        first, second = stages.average(factors[0], factors[1]), stages.average(factors[0], factors[3])
        # Linear attention is linear in its queries: one sum serves degrees 3 and 4.
        return weights[0] * first + stages.attend(weights[1] * factors[0] + weights[2] * second, *factors[1:3])
    if degree == 2:
        return stages.average(factors[0], factors[1])
    value = factors[2]
    for j in range((degree - 1) // 2 - 1, 0, -1):
        value = stages.attend(factors[2 * j + 1], factors[2 * j + 2], value)
    query, even = factors[0], degree % 2 == 0
    if even and degree_form == "cumsum":
        query = stages.average(query, factors[-1], narrow=True)
    y = stages.attend(query, factors[1], value)
    return factors[-1] * y if even and degree_form == "gate" else y


def own_form(degree: int, degree_form: str) -> str:
    """Return the form of one degree among several: "gate" is for even ones from 4 on, and others are "cumsum"."""
    return "cumsum" if degree_form == "gate" and (degree < 4 or degree % 2) else degree_form


class Stages(Protocol):
    """The two kinds of stages of a product."""

    def average(self, query: Tensor, x: Tensor, narrow: bool = False) -> Tensor:
        """Compute query * C(x)."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute A(query, key, value)."""


class PastRows:
    """What the stages of one product add up, in turn, each after its own sums of the past.

    Args:
        sums: of each stage, over the tokens before; None for none.
        recent: rows of further tokens before these, that `sums` does not count; None for none.
        held: `recent` with the rows of these tokens, instead of `recent`.
    """

    def __init__(
        self,
        sums: Sequence[Tensor] | None,
        recent: Sequence[StageRows] | None,
        held: Sequence[StageRows] | None = None,
    ) -> None:
        self.sums, self.recent, self.held = sums, recent, held
        self.rows: list[StageRows] = []

    def past(self, rows: StageRows) -> tuple[Tensor | None, StageRows]:
        """Note what the next stage adds up; return its sum, and all rows that the sum does not count, these last."""
        stage = len(self.rows)
        self.rows.append(rows)
        if self.held is not None:
            rows = tuple([cast(x, new.dtype) for x, new in zip(self.held[stage], rows, strict=True)])
        elif self.recent is not None:
            pairs = zip(self.recent[stage], rows, strict=True)
            rows = tuple([torch.cat([cast(old, new.dtype), new], dim=1) for old, new in pairs])
        return None if self.sums is None else self.sums[stage], rows


class _Stages(PastRows):
    """The stages of one product."""

    def __init__(
        self,
        factors: Sequence[Tensor],
        real: Tensor | None,
        causal: bool,
        form: str,
        sums: Sequence[Tensor] | None,
        recent: Sequence[StageRows] | None,
        held: Sequence[StageRows] | None,
    ) -> None:
        super().__init__(sums, recent, held)
        # The whole product goes one route.
        self.route, self.dtype = dispatch(*factors)
        self.causal, self.form = causal, form
        like = factors[0]
        self.length = like.shape[1]
        if real is not None and not torch.compiler.is_compiling() and real.shape != like.shape[:2]:
            raise ValueError(
                f"real has shape {tuple(real.shape)}; it must be (batch, length), {tuple(like.shape[:2])}."
            )
        if held is not None:
            flags = held[0][0]  # with those of these tokens
        elif real is None:
            flags = like.new_ones(like.shape[:2], dtype=self.dtype)
        else:
            flags = real.to(self.dtype)
        start, (seen,) = self.past((flags,))
        count = running_sum(seen, start, causal=causal, length=self.length)
        # (batch, length or 1); a real token sees itself
        self.share = (count if real is None else count.clamp(min=1)).reciprocal()

    def average(self, query: Tensor, x: Tensor, narrow: bool = False) -> Tensor:
        """Compute query * C(x), (batch, length, heads, width); if `narrow`, in bfloat16 where kernels round to it."""
        start, (seen,) = self.past((x,))
        narrow = narrow and query.dtype == x.dtype == torch.bfloat16 and multiplies_halves(self.route, query)
        if not self.causal or self.length == 1:
            y = query * (running_sum(seen, start, causal=False) * self.share.reshape(*self.share.shape, 1, 1))
            return y.to(torch.bfloat16) if narrow and self.causal else y
        earlier = seen.shape[1] - self.length
        if seen is not x:
            start = running_sum(seen[:, :earlier], start, causal=False)[:, 0]
            seen = seen[:, earlier:]
        return running_product(self.route, query, seen, start, self.share, torch.bfloat16 if narrow else None)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute A(query, key, value), (batch, length, heads, width)."""
        state, (key, value) = self.past((key, value))
        scale = self.share / query.shape[-1] ** 0.5
        return attend(self.route, self.dtype, query, key, value, state, self.causal, self.form, scale)
