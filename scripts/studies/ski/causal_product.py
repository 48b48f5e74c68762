"""Causal products with SKI: y_i = sum_(j <= i) (W A W^T)[i, j] x_j by running sums over the tokens, in three forms.

Moreno, Mei, Walters 2023 (arXiv 2305.09028), appendix B: with the state s_i = s_(i-1) + W_i^T x_i the masked product
is y_i = W_i A s_i. The mask acts on W A W^T itself, so that kernel values at negative lags count within a cell of the
grid.

`running_sums` keeps the state after every token. `chunked` keeps it before each chunk of whole cells, and multiplies
by the dense masked matrix inside. `within_cells` uses that a row of W has two neighboring nonzeros: of A s_i only two
entries are needed, all completed cells together are a Toeplitz product over the inducing points, and the rest of s_i
is two running sums that begin anew in each cell; so O(n) a channel, whatever the number of points.

x is (batch, length, channels); the kernel is (channels, 2 points - 1) as `ski_matmul` takes it. The spacing of the
grid is a whole number of tokens (`whole_grid`), so that all cells look alike.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hf_seqmix import toeplitz_matmul
from hf_seqmix.ops.ski.interpolation import InducingGrid, interpolation_matrix
from hf_seqmix.ops.toeplitz.product import toeplitz_matrix

__all__ = ["causal_ski_dense", "chunked", "running_sums", "spacing_of", "whole_grid", "within_cells"]


def whole_grid(length: int, points: int) -> InducingGrid:
    """Return the grid of at most `points` points over `length` tokens with the least whole spacing.

    Raises:
        ValueError: there are fewer than two points or tokens.
    """
    if min(points, length) < 2:
        raise ValueError(f"a grid of {points} points over {length} tokens has no cell: give at least 2 of either.")
    points = min(points, length)
    spacing = -(-(length - 1) // (points - 1))
    return InducingGrid(spacing * (points - 1) + 1, points)


def spacing_of(grid: InducingGrid) -> int:
    """Return tokens a cell of a grid whose spacing is whole.

    Raises:
        ValueError: if it is not.
    """
    if (grid.max_length - 1) % (grid.num_points - 1) or grid.degree != 1:
        raise ValueError(f"{grid} has no whole spacing and linear weights: take one of `whole_grid`.")
    return (grid.max_length - 1) // (grid.num_points - 1)


def causal_ski_dense(x: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Multiply by the definition: W A W^T, (channels, length, length), with zeros above the diagonal."""
    matrix = interpolation_matrix(x.shape[1], grid, x.dtype).to(x.device)
    inducing = toeplitz_matrix(kernel, matrix.shape[1], causal=False)
    return torch.einsum("cij,bjc->bic", (matrix @ inducing @ matrix.mT).tril(), x)


def running_sums(x: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Multiply by the state after every token, (batch, length, points, channels): O(n r) time and memory a channel."""
    matrix = interpolation_matrix(x.shape[1], grid, x.dtype).to(x.device)
    states = (matrix.unsqueeze(-1) * x.unsqueeze(2)).cumsum(dim=1)
    rows = matrix @ toeplitz_matrix(kernel, matrix.shape[1], causal=False)  # W A, (channels, length, points)
    return (states * rows.permute(1, 2, 0)).sum(dim=2)


def chunked(x: Tensor, kernel: Tensor, grid: InducingGrid, chunk: int = 64) -> Tensor:
    """Multiply densely inside chunks of whole cells, about `chunk` tokens, and by the state before each."""
    batch, length, channels = x.shape
    spacing = spacing_of(grid)
    cells = max(1, chunk // spacing)  # of a chunk
    size = cells * spacing
    chunks = -(-length // size)
    kernel, last = _to_lag(kernel, chunks * cells)
    weights = interpolation_matrix(
        size, InducingGrid(size + 1, cells + 1), x.dtype
    )  # (size, cells + 1), all chunks alike
    weights = F.pad(weights, (0, cells + 1 - weights.shape[1])).to(x.device)
    x_chunks = F.pad(x, (0, 0, 0, chunks * size - length)).unflatten(1, (chunks, size))
    inside = (
        weights @ toeplitz_matrix(kernel[:, last - cells : last + cells + 1], cells + 1, False) @ weights.mT
    ).tril()
    by_channel = x_chunks.permute(3, 2, 0, 1).reshape(channels, size, batch * chunks)
    near = (inside @ by_channel).unflatten(2, (batch, chunks)).permute(2, 3, 1, 0)
    # What each chunk adds to the state: its cells + 1 points, of which the last is the next chunk's first.
    added = weights.mT @ x_chunks  # (batch, chunks, cells + 1, channels)
    # Entry (k, p; l, q) of A at the p-th point of chunk k and the q-th of chunk l, for l before k only.
    point = torch.arange(chunks * (cells + 1), device=x.device)
    number, place = point // (cells + 1), point // (cells + 1) * cells + point % (cells + 1)
    before = number[:, None] > number[None, :]
    across = kernel[:, place[:, None] - place[None, :] + last] * before
    far = across @ added.permute(3, 1, 2, 0).reshape(channels, -1, batch)  # A s before each chunk, at its points
    far = weights @ far.unflatten(1, (chunks, cells + 1)).permute(3, 1, 2, 0)
    return (near + far).flatten(1, 2)[:, :length]


def within_cells(x: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Multiply by two running sums that begin anew in each cell, and a Toeplitz product over completed cells."""
    batch, length, channels = x.shape
    spacing = spacing_of(grid)
    cells = -(-length // spacing)
    kernel, last = _to_lag(kernel, cells)
    x_cells = x if cells * spacing == length else F.pad(x, (0, 0, 0, cells * spacing - length))
    x_cells = x_cells.unflatten(1, (cells, spacing))
    upper = torch.arange(spacing, device=x.device, dtype=x.dtype) / spacing  # weight of the point after the token
    whole = torch.stack([1 - upper, upper]) @ x_cells  # W^T x of each cell, (batch, cells, 2, channels)
    # A s before a cell, at its two points, from all cells before it: four strictly causal kernels over the cells.
    lags = [F.pad(kernel[:, last + 1 + d : last + cells + d], (1, 0)) for d in (0, -1, 1, 0)]
    pairs = whole[:, :, [0, 1, 0, 1]].permute(0, 2, 3, 1).reshape(batch, 4 * channels, cells)
    far = (
        toeplitz_matmul(pairs, torch.cat(lags)).unflatten(1, (2, 2, channels)).sum(dim=2)
    )  # (batch, 2, channels, cells)
    before = far.permute(1, 0, 3, 2).contiguous()  # (2, batch, cells, channels)
    y = _RunningSums.apply(x_cells, before, kernel[:, last - 1 : last + 2].mT.contiguous())
    return y.flatten(1, 2)[:, :length]


class _RunningSums(torch.autograd.Function):
    """y_t = (1 - t / h) u_t + (t / h) v_t, with (u, v) = A s at both points of the cell, as s takes up x_0 to x_t."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor, near: Tensor) -> Tensor:
        ctx.save_for_backward(x, near)
        spacing = x.shape[2]
        ahead, same, behind = near  # lags -1, 0 and 1 of the grid, (channels,)
        u, v = before.clone()
        y = torch.empty_like(x)
        for t in range(spacing):
            f = t / spacing
            u.addcmul_(x[:, :, t], torch.lerp(same, ahead, f))
            v.addcmul_(x[:, :, t], torch.lerp(behind, same, f))
            torch.lerp(u, v, f, out=y[:, :, t])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, near = ctx.saved_tensors
        spacing = x.shape[2]
        ahead, same, behind = near
        du, dv = g.new_zeros((2, *g[:, :, 0].shape))
        dahead, dsame, dbehind = (torch.zeros_like(du) for _ in range(3))
        dx = torch.empty_like(x)
        for t in reversed(range(spacing)):
            f = t / spacing
            du.add_(g[:, :, t], alpha=1 - f)
            dv.add_(g[:, :, t], alpha=f)
            torch.mul(du, torch.lerp(same, ahead, f), out=dx[:, :, t]).addcmul_(dv, torch.lerp(behind, same, f))
            dahead.addcmul_(x[:, :, t], du, value=f)
            dsame.addcmul_(x[:, :, t], torch.lerp(du, dv, f))
            dbehind.addcmul_(x[:, :, t], dv, value=1 - f)
        return dx, torch.stack([du, dv]), torch.stack([d.sum(dim=(0, 1)) for d in (dahead, dsame, dbehind)])


def _to_lag(kernel: Tensor, last: int) -> tuple[Tensor, int]:
    """Bring a kernel to the lags -last to last with zeros, which meet weights of zero; return the place of lag 0."""
    missing = last - kernel.shape[1] // 2
    return F.pad(kernel, (missing, missing)), last
