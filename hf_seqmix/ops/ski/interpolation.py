"""The interpolation of SKI: the inducing points, the interpolation weights W, and products with W and W^T.

W interpolates from the points of an `InducingGrid` to the tokens. A row of W has degree + 1 interpolation weights, see
`InducingGrid.weights`. `product.py` holds the product W A W^T.

Products with W and W^T go over groups of sixteen cells of the grid. W is a band, so each group of tokens meets a few
neighboring points only: one product of a small dense block with (tokens, channels), which BLAS computes at full
speed. Tensors have the shape (batch, channels, length), as everywhere in `ops`. In memory the channels may lie side by
side, as linear layers leave them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.dispatch import ORDINARY, Route, compute_dtype, dispatch, without_autocast
from ..common.layout import no_view

__all__ = [
    "InducingGrid",
    "add_interpolated",
    "collected",
    "interpolate",
    "interpolate_adjoint",
    "interpolation_blocks",
    "interpolation_matrix",
]

Block = tuple[slice, slice, Tensor]
"""A block of W: the tokens and the points that it couples, and their weights, (tokens, points)."""

# A block of W has about 16 columns: narrower blocks leave the multipliers idle, wider blocks multiply zeros.
_CELLS_AT_ONCE = 16


class InducingGrid(NamedTuple):
    """Inducing points p_j = j h from the first token on, at a fixed spacing h = (max_length - 1) / (num_points - 1).

    At `max_length` tokens there are `num_points` points, from the first token to the last. Shorter inputs meet fewer
    points and longer inputs more, at the same spacing. So the weights of a token never depend on how long its row is.
    Source: Moreno, Mei, Walters 2023 (arXiv 2305.09028), section 3.2. Departure: the paper places r points over the
    actual length.

    Positions in units of h are the rational numbers i (num_points - 1) / (max_length - 1), computed in integers:
    constants and the identity map are interpolated exactly, up to one rounding of each weight. Departure: the
    published code looks the points up on the wrong side, swaps the weights and fades them out; none of that is kept.

    Args:
        max_length: tokens that `num_points` cover, at least 2.
        num_points: r, from 2 to `max_length`.
        degree: 1, linear: two weights a token. 3, cubic: Lagrange weights at the four nearest points; beyond the last
            token the grid goes on, so that the last cells are no special case, but before the first it does not.
    """

    max_length: int
    num_points: int
    degree: int = 1

    @property
    def spacing(self) -> float:
        """Tokens between neighboring points, h."""
        return (self.max_length - 1) / (self.num_points - 1)

    def check(self) -> None:
        """Raise a ValueError unless the number of points is from 2 to `max_length`, and the degree 1 or 3."""
        if self.degree not in (1, 3):
            raise ValueError(f"the degree of interpolation is {self.degree}; it must be 1 or 3.")
        if not 2 <= self.num_points <= self.max_length:
            raise ValueError(
                f"the grid has {self.num_points} points for {self.max_length} tokens: num_points must be from 2 to "
                "max_length. Are the two arguments swapped?"
            )

    def points(self, length: int) -> int:
        """Return how many points the tokens 0 to length - 1 meet, for a length of at least 1."""
        # Rounded up by adding, not by negating twice: other runtimes divide negative numbers toward zero.
        cells = ((length - 1) * (self.num_points - 1) + self.max_length - 2) // (self.max_length - 1)
        return cells + 1 if self.degree == 1 else torch.sym_max(cells + 2, 4)

    def weights(self, length: int, dtype: torch.dtype, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Return the interpolation weights: the nonzero entries of W.

        With u the distance from the first point in units of h: 1 - u and u for degree 1. For degree 3, the Lagrange
        weights of the points 0, 1, 2 and 3, as -(u - 1) (u - 2) (u - 3) / 6 of the first.

        Args:
            length: number of tokens.
            dtype: of the weights.
            device: where to make them.

        Returns:
            first: (length,) long, the first point that a token meets; it meets the `degree` points after it, too. A
                point beyond the last of `points` has weight zero.
            weights: (length, degree + 1) in `dtype`.
        """
        scaled = torch.arange(length, device=device) * (self.num_points - 1)
        cell = scaled // (self.max_length - 1)
        first = cell if self.degree == 1 else (cell - 1).clamp(min=0)
        remainder = scaled - first * (self.max_length - 1)
        offset = remainder.to(torch.promote_types(dtype, torch.float32)) / (self.max_length - 1)  # from `first`, in h
        if self.degree == 1:
            weights = torch.stack([1 - offset, offset], dim=-1)
        else:
            u, v, w, x = offset, offset - 1, offset - 2, offset - 3
            weights = torch.stack([-v * w * x / 6, u * w * x / 2, -u * v * x / 2, u * v * w / 6], dim=-1)
        return first, weights.to(dtype)


def interpolation_matrix(length: int, grid: InducingGrid, dtype: torch.dtype = torch.float64) -> Tensor:
    """Build W, (length, grid.points(length)): the definition of the products below."""
    first, weights = grid.weights(length, dtype)
    points = grid.points(length)
    matrix = torch.zeros(length, points + grid.degree, dtype=dtype)
    columns = first.unsqueeze(-1) + torch.arange(grid.degree + 1)
    return matrix.scatter_(1, columns, weights)[:, :points]


def _dense(length: int, grid: InducingGrid, like: Tensor) -> Tensor:
    """Build W as `interpolation_matrix` does, but by comparing, which other runtimes do where they do not scatter."""
    first, weights = grid.weights(length, like.dtype, like.device)
    columns = torch.arange(grid.points(length), device=like.device) - first.unsqueeze(-1)  # (length, points)
    parts = (torch.where(columns == k, weights[:, k : k + 1], 0) for k in range(grid.degree + 1))
    return sum(parts, start=weights.new_zeros(()))


def interpolate(values: Tensor, length: int, grid: InducingGrid, route: Route | None = None) -> Tensor:
    """Interpolate from the inducing points to the tokens: y[b, c, i] = sum_j W[i, j] z[b, c, j], in O(length).

    Args:
        values: z, (batch, channels, grid.points(length)), float32 or float64.
        length: number of tokens.
        grid: where the points lie.
        route: of the call that the interpolation belongs to; decided here by default.

    Returns:
        (batch, channels, length) in the dtype of `values`, channels contiguous.
    """
    _check_points(values, length, grid)
    route = route or dispatch(values)[0]
    if route in ORDINARY:
        with without_autocast(values.device.type):
            return values @ _dense(length, grid, values).t()
    if route == "operator":
        first, weights = grid.weights(length, values.dtype, values.device)
        terms = (values[..., _capped(first + k, values)] * weights[:, k] for k in range(grid.degree + 1))
        return sum(terms, start=values.new_zeros(()))
    return _Interpolate.apply(values, length, grid)


def interpolate_adjoint(x: Tensor, grid: InducingGrid, route: Route | None = None) -> Tensor:
    """Collect the tokens at the inducing points: z[b, c, j] = sum_i W[i, j] x[b, c, i], in O(length).

    Args:
        x: (batch, channels, length) of any floating dtype, fastest when channels are contiguous in memory.
        grid: where the points lie.
        route: of the call that the interpolation belongs to; decided here by default.

    Returns:
        (batch, channels, grid.points(length)), in float32 (float64 for float64 `x`).
    """
    route = route or dispatch(x)[0]
    if route == "operator" or route in ORDINARY:
        length = x.shape[-1]
        x = x.to(compute_dtype(x.dtype))
        if route in ORDINARY:
            with without_autocast(x.device.type):
                return x @ _dense(length, grid, x)
        first, weights = grid.weights(length, x.dtype, x.device)
        values = x.new_zeros((*x.shape[:-1], grid.points(length)))
        for k in range(grid.degree + 1):
            values = values.index_add(-1, _capped(first + k, values), x * weights[:, k])
        return values
    return _InterpolateAdjoint.apply(x, grid)


def add_interpolated(out: Tensor, values: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Add `interpolate(values, length, grid)` to `out` (batch, channels, length) in place, without derivatives."""
    rows, target = values.transpose(1, 2).contiguous(), out.transpose(1, 2)
    for tokens, points, matrix in blocks:
        target[:, tokens].baddbmm_(matrix.expand(len(rows), -1, -1), rows[:, points])
    return out


def collected(x: Tensor, points: int, blocks: Sequence[Block]) -> Tensor:
    """Compute `interpolate_adjoint(x, grid)` with grid.points(length) points, without derivatives."""
    dtype = compute_dtype(x.dtype)
    rows = x.transpose(1, 2)  # (batch, length, channels)
    out = x.new_zeros((x.shape[0], points, x.shape[1]), dtype=dtype)
    for tokens, some, matrix in blocks:
        out[:, some].baddbmm_(matrix.t().expand(len(rows), -1, -1), rows[:, tokens].to(dtype))
    return out.transpose(1, 2)


def _check_points(values: Tensor, length: int, grid: InducingGrid) -> None:
    if values.shape[-1] != grid.points(length):
        raise ValueError(
            f"values has {values.shape[-1]} points, but {length} tokens meet {grid.points(length)} of the grid {grid}."
        )


def _capped(columns: Tensor, values: Tensor) -> Tensor:
    """Keep columns beyond the last point, whose weight is zero, inside."""
    return columns.clamp(max=values.shape[-1] - 1)


def interpolation_blocks(length: int, grid: InducingGrid, dtype: torch.dtype, device: torch.device) -> list[Block]:
    """Return the band of W in blocks of tokens.

    Args:
        length: number of tokens.
        grid: where the points lie.
        dtype: of the weights.
        device: where to make them.
    """
    first, weights = grid.weights(length, dtype, device)
    total, cells, tokens = grid.points(length), grid.num_points - 1, grid.max_length - 1
    # The first point of each token's block, which cubic weights of its first cell need to begin one point earlier.
    group = torch.arange(length, device=device) * cells // (tokens * _CELLS_AT_ONCE)
    low = group * _CELLS_AT_ONCE if grid.degree == 1 else (group * _CELLS_AT_ONCE - 1).clamp(min=0)
    # All blocks in one go: on short inputs, building each block apart costs as much as multiplying by the block.
    band = torch.zeros(length, _CELLS_AT_ONCE + 2 * grid.degree, dtype=dtype, device=device)
    band.scatter_(1, (first - low).unsqueeze(-1) + torch.arange(grid.degree + 1, device=device), weights)
    start, blocks = 0, []
    for cell in range(0, total, _CELLS_AT_ONCE):
        stop = min(-(-(cell + _CELLS_AT_ONCE) * tokens // cells), length)  # the first token of the next group
        if stop == start:
            break
        begin = cell if grid.degree == 1 else max(cell - 1, 0)
        width = min(band.shape[1], total - begin)
        blocks.append((slice(start, stop), slice(begin, begin + width), band[start:stop, :width]))
        start = stop
    return blocks


class _Interpolate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, length: int, grid: InducingGrid) -> Tensor:
        ctx.grid = grid
        batch, channels, _ = values.shape
        rows = values.transpose(1, 2).contiguous()  # (batch, points, channels)
        out = rows.new_empty((batch, length, channels))
        for tokens, points, matrix in interpolation_blocks(length, grid, values.dtype, values.device):
            # Into its place: beta 0 ignores what the empty memory holds, NaN included.
            out[:, tokens].baddbmm_(matrix.expand(batch, -1, -1), rows[:, points], beta=0)
        return no_view(out.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        return interpolate_adjoint(upstream, ctx.grid), None, None


class _InterpolateAdjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: InducingGrid) -> Tensor:
        length = x.shape[-1]
        ctx.grid, ctx.dtype, ctx.length = grid, x.dtype, length
        return collected(x, grid.points(length), interpolation_blocks(length, grid, compute_dtype(x.dtype), x.device))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return interpolate(upstream, ctx.length, ctx.grid).to(ctx.dtype), None
