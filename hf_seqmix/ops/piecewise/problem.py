"""The arguments of IPA's column operation, made ready to be computed block of queries by block.

Logits of a block are (rows, centers, queries, keys), in memory that every block reuses. Two choices make the blocks
cheap:

* Queries are taken from the last to the first. So a relative bias is a window that slides forward over one vector of
  offsets: a strided view, which needs no gathering. The gradient of the bias is the sum of sheared rows.
* Where keys are contiguous and later keys hidden, a block meets only the keys up to its last query, which is half of
  the work. The mask is one triangle at the end.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..common.dispatch import compute_dtype

__all__ = ["Block", "ColumnProblem", "relative_index"]

# Bytes of logits of a block, and its queries. Measured on one CPU thread for 8 centers: 64 queries, at 256 keys of
# width 24, at 512 and 2048 of width 64. More rows of the batch help up to half of a thread's cache.
_CPU_BYTES = 4 * 2**20
_CPU_QUERIES = 64
_CPU_BYTES_OF_ROWS = 2**19
_DEVICE_BYTES = 256 * 2**20
_DEVICE_QUERIES = 128


class Block(NamedTuple):
    """Some rows and some queries, counted from the last, and the keys that they meet."""

    rows: slice
    queries: slice
    keys: int


class ColumnProblem:
    """The arguments of one call, made ready: queries reversed, tables laid out by offset.

    Args:
        query: (batch, centers, n, r).
        key: (batch, centers, N, r).
        value: (batch, centers, N, k).
        bias: (centers, M) or (centers, 2 M - 1), or None.
        coupling: likewise.
        mix: (1,), the share of the softmax over keys, for the norm "mix".
        query_positions: (batch or 1, n); None where query i stands at the place of key N - n + i.
        key_positions: (batch or 1, N); given with `query_positions`.
        visible: (batch or 1, n, N) bool, all that a query sees; given with `query_positions`.
        key_mask: (batch, N) bool, True at keys that count, without `query_positions`.
        norm: what kernels are normalized over, see `piecewise_column`.
        scale: factor on query . key.
        causal: whether later keys are hidden (without `visible`), and offsets are never negative.
        block_bytes: bytes of logits of a block; by default what suits the device.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        coupling: Tensor | None,
        mix: Tensor | None,
        query_positions: Tensor | None,
        key_positions: Tensor | None,
        visible: Tensor | None,
        key_mask: Tensor | None,
        norm: str,
        scale: float,
        causal: bool,
        block_bytes: int | None = None,
    ) -> None:
        dtype = compute_dtype(query.dtype)
        self.dtype, self.norm, self.scale, self.causal = dtype, norm, scale, causal
        self.batch, self.centers, self.n, _ = query.shape
        self.total = key.shape[2]
        self.query = (query.to(dtype) * scale).flip(2)
        self.key = key.to(dtype).contiguous()
        self.value = value.contiguous()
        self.query_positions, self.key_positions = query_positions, key_positions
        self.visible = None if visible is None else visible.flip(1)
        self.key_mask = key_mask
        self.all_see = visible is None and key_mask is None  # each query sees a key
        self.bias, self.coupling = bias, coupling
        self.mix = None if mix is None else mix.to(dtype)
        self.start = self.total - self.n
        self.bias_window, self.coupling_window = self._window(bias), self._window(coupling)
        self.counts = self._counts()  # (batch or 1, 1, n, 1), reversed
        device = query.device
        each = self.centers * max(self.total, 1) * dtype.itemsize
        on_cpu = device.type == "cpu"
        most, of_rows = _DEVICE_QUERIES, _DEVICE_BYTES
        if on_cpu:
            most, of_rows = _CPU_QUERIES, _CPU_BYTES_OF_ROWS * torch.get_num_threads()
        budget = block_bytes or (_CPU_BYTES if on_cpu else _DEVICE_BYTES)
        self.block = max(1, min(self.n, most, budget // each))
        self.row_block = max(1, min(self.batch, (block_bytes or of_rows) // (each * self.block)))
        # Query i' of a block, counted from its last, sees key c of the block's last ones if i' + c < block.
        index = torch.arange(self.block, device=device)
        self.triangle = index.unsqueeze(1) + index < self.block
        # Rows one block wider than the keys: zeros there let the gradient of a table be sheared without a copy.
        room = self.row_block * self.centers * self.block * (self.total + self.block)
        self.memory = [torch.empty(room, dtype=dtype, device=device) for _ in range(3)]

    def _window(self, table: Tensor | None) -> Tensor | None:
        """Return the table by falling offset: entry m is that of offset start + n - 1 - m; None with positions."""
        if table is None or self.query_positions is not None:
            return None
        return table.to(self.dtype)[:, self.window_index(table)]

    def window_index(self, table: Tensor) -> Tensor:
        """Return where the entry of each falling offset stands in a table."""
        offsets = self.total - 1 - torch.arange(self.total + self.n - 1, device=table.device)
        return relative_index(offsets, table.shape[1], self.causal)

    def _counts(self) -> Tensor:
        device = self.query.device
        if self.visible is not None:
            counts = self.visible.sum(dim=-1)
        elif self.key_mask is not None:
            seen = self.key_mask.long()
            if self.causal:
                counts = seen.cumsum(dim=1)[:, self.start :].flip(1)
            else:
                counts = seen.sum(dim=1, keepdim=True).expand(-1, self.n)
        elif self.causal:
            counts = torch.arange(self.total, self.start, -1, device=device).unsqueeze(0)
        else:
            counts = torch.full((1, self.n), self.total, device=device)
        return counts.clamp(min=1).to(self.dtype)[:, None, :, None]

    def blocks(self) -> Iterator[Block]:
        """Cut queries, and rows where logits of one row are small, into blocks."""
        for first in range(0, self.n, self.block):
            queries = slice(first, min(first + self.block, self.n))
            keys = self.total - first if self.causal and self.visible is None else self.total
            for row in range(0, self.batch, self.row_block):
                yield Block(slice(row, min(row + self.row_block, self.batch)), queries, keys)

    def scratch(self, block: Block, which: int, wide: bool = False) -> Tensor:
        """Return memory for (rows, centers, queries, keys); when wide, part of rows that end in a block of zeros."""
        rows, queries = block.rows.stop - block.rows.start, block.queries.stop - block.queries.start
        width = block.keys + (queries if wide else 0)
        flat = self.memory[which][: rows * self.centers * queries * width].view(rows, self.centers, queries, width)
        if wide:
            flat[..., block.keys :] = 0
        return flat[..., : block.keys]

    def logits(self, block: Block) -> Tensor:
        """Compute scale query . key + bias, (rows, centers, queries, keys)."""
        out = self.scratch(block, 0)
        query, key = self.query[block.rows, :, block.queries], self.key[block.rows, :, : block.keys]
        beta = 0
        if self.bias is not None:
            out.copy_(self.entries(block, self.bias, self.bias_window))
            beta = 1
        torch.baddbmm(
            out.flatten(0, 1), query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), beta=beta, out=out.flatten(0, 1)
        )
        return out

    def entries(self, block: Block, table: Tensor, window: Tensor | None) -> Tensor:
        """Return a table's entry for each pair of the block, (rows or 1, centers, queries, keys)."""
        if window is not None:
            size = (self.centers, block.queries.stop - block.queries.start, block.keys)
            strides = (window.stride(0), 1, 1)
            return window.as_strided(size, strides, window.storage_offset() + block.queries.start).unsqueeze(0)
        index = self.pair_index(block, table)
        return table.to(self.dtype)[:, index].transpose(0, 1)

    def pair_index(self, block: Block, table: Tensor) -> Tensor:
        """Return where the entry of each pair stands in a table, (rows or 1, queries, keys), from the positions."""
        assert self.query_positions is not None and self.key_positions is not None
        queries = _rows(self.query_positions, block.rows).flip(1)[:, block.queries, None]
        keys = _rows(self.key_positions, block.rows)[:, None]
        return relative_index(queries - keys, table.shape[1], self.causal)

    def table_gradient(self, block: Block, table: Tensor, gradient: Tensor, pairs: Tensor, relative: bool) -> None:
        """Add what the pairs of a block contribute to the gradient of a table.

        Args:
            block: the block.
            table: the table.
            gradient: of the window when `relative`, else of the table; added to.
            pairs: (rows, centers, queries, keys), wide scratch memory when `relative`.
            relative: whether the table is read through a window.
        """
        if relative:
            rows, centers, queries, keys = pairs.shape
            # Element (i, j) of rows of width w + 1 is element (i, i + j) of rows of width w.
            width = keys + queries - 1
            strides = (pairs.stride(0), pairs.stride(1), width, 1)
            sheared = pairs.as_strided((rows, centers, queries, width), strides, pairs.storage_offset())
            first = block.queries.start
            gradient[:, first : first + width] += sheared.sum(dim=(0, 2))
            return
        index = self.pair_index(block, table)
        if index.shape[0] == 1:
            pairs = pairs.sum(dim=0, keepdim=True)
        gradient.index_add_(1, index.flatten(), pairs.transpose(0, 1).flatten(1))

    def hide(self, block: Block, x: Tensor, fill: float) -> Tensor:
        """Fill the places of hidden keys, in place."""
        if self.visible is not None:
            hidden = ~_rows(self.visible, block.rows)[:, None, block.queries]
            return x.masked_fill_(hidden, fill)
        if self.key_mask is not None:
            x.masked_fill_(~self.key_mask[block.rows, None, None, : block.keys], fill)
        if self.causal:
            queries = block.queries.stop - block.queries.start
            corner = x[..., block.keys - queries :]
            # The triangle of a shorter block is the corner of the full one's that begins as far in.
            hidden = ~self.triangle[self.block - queries :, :queries]
            corner.masked_fill_(hidden, fill)
        return x

    def count(self, block: Block) -> Tensor:
        """Return how many keys each query sees, (rows or 1, 1, queries, 1)."""
        return _rows(self.counts, block.rows)[:, :, block.queries]


def relative_index(offsets: Tensor, entries: int, causal: bool) -> Tensor:
    """Return where the entry of an offset stands in a table, the outermost for those beyond it."""
    if causal:
        return offsets.clamp(0, entries - 1)
    reach = (entries - 1) // 2
    return offsets.clamp(-reach, reach) + reach


def _rows(x: Tensor, rows: slice) -> Tensor:
    return x if x.shape[0] == 1 else x[rows]
