"""How groups of heads mix by content: rows as they stand, packed rows, and rows that continue a cache."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...cache import append_sums, check_rows, read_sums
from ...modules.sharding import split_heads
from ...ops.layout import TokenLayout
from ...ops.polynomial.gated_product import gated_product
from ...ops.polynomial.product import DEGREE_FORMS, Product, own_form, polynomial_product
from ...ops.rows import RowOperation
from .gated_group import GatedGroup
from .group import PolynomialGroup

__all__ = ["Group", "continue_sums", "mix", "mix_packed"]

Group = PolynomialGroup | GatedGroup


def mix(
    groups: Sequence[Group],
    factors: Sequence[list[Tensor]],
    real: Tensor | None,
    causal: bool,
    weights: Tensor | None,
) -> Tensor:
    """Mix rows that hold one sequence each.

    Args:
        groups: of heads.
        factors: what each group's `project` returned, zero at pads.
        real: (batch, length), nonzero at real tokens; None when all are.
        causal: whether a token sees no later ones.
        weights: (3,), of a soft degree; else None.

    Returns:
        (batch, length, heads, width) in float32 (float64).
    """
    parts = [group.mix(own, real, causal, weights)[0] for group, own in zip(groups, factors, strict=True)]
    return _beside(parts, dim=2)


def mix_packed(
    groups: Sequence[Group],
    factors: Sequence[list[Tensor]],
    layout: TokenLayout,
    causal: bool,
    weights: Tensor | None,
) -> Tensor:
    """Mix packed rows; see `mix`."""
    first = groups[0]
    settings = [int(causal), DEGREE_FORMS.index(first.degree_form), first.head_dim]
    flag = torch.ones_like(factors[0][0][..., :1])  # of real tokens
    if isinstance(first, GatedGroup):
        settings += [first.power, int(first.denominator), int(first.forgets)]
    for group, own in zip(groups, factors, strict=True):
        settings += [len(group.factors), own[0].shape[-1]]
    rows = torch.cat([*(x for own in factors for x in own), flag], dim=-1)
    if isinstance(first, GatedGroup):
        mixed = layout.mix(_GATED_ON_ROWS, rows, [], settings)
    else:
        products = [group.product for group in groups if isinstance(group, PolynomialGroup)]
        mixed = layout.mix(_ON_ROWS, rows, [] if weights is None else [weights], settings, *products)
    return mixed.unflatten(-1, (-1, first.head_dim))


def continue_sums(
    groups: Sequence[Group],
    factors: Sequence[list[Tensor]],
    layout: TokenLayout,
    past_key_values: Any,
    layer_idx: int,
    weights: Tensor | None,
) -> Tensor:
    """Mix tokens that continue those of a cache, its sums and last rows, and add them to the cache; see `mix`."""
    sums, recent = read_sums(past_key_values, layer_idx)
    batch = factors[0][0].shape[0]
    if recent is not None and not torch.compiler.is_compiling():
        check_rows(recent.shape[0], factors[0][0])
    if sums is not None and not torch.compiler.is_compiling() and sums.shape[0] != batch:
        if int(past_key_values.get_seq_length(layer_idx)) > 0:
            raise ValueError(
                f"{batch} rows cannot continue a cache of {len(sums)} rows: give as many rows, or build a new cache."
            )
        sums = None  # zeros of the rows before a reset
    dealt = list(zip(groups, factors, strict=True))
    row_widths, sum_widths = [], []
    for group, own in dealt:
        heads = own[0].shape[-1] // group.head_dim
        row_widths.append(group.row_width(heads))
        sum_widths.append(group.sum_width(heads))
    own_sums = _dealt(sums, sum_widths)

    def fold(held: Tensor) -> Tensor:
        split = held.split(row_widths, dim=-1)
        return _beside([group.fold(x) for group, x in zip(groups, split, strict=True)])

    gated = [group for group in groups if isinstance(group, GatedGroup) and group.forgets]

    def carry(before: Tensor, held: Tensor) -> Tensor:
        split = zip(gated, before.split(sum_widths, dim=-1), held.split(row_widths, dim=-1), strict=True)
        return _beside([group.carry(x, rows) for group, x, rows in split])

    given = [group for group in groups if isinstance(group, PolynomialGroup) and group.row_factors is not None]
    if recent is not None and len(given) == len(groups):
        # The cache lays old and new rows side by side in any case.
        rows = [group.given_rows(own, layout.mask) for group, own in zip(given, factors, strict=True)]
        held = _dealt(append_sums(past_key_values, layer_idx, _beside(rows), fold), row_widths)
        parts = [
            group.mix(own, layout.mask, True, weights, before, held=of_cache)[0]
            for group, own, before, of_cache in zip(given, factors, own_sums, held, strict=True)
        ]
        return _beside(parts, dim=2)
    parts, rows = [], []
    for (group, own), before, last in zip(dealt, own_sums, _dealt(recent, row_widths), strict=True):
        y, new = group.mix(own, layout.mask, True, weights, before, last)
        parts.append(y)
        rows.append(group.pack_rows(new))
    append_sums(past_key_values, layer_idx, _beside(rows), fold, carry if gated else None)
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
            own_form(number, DEGREE_FORMS[form]),
            real=flag[..., 0],
            causal=bool(causal),
            weights=tensors[0] if tensors else None,
        ).y
        for (number, _), product in zip(shapes, products or [polynomial_product] * len(shapes), strict=True)
    ]
    return _beside(parts, dim=2).flatten(2)


def _mix_gated_rows(rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int]) -> Tensor:
    """Multiply the factors of all groups with gated sums.

    Args:
        rows: (rows, length, channels), factors and log gates of each group side by side, and a flag of real tokens.
        tensors: none.
        settings: whether causal, the number of the degree's form, channels of a head, the power, whether weights
            divide, and whether there are gates; and for each group, how many factors, and channels of each.

    Returns:
        (rows, length, heads x width) in float32 (float64).
    """
    causal, form, head_dim, power, denominator, forgets, *groups = settings
    shapes = list(zip(groups[::2], groups[1::2], strict=True))
    widths = [part for number, width in shapes for part in [width] * number + [width // head_dim] * forgets]
    *channels, flag = rows.split([*widths, 1], dim=-1)
    rest, parts = iter(channels), []
    for number, _ in shapes:
        factors = [split_heads(next(rest), head_dim) for _ in range(number)]
        product = gated_product(
            factors,
            next(rest) if forgets else None,
            own_form(number, DEGREE_FORMS[form]),
            power=power,
            denominator=bool(denominator),
            real=flag[..., 0],
            causal=bool(causal),
        )
        parts.append(product.y)
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


def _gated_shape(rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int]) -> tuple[int, torch.dtype]:
    return sum(settings[7::2]), torch.promote_types(rows.dtype, torch.float32)


_ON_ROWS = RowOperation("hf_seqmix::packed_polynomial_v1", _mix_rows, _mixed_shape)
_GATED_ON_ROWS = RowOperation("hf_seqmix::packed_gated_polynomial_v1", _mix_gated_rows, _gated_shape)
