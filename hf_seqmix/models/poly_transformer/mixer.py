"""The polynomial mixer: products of d projections of the tokens, mixed by content or by position."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...cache import append_sums, read_sums
from ...modules.norms import MaskedBatchNorm, NoNorm, SimpleRMSNorm, StaticNorm
from ...modules.sharding import split_heads, whole_values
from ...ops.common.dispatch import cast
from ...ops.masking import TokenLayout
from ...ops.polynomial.product import DEGREE_FORMS, Product, polynomial_product
from ...ops.rows import RowOperation
from ..mixers import layout_of_call
from .factor_linear import FactorLinear
from .group import PolynomialGroup
from .static_mixing import STATIC_MIXINGS, build_static_operator

__all__ = ["MIXINGS", "NORMALIZATIONS", "PolynomialMixer"]

MIXINGS = ("content", *STATIC_MIXINGS)
NORMALIZATIONS = ("rms", "static", "batch", "none")


class PolynomialMixer(nn.Module):
    """Sequence mixing by a polynomial of degree d in the tokens: y = N(product of d projections) W_o + b_o.

    With `mixing` "content" the product is that of `polynomial_product`. Degree 3 is linear attention without softmax,
    feature map or denominator, degree 2 a mean over the past, and higher degrees compose the two. With "toeplitz" and
    "triangular" the product is prod_k (M_k x W_k), elementwise, with a learned matrix M_k over positions for each head
    and factor (see `static_mixing.py`): the same degree without content-dependent mixing.

    A fractional degree d, such as 2.718, is the product of degree ceil(d) with one factor through the signed power
    sgnpow(z, d - floor(d)). The projection of that factor has low rank, so that the factors have d hidden_size^2
    weights, biases apart. With `degree_form` "soft" the mixer adds degrees 2, 3 and 4 over shared projections, with
    the weights softmax(`degree_logits`).

    The norm N (`normalization`) is one of these:

    * "rms": each head is divided by its root mean square, in float32, and the mixer is no polynomial any more.
    * "static": a learned scale for each channel.
    * "batch": statistics over real tokens, affine in evaluation.
    * "none".

    `mixer(hidden_states, attention_mask=None, past_key_values=None)` maps (batch, length, hidden_size) to the same
    shape.

    Source: Navon 2021 (unpublished notes). The notes ask for a fractional degree without giving a form; the form is
    ours.

    Args:
        hidden_size: channels in and out.
        degree: d, at least 2; an integer, or a fraction.
        num_heads: number of heads; they must divide `hidden_size`.
        head_degrees: the degree of each head, instead of `degree`. Heads of one degree share a group of projections.
        degree_form: "cumsum" or "gate", for even degrees from 4 on (see `polynomial_product`); or "soft".
        mixing: "content", "toeplitz" or "triangular".
        max_positions: positions that static mixing knows.
        is_causal: whether a token sees the past and itself only.
        use_bias: whether projections are affine. Without, degree 3 is even in every token but the last.
        normalization: "rms", "static", "batch" or "none".
        norm_eps: its square is added to the mean square of "rms", itself to the variance of "batch".
        degree_target, degree_penalty: "soft" adds degree_penalty (mean degree - degree_target)^2 to the loss.
        layer_idx: which layer of a cache is this mixer's.

    Raises:
        ValueError: for a degree below 2, heads that do not divide the channels, a list of another length than the
            heads, an unknown form, mixing or norm, and a form that does not belong to the degrees.
    """

    def __init__(
        self,
        hidden_size: int,
        degree: float = 3,
        num_heads: int = 8,
        *,
        head_degrees: Sequence[float] | None = None,
        degree_form: str = "cumsum",
        mixing: str = "content",
        max_positions: int = 512,
        is_causal: bool = True,
        use_bias: bool = True,
        normalization: str = "rms",
        norm_eps: float = 1e-6,
        degree_target: float = math.e,
        degree_penalty: float = 0.01,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        degrees = [degree] * num_heads if head_degrees is None else list(head_degrees)
        _check(hidden_size, num_heads, degrees, degree_form, mixing, normalization)
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.normalization = normalization
        self.layer_idx = layer_idx
        self.degree_target = degree_target
        self.degree_penalty = degree_penalty
        width = hidden_size // num_heads
        self.groups: list[PolynomialGroup] = nn.ModuleList(  # type: ignore[assignment]
            PolynomialGroup(hidden_size, d, degrees.count(d), width, degree_form, use_bias)
            for d in sorted(set(degrees))
        )
        self.operator: nn.Module | None = None
        if mixing != "content":
            matrices = sum(len(group.factors) * group.num_heads for group in self.groups)
            self.operator = build_static_operator(mixing, matrices, width, max_positions, is_causal, layer_idx)
        self.degree_logits = nn.Parameter(torch.zeros(3)) if degree_form == "soft" else None
        self.norm: nn.Module = {
            # Means over many tokens are small: at 8192 random ones a product of degree 4 has a mean square of 3e-7.
            "rms": lambda: SimpleRMSNorm(norm_eps**2),
            "static": lambda: StaticNorm(hidden_size),
            "batch": lambda: MaskedBatchNorm(hidden_size, norm_eps),
            "none": NoNorm,
        }[normalization]()
        self.o_proj = FactorLinear(hidden_size, hidden_size, bias=use_bias, ends_branch=True)

    @torch.no_grad()
    def init_weights(self, config: Any = None) -> None:
        """Begin with equal weights of a soft degree; projections draw their own, see `FactorLinear`."""
        if self.degree_logits is not None:
            init.zeros_(self.degree_logits)

    @property
    def degree_weights(self) -> Tensor | None:
        """(3,) weights of degrees 2, 3 and 4 of a soft degree, which sum to 1; None for a fixed one."""
        if self.degree_logits is None:
            return None
        logits = whole_values(self.degree_logits)  # the auxiliary loss is computed after the forward pass
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(dim=0)

    @property
    def mean_degree(self) -> Tensor:
        """Mean degree: over heads, or, for a soft degree, sum over d of weight_d d."""
        weights = self.degree_weights
        if weights is not None:
            return (weights * torch.arange(2, 5, device=weights.device)).sum()
        return torch.tensor(sum(group.degree * group.num_heads for group in self.groups) / self.num_heads)

    def auxiliary_loss(self) -> Tensor | None:
        """Return degree_penalty (mean degree - degree_target)^2 for a soft degree; None otherwise."""
        if self.degree_logits is None or self.degree_penalty == 0:
            return None
        return self.degree_penalty * (self.mean_degree - self.degree_target).square()

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | TokenLayout | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """Mix positions and channels.

        Args:
            hidden_states: (batch, length, hidden_size).
            attention_mask: (batch, length) or (batch, past + length), nonzero at real tokens; or a `TokenLayout`.
            past_key_values: cache of the library, for causal mixers.
            **kwargs: boundaries of packed sequences: `position_ids` that restart, `cu_seq_lens_q`, `seq_idx`.

        Returns:
            (batch, length, hidden_size); pad positions are undefined.

        Raises:
            ValueError: for a cache given to a bidirectional mixer, or together with packed sequences.
        """
        layout = layout_of_call(attention_mask, hidden_states, past_key_values, self.layer_idx, **kwargs)
        if past_key_values is not None:
            self._check_cache(layout)
        # Those of each group.
        factors = [[layout.zero_pads(factor) for factor in group.project(hidden_states)] for group in self.groups]
        if self.operator is not None:
            mixed = self.operator(torch.cat([x for own in factors for x in own], dim=-1), layout, past_key_values)
            products = [
                _product(x, group) for x, group in zip(mixed.split(self._widths(), -1), self.groups, strict=True)
            ]
            y = torch.cat(products, dim=2)  # (batch, length, heads, width)
        elif past_key_values is not None:
            y = self._continue(factors, layout, past_key_values)
        elif layout.sequence_ids is None:
            # Pads are zeros and count for nothing, wherever they stand: only packed sequences need rows of their own.
            y = self._mix(factors, layout.mask)
        else:
            y = self._mix_packed(factors, layout)
        if self.normalization == "rms":
            y = self.norm(y, layout.mask).flatten(2)
        else:
            y = self.norm(y.flatten(2), layout.mask)
        return self.o_proj(cast(y, hidden_states.dtype))

    def _check_cache(self, layout: TokenLayout) -> None:
        if not self.is_causal:
            raise ValueError("past_key_values is given, but a bidirectional mixer has no cache: pass None.")
        if layout.sequence_ids is not None:
            raise ValueError("packed sequences cannot fill a cache: pass use_cache=False, or one sequence a row.")

    def _widths(self) -> list[int]:
        return [len(group.factors) * group.num_heads * group.head_dim for group in self.groups]

    def _mix(self, factors: list[list[Tensor]], real: Tensor | None) -> Tensor:
        """Return (batch, length, heads, width) for factors (batch, length, channels), zero at pads."""
        weights = self.degree_weights
        parts = [
            group.mix(own, real, self.is_causal, weights)[0] for group, own in zip(self.groups, factors, strict=True)
        ]
        return _beside(parts, dim=2)

    def _mix_packed(self, factors: list[list[Tensor]], layout: TokenLayout) -> Tensor:
        """Return (batch, length, heads, width) for packed rows."""
        first, weights = self.groups[0], self.degree_weights
        settings = [int(self.is_causal), DEGREE_FORMS.index(first.degree_form), first.head_dim]
        for own in factors:
            settings += [len(own), own[0].shape[-1]]
        flag = torch.ones_like(factors[0][0][..., :1])  # of real tokens
        rows = torch.cat([*(x for own in factors for x in own), flag], dim=-1)
        products = [group.product for group in self.groups]
        mixed = layout.mix(_ON_ROWS, rows, [] if weights is None else [weights], settings, *products)
        return mixed.unflatten(-1, (-1, first.head_dim))

    def _continue(self, factors: list[list[Tensor]], layout: TokenLayout, past_key_values: Any) -> Tensor:
        """Mix tokens that continue those of a cache, which holds sums and last rows, and add them to the cache."""
        sums, recent = read_sums(past_key_values, self.layer_idx)
        weights = self.degree_weights
        dealt = list(zip(self.groups, factors, strict=True))
        row_widths, sum_widths = [], []
        for group, own in dealt:
            heads = own[0].shape[-1] // group.head_dim
            row_widths.append(group.row_width(heads))
            sum_widths.append(group.sum_width(heads))
        own_sums = _dealt(sums, sum_widths)

        def fold(held: Tensor) -> Tensor:
            split = held.split(row_widths, dim=-1)
            return _beside([group.fold(x) for (group, _), x in zip(dealt, split, strict=True)])

        if recent is not None and all(group.row_factors is not None for group, _ in dealt):
            # The cache lays old and new rows side by side in any case.
            rows = [group.given_rows(own, layout.mask) for group, own in dealt]
            held = _dealt(append_sums(past_key_values, self.layer_idx, _beside(rows), fold), row_widths)
            parts = [
                group.mix(own, layout.mask, True, weights, before, held=of_cache)[0]
                for (group, own), before, of_cache in zip(dealt, own_sums, held, strict=True)
            ]
            return _beside(parts, dim=2)
        parts, rows = [], []
        for (group, own), before, last in zip(dealt, own_sums, _dealt(recent, row_widths), strict=True):
            y, new = group.mix(own, layout.mask, True, weights, before, last)
            parts.append(y)
            rows.append(group.pack_rows(new))
        append_sums(past_key_values, self.layer_idx, _beside(rows), fold)
        return _beside(parts, dim=2)


def _mix_rows(
    rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int], *products: Callable[..., Product]
) -> Tensor:
    """Multiply the factors of all groups.

    Args:
        rows: (rows, length, channels), the factors side by side, and a flag of real tokens.
        tensors: the weights of a soft degree, or none.
        settings: whether causal, the number of the degree's form, channels of a head; and for each group, how many
            factors, and channels of each.
        *products: that of each group, by default the package's.

    Returns:
        (rows, length, heads x width) in float32 (float64).
    """
    causal, form, head_dim, *groups = settings
    shapes = list(zip(groups[::2], groups[1::2], strict=True))
    *factors, flag = rows.split([width for number, width in shapes for _ in range(number)] + [1], dim=-1)
    rest = iter(factors)
    parts = [
        product(
            [split_heads(next(rest), head_dim) for _ in range(number)],
            DEGREE_FORMS[form],
            real=flag[..., 0],
            causal=bool(causal),
            weights=tensors[0] if tensors else None,
        ).y
        for (number, _), product in zip(shapes, products or [polynomial_product] * len(shapes), strict=True)
    ]
    return _beside(parts, dim=2).flatten(2)


def _beside(parts: Sequence[Tensor], dim: int = -1) -> Tensor:
    """Lay tensors side by side; one alone is returned as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


def _dealt(x: Tensor | None, widths: list[int]) -> Sequence[Tensor | None]:
    """Split the last dimension into the parts of groups; None for each where there is nothing."""
    if x is None or len(widths) == 1:
        return [x] * len(widths)
    return x.split(widths, dim=-1)


def _mixed_shape(rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int]) -> tuple[int, torch.dtype]:
    return sum(settings[4::2]), torch.promote_types(rows.dtype, torch.float32)


_ON_ROWS = RowOperation("hf_seqmix::packed_polynomial_v1", _mix_rows, _mixed_shape)


def _product(mixed: Tensor, group: PolynomialGroup) -> Tensor:
    """Multiply the mixed factors of a group, (batch, length, factors x channels) -> (batch, length, heads, width)."""
    dtype = torch.promote_types(mixed.dtype, torch.float32)
    factors = mixed.to(dtype).unflatten(-1, (len(group.factors), group.num_heads, group.head_dim)).unbind(2)
    y = factors[0]
    for factor in factors[1:]:
        y = y * factor
    return y


def _check(
    hidden_size: int, num_heads: int, degrees: list[float], degree_form: str, mixing: str, normalization: str
) -> None:
    if num_heads < 1 or hidden_size % num_heads:
        raise ValueError(f"num_heads {num_heads} must divide hidden_size {hidden_size}.")
    if len(degrees) != num_heads:
        raise ValueError(
            f"head_degrees names {len(degrees)} heads, but num_heads is {num_heads}: give one degree a head."
        )
    for degree in degrees:
        if not 2 <= degree < math.inf:
            raise ValueError(f"degree is {degree}; it must be at least 2.")
    for name, value, allowed in (
        ("degree_form", degree_form, DEGREE_FORMS),
        ("mixing", mixing, MIXINGS),
        ("normalization", normalization, NORMALIZATIONS),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
    if degree_form != "cumsum" and mixing != "content":
        raise ValueError(f"degree_form is {degree_form!r}, but mixing {mixing!r} has one form only: use 'cumsum'.")
    whole = {math.ceil(degree) for degree in degrees}
    if degree_form == "gate" and not any(d % 2 == 0 and d >= 4 for d in whole):
        raise ValueError(
            "degree_form is 'gate', which only even degrees from 4 on have, but the degrees are "
            f"{sorted(set(degrees))}: use 'cumsum'."
        )
    if degree_form == "soft" and set(degrees) != {4}:
        raise ValueError(
            f"degree_form is 'soft', which mixes degrees 2, 3 and 4, but degree is {sorted(set(degrees))}: set it to "
            "4, the highest."
        )
