"""How much of a pointer's attention falls on the places that hold a wanted token, without the matrix of scores.

Training with a copy head asks nothing else. Softmax, shares and their gradients would be tensors (batch, queries,
places); here blocks of queries meet the places up to their own, and a backward pass computes the scores again.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .dispatch import dispatch, without_autocast
from .once import once

__all__ = ["pointer_sums", "pointer_sums_dense"]

# Scores of a block: in the cache of a CPU, and enough work for a GPU.
_CPU_SCORES = 2**18
_DEVICE_SCORES = 2**25


def pointer_sums(
    queries: Tensor,
    keys: Tensor,
    ids: Tensor,
    targets: Tensor,
    places: Tensor,
    sequence_ids: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum exponentials of scores over the places that a query sees, and over those of them with the wanted token.

    s[b, l, j] = q[b, l] . k[b, j] / sqrt(r)
    log_all[b, l] = log sum_(j seen) exp(s[b, l, j])
    log_found[b, l] = log sum_(j seen, ids[b, j] = targets[b, l]) exp(s[b, l, j])

    A query sees the places up to its own that hold an id. Both sums are minus infinity where there is no term, and
    log_found also where it lies so far below log_all that its part is no float32 (some 100; float64: 700).

    Args:
        queries: (batch, queries, rank).
        keys: (batch, places, rank). Places after the last query's are not read: a preallocated cache may have some.
        ids: (batch, places) long, -1 where a place holds nothing.
        targets: (batch, queries) long, at least 0.
        places: (queries,) long, the places of the queries: consecutive numbers.
        sequence_ids: of the queries (batch, queries) and of the places (batch, places), where rows are packed.

    Returns:
        `log_all` and `log_found`, (batch, queries), in float32 (float64 for float64). They can be differentiated once.
    """
    route, dtype = dispatch(queries, keys)
    if route != "eager":
        return pointer_sums_dense(queries, keys, ids, targets, places, sequence_ids)
    of_queries, of_places = (None, None) if sequence_ids is None else sequence_ids
    number = queries.shape[1]
    if 0 < number < keys.shape[1]:
        used = int(places[-1]) + 1
        keys, ids = keys[:, :used], ids[:, :used]
        of_places = None if of_places is None else of_places[:, :used]
    log_all, log_found = _PointerSums.apply(queries.to(dtype), keys.to(dtype), ids, targets, of_queries, of_places)
    return log_all, log_found


def pointer_sums_dense(
    queries: Tensor,
    keys: Tensor,
    ids: Tensor,
    targets: Tensor,
    places: Tensor,
    sequence_ids: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute `pointer_sums` from the matrix of all scores: the definition."""
    _, dtype = dispatch(queries, keys)
    with without_autocast(queries.device.type):
        scores = queries.to(dtype) @ keys.to(dtype).mT * queries.shape[-1] ** -0.5
    place = torch.arange(keys.shape[1], device=keys.device)
    seen = (place <= places.unsqueeze(1)) & (ids >= 0).unsqueeze(1)
    if sequence_ids is not None:
        seen = seen & (sequence_ids[0].unsqueeze(2) == sequence_ids[1].unsqueeze(1))
    return _log_sum(scores, seen), _log_sum(scores, seen & (ids.unsqueeze(1) == targets.unsqueeze(2)))


def _log_sum(scores: Tensor, counted: Tensor) -> Tensor:
    """Return log sum exp of what counts, without a gradient where nothing does."""
    some = counted.any(dim=-1)
    sums = scores.masked_fill(~counted & some.unsqueeze(-1), float("-inf")).logsumexp(dim=-1)
    return sums.masked_fill(~some, float("-inf"))


class _Blocks:
    """Cuts a problem whose queries stand at the last places into blocks, and makes the scores of each."""

    def __init__(
        self, queries: Tensor, keys: Tensor, ids: Tensor, of_queries: Tensor | None, of_places: Tensor | None
    ) -> None:
        self.queries, self.keys, self.ids = queries, keys, ids
        self.of_queries, self.of_places = of_queries, of_places
        self.scale = queries.shape[-1] ** -0.5

    def __iter__(self) -> Iterator[tuple[slice, slice, slice]]:
        """Yield rows, queries and places of each block: slices."""
        batch, number, _ = self.queries.shape
        places = self.keys.shape[1]
        on_cpu = self.queries.device.type == "cpu"
        rows = 1 if on_cpu else max(batch, 1)
        size = max(16, (_CPU_SCORES if on_cpu else _DEVICE_SCORES) // max(1, rows * places))
        for row in range(0, batch, rows):
            for start in range(0, number, size):
                stop = min(start + size, number)
                yield slice(row, row + rows), slice(start, stop), slice(0, places - number + stop)

    def scores(self, rows: slice, some: slice, seen: slice) -> Tensor:
        """Return scores (rows, queries, places), minus infinity where a place is not seen."""
        scores = self.queries[rows, some] * self.scale @ self.keys[rows, seen].mT
        hidden = (self.ids[rows, seen] < 0).unsqueeze(1)
        if self.of_queries is not None and self.of_places is not None:
            hidden = hidden | (self.of_queries[rows, some].unsqueeze(2) != self.of_places[rows, seen].unsqueeze(1))
        scores.masked_fill_(hidden, float("-inf"))
        # The last queries of a block end with the last places: the corner is a triangle.
        corner = scores[..., seen.stop - (some.stop - some.start) :]
        later = torch.ones(corner.shape[1:], dtype=torch.bool, device=scores.device).triu_(1)
        corner.masked_fill_(later, float("-inf"))
        return scores


class _PointerSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        ids: Tensor,
        targets: Tensor,
        of_queries: Tensor | None,
        of_places: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        blocks = _Blocks(queries, keys, ids, of_queries, of_places)
        log_all, log_found = (queries.new_empty(queries.shape[:2]) for _ in range(2))
        with without_autocast(queries.device.type):
            for rows, some, seen in blocks:
                scores = blocks.scores(rows, some, seen)
                most = scores.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
                weights = scores.sub_(most).exp_()
                log_all[rows, some] = weights.sum(dim=-1).log() + most.squeeze(-1)
                weights *= ids[rows, seen].unsqueeze(1) == targets[rows, some].unsqueeze(2)
                log_found[rows, some] = weights.sum(dim=-1).log() + most.squeeze(-1)
        ctx.save_for_backward(queries, keys, ids, targets, of_queries, of_places, log_all, log_found)
        return log_all, log_found

    @staticmethod
    @once
    def backward(ctx: Any, of_all: Tensor, of_found: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, ids, targets, of_queries, of_places, log_all, log_found = ctx.saved_tensors
        blocks = _Blocks(queries, keys, ids, of_queries, of_places)
        dqueries, dkeys = torch.zeros_like(queries), torch.zeros_like(keys)
        # Without a term there is no gradient: the exponential of any score over the largest number is 0.
        largest = torch.finfo(log_all.dtype).max
        log_all, log_found = (x.masked_fill(x == float("-inf"), largest).unsqueeze(-1) for x in (log_all, log_found))
        with without_autocast(queries.device.type):
            for rows, some, seen in blocks:
                scores = blocks.scores(rows, some, seen)
                wanted = ids[rows, seen].unsqueeze(1) == targets[rows, some].unsqueeze(2)
                found = (scores - log_found[rows, some]).masked_fill_(~wanted, float("-inf")).exp_()
                gradient = scores.sub_(log_all[rows, some]).exp_().mul_(of_all[rows, some].unsqueeze(-1))
                gradient.addcmul_(found, of_found[rows, some].unsqueeze(-1)).mul_(blocks.scale)
                dqueries[rows, some] = gradient @ keys[rows, seen]
                dkeys[rows, seen] += gradient.mT @ queries[rows, some]
        return dqueries, dkeys, None, None, None, None
