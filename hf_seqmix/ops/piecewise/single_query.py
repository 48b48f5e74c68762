"""The arguments of IPA's column operation with one query a row, as in decoding: no blocks, no memory of its own."""

import torch
from torch import Tensor

from ..common.dispatch import cast, compute_dtype
from .problem import Block, relative_index

__all__ = ["SingleQuery"]


class SingleQuery:
    """The arguments of one call with one query a row, as in decoding: a single block, and memory that torch finds.

    Logits and kernels are (batch, centers, 1, keys), and blocks, which methods take as `ColumnProblem`'s do, say
    nothing. Arguments are those of `ColumnProblem`.
    """

    coupling_window = None

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
        self.dtype, self.norm, self.scale, self.causal = compute_dtype(query.dtype), norm, scale, causal
        # Scaled here, as in `ColumnProblem`, so that steps round as one call does.
        self.query, self.key, self.value = cast(query, self.dtype) * scale, cast(key, self.dtype), value
        self.bias, self.coupling = bias, coupling
        self.mix = None if mix is None else mix.to(self.dtype)
        if query_positions is None or key_positions is None or visible is None:
            self.seen = None if key_mask is None else key_mask[:, None, None]
            self.offsets = None  # the query stands beside the last key
        else:
            self.seen = visible.unsqueeze(1)  # (batch or 1, 1, 1, keys)
            self.offsets = query_positions - key_positions  # (batch or 1, keys)

        self.all_see = self.seen is None

    def scratch(self, block: Block, which: int) -> None:
        """Return no memory."""

    def logits(self, block: Block) -> Tensor:
        """Compute scale query . key + bias."""
        products = self.query @ self.key.mT
        return products if self.bias is None else products.add_(self.entries(block, self.bias, None))

    def entries(self, block: Block, table: Tensor, window: Tensor | None) -> Tensor:
        """Return a table's entry for each key, (centers, 1, keys) or (batch or 1, centers, 1, keys)."""
        table = cast(table, self.dtype)
        if self.offsets is None:
            return _last_entries(table, self.key.shape[2], self.causal).unsqueeze(1)
        index = relative_index(self.offsets, table.shape[1], self.causal)
        chosen = table.index_select(1, index.flatten())
        return chosen.view(len(table), -1, 1, index.shape[-1]).transpose(0, 1)

    def hide(self, block: Block, x: Tensor, fill: float) -> Tensor:
        """Fill the places of hidden keys, in place."""
        return x if self.seen is None else x.masked_fill_(~self.seen, fill)

    def count(self, block: Block) -> Tensor:
        """Return how many keys the query sees, at least 1, broadcastable to (batch, centers, 1, 1)."""
        if self.seen is None:
            return self.query.new_full((), self.key.shape[2])
        return self.seen.sum(dim=-1, keepdim=True).clamp(min=1)


def _last_entries(table: Tensor, keys: int, causal: bool) -> Tensor:
    """Return the entries of the offsets keys - 1 to 0, the outermost for those beyond the table, (centers, keys)."""
    first = 0 if causal else table.shape[1] // 2
    entries = table[:, first : first + keys].flip(1)
    beyond = keys - entries.shape[1]
    return entries if beyond == 0 else torch.cat([entries[:, :1].expand(-1, beyond), entries], dim=1)
