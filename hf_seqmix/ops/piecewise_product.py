"""How IPA's column operation is computed and differentiated, block of queries by block; `piecewise.py` is its public face.

Logits of a block are (rows, centres, queries, keys), and live in memory that every block reuses; the backward pass computes
them again. Two choices make the blocks cheap. Queries are taken from the last to the first, so that a relative bias is a
window sliding forward over one vector of offsets, a strided view that needs no gathering, and its gradient the sum of
sheared rows. And where keys are contiguous and later ones hidden, a block meets only the keys up to its last query, which is
half of the work, and the mask is one triangle at the end.

The operator has two faces over one computation, as the Toeplitz product has: a `torch.library` operator, opaque to
`torch.compile` and `torch.export`, while tracing, and an `autograd.Function` otherwise.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ColumnProblem", "column_gradients", "column_product"]

# Bytes of logits of a block. Measured on CPU for 8 centres of width 64 and 2048 keys: 64 queries, or 4 MiB.
_CPU_BYTES = 4 * 2**20
_DEVICE_BYTES = 256 * 2**20
_MOST_QUERIES = 128


class _Block(NamedTuple):
    """Some rows and some queries, counted from the last, and the keys that they meet."""

    rows: slice
    queries: slice
    keys: int


class ColumnProblem:
    """The arguments of one call, made ready: queries reversed, tables laid out by offset.

    Args:
        query: (batch, centres, n, r). key: (batch, centres, N, r). value: (batch, centres, N, k).
        bias: (centres, M) or (centres, 2 M - 1), or None.
        coupling: the same, or the flat table of `absolute`, or None.
        mix: (1,), the share of the softmax over keys, for the norm "mix".
        query_positions: (batch or 1, n); None where query i stands at the place of key N - n + i.
        key_positions: (batch or 1, N); given with `query_positions`.
        visible: (batch or 1, n, N) bool, all that a query sees; given with `query_positions`.
        key_mask: (batch, N) bool, True at keys that count, without `query_positions`.
        norm: what kernels are normalised over; "mean" takes the logits as kernels and divides by the count.
        scale: factor on query . key.
        causal: whether later keys are hidden (without `visible`), and offsets are never negative.
        limit: 0, or the largest position + 1 of an absolute coupling.
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
        limit: int,
    ) -> None:
        dtype = torch.promote_types(query.dtype, torch.float32)
        self.dtype, self.norm, self.scale, self.causal, self.limit = dtype, norm, scale, causal, limit
        self.batch, self.centres, self.n, _ = query.shape
        self.total = key.shape[2]
        self.query = (query.to(dtype) * scale).flip(2)
        self.key = key.to(dtype).contiguous()
        self.value = value.contiguous()
        self.query_positions, self.key_positions = query_positions, key_positions
        self.visible = None if visible is None else visible.flip(1)
        self.key_mask = key_mask
        self.bias, self.coupling = bias, coupling
        self.mix = None if mix is None else mix.to(dtype)
        self.start = self.total - self.n
        contiguous = query_positions is None
        self.bias_window = self._window(bias) if contiguous else None
        self.coupling_window = self._window(coupling) if contiguous and not limit else None
        self.counts = self._counts()  # (batch or 1, 1, n, 1), reversed
        if limit:
            self._check_limit()
        device = query.device
        each = self.centres * max(self.total, 1) * dtype.itemsize
        budget = _CPU_BYTES if device.type == "cpu" else _DEVICE_BYTES
        self.block = max(1, min(self.n, _MOST_QUERIES, budget // each))
        self.row_block = max(1, min(self.batch, budget // (each * self.block)))
        # Query i' of a block, counted from its last, sees key c of the block's last ones if i' + c < block.
        index = torch.arange(self.block, device=device)
        self.triangle = index.unsqueeze(1) + index < self.block
        # Rows one block wider than the keys: zeros there let the gradient of a table be sheared without a copy.
        room = self.row_block * self.centres * self.block * (self.total + self.block)
        self.memory = [torch.empty(room, dtype=dtype, device=device) for _ in range(3)]

    def _window(self, table: Tensor | None) -> Tensor | None:
        """Return the table by falling offset: entry m is that of offset start + n - 1 - m."""
        if table is None:
            return None
        return table.to(self.dtype)[:, self._window_index(table)]

    def _window_index(self, table: Tensor) -> Tensor:
        offsets = self.total - 1 - torch.arange(self.total + self.n - 1, device=table.device)
        return self.relative_index(offsets, table.shape[1])

    def relative_index(self, offsets: Tensor, entries: int) -> Tensor:
        """Return where the entry of an offset stands in a table, the outermost for those beyond it."""
        if self.causal:
            return offsets.clamp(0, entries - 1)
        reach = (entries - 1) // 2
        return offsets.clamp(-reach, reach) + reach

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

    def _check_limit(self) -> None:
        last = self.total if self.query_positions is None else int(self.query_positions.max()) + 1
        if last > self.limit:
            raise ValueError(
                f"the coupling is absolute: it has entries for {self.limit} positions (max_position_embeddings), but position "
                f"{last - 1} was asked for. Shorten the input, or use the coupling 'shared' or 'toeplitz'."
            )

    def blocks(self) -> Iterator[_Block]:
        """Cut queries, and rows where logits of one row are small, into blocks."""
        for first in range(0, self.n, self.block):
            queries = slice(first, min(first + self.block, self.n))
            keys = self.total - first if self.causal and self.visible is None else self.total
            for row in range(0, self.batch, self.row_block):
                yield _Block(slice(row, min(row + self.row_block, self.batch)), queries, keys)

    def scratch(self, block: _Block, which: int, wide: bool = False) -> Tensor:
        """Return memory for (rows, centres, queries, keys); when wide, part of rows that end in a block of zeros."""
        rows, queries = block.rows.stop - block.rows.start, block.queries.stop - block.queries.start
        width = block.keys + (queries if wide else 0)
        flat = self.memory[which][: rows * self.centres * queries * width].view(rows, self.centres, queries, width)
        if wide:
            flat[..., block.keys :] = 0
        return flat[..., : block.keys]

    def logits(self, block: _Block) -> Tensor:
        """Compute scale query . key + bias, (rows, centres, queries, keys)."""
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

    def entries(self, block: _Block, table: Tensor, window: Tensor | None) -> Tensor:
        """Return a table's entry for each pair of the block, (rows or 1, centres, queries, keys)."""
        if window is not None:
            size = (self.centres, block.queries.stop - block.queries.start, block.keys)
            strides = (window.stride(0), 1, 1)
            return window.as_strided(size, strides, window.storage_offset() + block.queries.start).unsqueeze(0)
        index = self.pair_index(block, table)
        return table.to(self.dtype)[:, index].transpose(0, 1)

    def pair_index(self, block: _Block, table: Tensor) -> Tensor:
        """Return where the entry of each pair stands in a table, (rows or 1, queries, keys)."""
        if self.query_positions is None:
            place = self.total - 1 - torch.arange(block.queries.start, block.queries.stop, device=table.device)
            queries, keys = place[None, :, None], torch.arange(block.keys, device=table.device)[None, None]
        else:
            assert self.key_positions is not None
            queries = _rows(self.query_positions, block.rows).flip(1)[:, block.queries, None]
            keys = _rows(self.key_positions, block.rows)[:, None]
        if not self.limit or table is self.bias:
            return self.relative_index(queries - keys, table.shape[1])
        if self.causal:
            # Hidden pairs have no entry: any will do.
            return (queries * (queries + 1)).div(2, rounding_mode="floor") + torch.minimum(keys, queries)
        return queries * self.limit + keys

    def table_gradient(self, block: _Block, table: Tensor, gradient: Tensor, pairs: Tensor, relative: bool) -> None:
        """Add what the pairs of a block contribute to the gradient of a table.

        Args:
            block: the block.
            table: the table.
            gradient: of the window when `relative`, else of the table; added to.
            pairs: (rows, centres, queries, keys), wide scratch memory when `relative`.
            relative: whether the table is read through a window.
        """
        if relative:
            rows, centres, queries, keys = pairs.shape
            # Element (i, j) of rows of width w + 1 is element (i, i + j) of rows of width w.
            width = keys + queries - 1
            strides = (pairs.stride(0), pairs.stride(1), width, 1)
            sheared = pairs.as_strided((rows, centres, queries, width), strides, pairs.storage_offset())
            first = block.queries.start
            gradient[:, first : first + width] += sheared.sum(dim=(0, 2))
            return
        index = self.pair_index(block, table)
        if index.shape[0] == 1:
            pairs = pairs.sum(dim=0, keepdim=True)
        gradient.index_add_(1, index.flatten(), pairs.transpose(0, 1).flatten(1))

    def hide(self, block: _Block, x: Tensor, fill: float) -> Tensor:
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

    def count(self, block: _Block) -> Tensor:
        """Return how many keys each query sees, (rows or 1, 1, queries, 1)."""
        return _rows(self.counts, block.rows)[:, :, block.queries]


def _rows(x: Tensor, rows: slice) -> Tensor:
    return x if x.shape[0] == 1 else x[rows]


def _over_keys(problem: ColumnProblem, block: _Block, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(logits - max) over visible keys, in place, and its sum, which is 0 where nothing is visible."""
    problem.hide(block, logits, float("-inf"))
    top = logits.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    weights = logits.sub_(top).exp_()
    return weights, weights.sum(dim=-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).tiny)


def _weights(problem: ColumnProblem, block: _Block) -> tuple[Tensor, Tensor | None]:
    """Return weights of the values and what the product is divided by afterwards, (rows or 1, centres or 1, queries, 1)."""
    logits = problem.logits(block)
    divisor: Tensor | None = None
    if problem.norm == "p":
        weights, divisor = torch.softmax(logits, dim=1, out=problem.scratch(block, 1)), problem.count(block)
        problem.hide(block, weights, 0)
    elif problem.norm in ("none", "mean"):
        weights = problem.hide(block, logits, 0)
        divisor = problem.count(block) if problem.norm == "mean" else None
    elif problem.norm == "mix":
        assert problem.mix is not None
        over_centres = problem.hide(block, torch.softmax(logits, dim=1, out=problem.scratch(block, 1)), 0)
        over_keys, total = _over_keys(problem, block, logits)
        divisor = problem.count(block)
        weights = over_centres.mul_(1 - problem.mix).add_(over_keys.mul_(problem.mix * divisor / total))
    else:
        if problem.norm == "prod":
            logits = torch.log_softmax(logits, dim=1, out=problem.scratch(block, 1)).add_(logits)
        weights, divisor = _over_keys(problem, block, logits)
    if problem.coupling is not None:
        weights.mul_(problem.entries(block, problem.coupling, problem.coupling_window))
    return weights, divisor


def column_product(problem: ColumnProblem) -> Tensor:
    """Compute the column operation.

    Returns:
        (batch, centres, n, k) in the dtype of the values.
    """
    value = problem.value
    out = value.new_empty((problem.batch, problem.centres, problem.n, value.shape[-1]))
    for block in problem.blocks():
        weights, divisor = _weights(problem, block)
        product = weights.to(value.dtype).flatten(0, 1) @ value[block.rows, :, : block.keys].flatten(0, 1)
        product = product.view(weights.shape[:3] + product.shape[-1:])
        if divisor is not None:
            product = product.to(problem.dtype).div_(divisor)
        out[block.rows, :, block.queries] = product
    return out.flip(2)


def column_gradients(
    problem: ColumnProblem, upstream: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of query, key, value, bias, coupling table and share, all but the first three None if absent.

    Args:
        problem: the arguments.
        upstream: (batch, centres, n, k).
    """
    dtype = problem.dtype
    g = upstream.to(dtype).flip(2)
    value = problem.value.to(dtype)
    dquery = torch.empty_like(problem.query)
    dkey, dvalue = torch.zeros_like(problem.key), torch.zeros_like(value)
    bias, coupling = problem.bias, problem.coupling
    bias_seen = None if bias is None else _gradient_memory(bias, problem.bias_window, dtype)
    coupling_seen = None if coupling is None else _gradient_memory(coupling, problem.coupling_window, dtype)
    dmix = None if problem.mix is None else torch.zeros_like(problem.mix)
    for block in problem.blocks():
        rows, queries, keys = block
        over_centres, over_keys, kernels = _kernels(problem, block)
        dlogits = problem.scratch(block, 1, wide=True)
        some = g[rows, :, queries]
        if problem.norm in ("p", "mean"):
            some = some / problem.count(block)
        flat_value = value[rows, :, :keys].flatten(0, 1)
        torch.bmm(some.flatten(0, 1), flat_value.transpose(1, 2), out=dlogits.flatten(0, 1))
        weights = kernels
        if coupling is not None:
            assert coupling_seen is not None
            entries = problem.entries(block, coupling, problem.coupling_window)
            relative = problem.coupling_window is not None
            if relative:
                pairs = _wide(dlogits)
                torch.mul(dlogits, kernels, out=pairs)
            else:
                pairs = dlogits * kernels
            problem.table_gradient(block, coupling, coupling_seen, pairs, relative)
            weights = kernels * entries
            dlogits.mul_(entries)
        dvalue_part = dvalue[rows, :, :keys].flatten(0, 1)
        dvalue_part.baddbmm_(weights.flatten(0, 1).transpose(1, 2), some.flatten(0, 1))
        _logit_gradients(problem, block, over_centres, over_keys, dlogits, dmix)
        if bias is not None:
            assert bias_seen is not None
            problem.table_gradient(block, bias, bias_seen, dlogits, problem.bias_window is not None)
        flat = dlogits.flatten(0, 1)
        part = torch.bmm(flat, problem.key[rows, :, :keys].flatten(0, 1))
        dquery[rows, :, queries] = part.view(dlogits.shape[:3] + part.shape[-1:])
        dkey_part = dkey[rows, :, :keys].flatten(0, 1)
        dkey_part.baddbmm_(flat.transpose(1, 2), problem.query[rows, :, queries].flatten(0, 1))
    dbias = None if bias is None or bias_seen is None else _fold(problem, bias, bias_seen, problem.bias_window)
    dcoupling = None
    if coupling is not None and coupling_seen is not None:
        dcoupling = _fold(problem, coupling, coupling_seen, problem.coupling_window)
    return dquery.flip(2).mul_(problem.scale), dkey, dvalue, dbias, dcoupling, dmix


def _gradient_memory(table: Tensor, window: Tensor | None, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(table, dtype=dtype) if window is None else torch.zeros_like(window)


def _wide(like: Tensor) -> Tensor:
    """Return new memory of the shape of wide scratch memory, and as wide, zeros beyond."""
    return like.new_zeros((*like.shape[:3], like.shape[3] + like.shape[2]))[..., : like.shape[3]]


def _fold(problem: ColumnProblem, table: Tensor, seen: Tensor, window: Tensor | None) -> Tensor:
    """Return the gradient of a table from that of its window, whose ends are many offsets of one entry."""
    if window is None:
        return seen
    gradient = torch.zeros_like(table, dtype=seen.dtype)
    return gradient.index_add_(1, problem._window_index(table), seen)


def _kernels(problem: ColumnProblem, block: _Block) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return softmax over centres and over keys, where the norm has them, and the kernels without their count."""
    logits = problem.logits(block)
    norm = problem.norm
    if norm in ("none", "mean"):
        return None, None, problem.hide(block, logits, 0)
    if norm == "p":
        over_centres = problem.hide(block, torch.softmax(logits, dim=1, out=problem.scratch(block, 2)), 0)
        return over_centres, None, over_centres
    if norm == "j":
        over_keys, total = _over_keys(problem, block, logits)
        over_keys.div_(total)
        return None, over_keys, over_keys
    over_centres = torch.softmax(logits, dim=1)
    if norm == "prod":
        logits = torch.log_softmax(logits, dim=1, out=problem.scratch(block, 2)).add_(logits)
        over_keys, total = _over_keys(problem, block, logits)
        over_keys.div_(total)
        return over_centres, over_keys, over_keys
    assert problem.mix is not None
    problem.hide(block, over_centres, 0).div_(problem.count(block))
    over_keys, total = _over_keys(problem, block, logits)
    over_keys.div_(total)
    return over_centres, over_keys, torch.lerp(over_centres, over_keys, problem.mix)


def _logit_gradients(
    problem: ColumnProblem,
    block: _Block,
    over_centres: Tensor | None,
    over_keys: Tensor | None,
    gradient: Tensor,
    dmix: Tensor | None,
) -> None:
    """Turn the gradient of the kernels into that of the logits, in place; add that of the share to `dmix`."""
    norm = problem.norm
    if norm in ("none", "mean"):
        problem.hide(block, gradient, 0)
    elif norm == "p":
        assert over_centres is not None  # 0 where hidden, and so is what follows
        gradient.sub_((gradient * over_centres).sum(dim=1, keepdim=True)).mul_(over_centres)
    elif norm in ("j", "prod"):
        assert over_keys is not None
        gradient.mul_(over_keys)
        gradient.sub_(over_keys * gradient.sum(dim=-1, keepdim=True))
        if norm == "prod":
            assert over_centres is not None
            shared = gradient.sum(dim=1, keepdim=True)
            gradient.mul_(2).sub_(over_centres.mul_(shared))
    else:
        assert over_centres is not None and over_keys is not None and problem.mix is not None and dmix is not None
        dmix += ((over_keys - over_centres) * gradient).sum()
        # The softmax over centres has been divided by the count, which its gradient is multiplied by once.
        among_centres = gradient * over_centres
        among_centres.sub_(over_centres.mul_(problem.count(block)) * among_centres.sum(dim=1, keepdim=True))
        gradient.mul_(over_keys)
        gradient.sub_(over_keys * gradient.sum(dim=-1, keepdim=True))
        gradient.mul_(problem.mix).add_(among_centres.mul_(1 - problem.mix))
