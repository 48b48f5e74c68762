"""Products with the interpolation matrix W of SKI and with its transpose, in four forms.

Each form is built for a length and a grid, and then multiplies values at the points (batch, channels, points), or
tokens (batch, channels, length). Each is given the memory layout that it likes best: channels last for `band`, `dense`
and `gather`; for `csr` one matrix with a column for each channel of each row of the batch.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hf_seqmix.ops.ski.interpolation import InducingGrid, interpolate, interpolate_adjoint, interpolation_matrix

__all__ = ["FORMS", "Products"]


class Products(NamedTuple):
    """W z and W^T x, and what brings (batch, channels, places) into the layout of the form and back."""

    forward: Callable[[Tensor], Tensor]
    adjoint: Callable[[Tensor], Tensor]
    enter: Callable[[Tensor], Tensor]
    leave: Callable[[Tensor, int], Tensor]


def _last(x: Tensor) -> Tensor:
    return x.mT.contiguous()


def _first(x: Tensor, batch: int) -> Tensor:
    return x.mT


def band(length: int, grid: InducingGrid) -> Products:
    """Multiply as the package does, over dense blocks of the band; the products build the blocks in each call."""
    return Products(
        lambda z: interpolate(z, length, grid),
        lambda x: interpolate_adjoint(x, grid),
        lambda x: x.mT.contiguous().mT,
        lambda x, batch: x,
    )


def dense(length: int, grid: InducingGrid) -> Products:
    """Multiply by a dense W, as in the published code."""
    matrix = interpolation_matrix(length, grid, torch.float32)
    transposed = matrix.mT.contiguous()
    return Products(lambda z: matrix @ z, lambda x: transposed @ x, _last, _first)


def gather(length: int, grid: InducingGrid) -> Products:
    """Gather twice with weights; the adjoint adds rows at indices."""
    first, weights = grid.weights(length, torch.float32)
    points = grid.points(length)
    places = [(first + k).clamp(max=points - 1) for k in range(grid.degree + 1)]
    columns = [weights[:, k : k + 1] for k in range(grid.degree + 1)]

    def forward(z: Tensor) -> Tensor:
        y = z.index_select(1, places[0]).mul_(columns[0])
        for place, column in zip(places[1:], columns[1:], strict=True):
            y.addcmul_(z.index_select(1, place), column)
        return y

    def adjoint(x: Tensor) -> Tensor:
        z = x.new_zeros((x.shape[0], points, x.shape[2]))
        for place, column in zip(places, columns, strict=True):
            z.index_add_(1, place, x * column)
        return z

    return Products(forward, adjoint, _last, _first)


def csr(length: int, grid: InducingGrid) -> Products:
    """Multiply by torch.sparse in compressed rows, W and its transpose."""
    matrix = interpolation_matrix(length, grid, torch.float32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        rows, columns = matrix.to_sparse_csr(), matrix.mT.contiguous().to_sparse_csr()
    return Products(
        lambda z: rows @ z,
        lambda x: columns @ x,
        lambda x: x.permute(2, 0, 1).reshape(x.shape[2], -1),
        lambda x, batch: x.unflatten(1, (batch, -1)).permute(1, 2, 0),
    )


FORMS = {"band": band, "dense": dense, "gather": gather, "csr": csr}
"""Name -> what builds the products."""
