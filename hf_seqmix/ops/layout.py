"""Where the tokens of each sequence lie in padded and packed rows; `masking.py` reads masks, `packing.py` boundaries.

A mixer gets a `TokenLayout`, made of the attention mask, and hands its position-mixing operation to
`TokenLayout.mix`. Mixers that attend to single tokens (IPA, softmax attention) read the masks of the layout instead.

* real tokens contiguous in each row: values at pads are filled with zeros directly before the operation, since biases
  and convolutions of earlier operations have filled the pads again;
* pads between real tokens, or several sequences in a row: the real tokens of each sequence are gathered into a row of
  their own, mixed there, and scattered back. Where the batch cannot be looked at (tracing, `torch.func.vmap`, "meta"),
  rows always go this way, which has static shapes. In a graph, rows that may be packed go to an operator, which looks
  when the graph runs (`rows.py`).

With a history (a cache), each row's real tokens are kept contiguous at the end of the history, pads before them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .common.dispatch import dispatch, has_numbers
from .common.invariance import is_batch_invariant
from .common.ordering import inverse_order, places_first
from .common.running_max import running_max
from .masking import all_are_real, real_tokens
from .packing import (
    group_by_length,
    mix_groups,
    packed_sequence_ids,
    refuse_other_names,
    refuse_restarts,
    row_of_each_sequence,
)
from .rows import RowOperation, packed_plan

__all__ = ["TokenLayout", "token_layout"]


class TokenLayout(NamedTuple):
    """Where the tokens of each sequence lie in a batch of rows; made by `token_layout`.

    A tuple of tensors, so that tools which move arguments between devices move a layout, too.
    """

    mask: Tensor | None = None
    """(batch, length) bool, True at the real tokens of this call; None when all are real."""
    key_mask: Tensor | None = None
    """(batch, past + length) bool, the same with the history in front; None when all are real."""
    sequence_ids: Tensor | None = None
    """(batch, length) long, equal for tokens of one packed sequence; None without packing. A graph does not know
    whether there is more than one."""
    gather: tuple[Tensor, ...] = ()
    """For each group of rows of one length, (sequences, longest) long: the positions of their tokens in the
    flattened batch. Empty when rows are mixed as they stand, and for packed rows in a graph."""
    gathered: tuple[Tensor, ...] = ()
    """For each group, (sequences, longest) bool: True where `gather` names a token of that sequence."""
    scatter: Tensor | None = None
    """(batch, length) long, where each token stands among the flattened groups, one after another."""
    realign: bool = False
    """Whether pads follow real tokens, so that a history must be realigned after these tokens join it."""
    left_padded: bool = False
    """Whether pads stand before real tokens in rows that are mixed as they stand."""
    grid_size: tuple[int, int] | None = None
    """(height, width) of the grid whose places, row after row, the tokens are; None for text."""
    plan: tuple[Tensor, Tensor] | None = None
    """How a graph lays out packed rows, see `packed_plan`."""

    def zero_pads(self, values: Tensor) -> Tensor:
        """Set `values` (batch, length, channels) to zero at pads."""
        # Filled, not multiplied: the value at a pad may be NaN.
        return values if self.mask is None else values.masked_fill(~self.mask.unsqueeze(-1), 0)

    def repeat_last(self, values: Tensor) -> Tensor:
        """Give each pad after real tokens the value of the last of these in this call; (batch, length, ...)."""
        if not self.realign or self.mask is None:
            return values
        mask = self.mask.to(values.device)  # the last layer may be on another device than the inputs
        places = torch.arange(mask.shape[1], device=values.device).expand_as(mask)
        last = running_max(torch.where(mask, places, -1))
        index = torch.where(last < 0, places, last)
        if values.ndim == 3:
            index = index.unsqueeze(-1).expand_as(values)
        return values.gather(1, index)

    def moved(self) -> Tensor:
        """Return how many positions of this call, from the first, `history_places` may move: () long.

        They end with the last pad of any row. The real tokens after that pad stay where they stand.

        Raises:
            ValueError: for a layout without a mask.
        """
        if self.mask is None:
            raise ValueError("a layout without a mask has nothing to realign.")
        ends = torch.arange(1, self.mask.shape[1] + 1, device=self.mask.device)
        return (~self.mask).any(dim=0).mul(ends).amax(dim=0)

    def longest(self, length: int) -> int:
        """Return the length of the longest row that `mix` hands to its operation, for values of `length` positions."""
        return max([group.shape[1] for group in self.gather]) if self.gather else length

    def mix(self, operation: Callable[..., Tensor], values: Tensor, *given: Any, align: bool = False) -> Tensor:
        """Apply an operation that mixes positions to each sequence alone.

        Args:
            operation: (rows, *given) -> mixed, (rows, positions, channels) each; a row is one sequence, zeros around
                it. The operation is called once for each group of rows of one length, at most
                log2(length) + 2 times. A graph takes packed rows where it is a `RowOperation`.
            values: (batch, length, channels).
            *given: handed to the operation: for a `RowOperation`, its tensors, settings and modules.
            align: whether the operation counts positions from the first of a row, so that each row's first real token
                must stand there.

        Returns:
            (batch, length, channels); pad positions are undefined.

        Raises:
            TypeError: for packed rows in a graph and an operation that is no `RowOperation`.
        """
        if is_batch_invariant() and not (self.mask is None and self.sequence_ids is None):
            return self._mix_alone(operation, values, *given)
        if self.scatter is not None:
            return mix_groups(operation, values, self.gather, self.gathered, self.scatter, *given)
        if self.sequence_ids is not None:
            if not isinstance(operation, RowOperation):
                raise TypeError(f"a graph cannot apply {operation} to packed rows: make a RowOperation of it.")
            plan = packed_plan(self.mask, self.sequence_ids) if self.plan is None else self.plan
            return operation.packed(values, plan, *given)
        if align and self.left_padded and self.mask is not None:
            return mix_groups(operation, values, *_pads_last(self.mask), *given)
        return operation(self.zero_pads(values), *given)

    def _mix_alone(self, operation: Callable[..., Tensor], values: Tensor, *given: Any) -> Tensor:
        """Do what `mix` does, with each sequence in a call of its own, as long as it is."""
        batch, length = values.shape[:2]
        rows = torch.arange(batch, device=values.device).unsqueeze(1).expand(batch, length)
        numbers = rows.unsqueeze(-1)
        if self.sequence_ids is not None:
            numbers = torch.stack([rows, self.sequence_ids], dim=-1)
        places = torch.arange(batch * length, device=values.device)
        if self.mask is not None:
            numbers, places = numbers[self.mask], places[self.mask.flatten()]
        _, sequence = numbers.reshape(len(places), -1).unique(dim=0, return_inverse=True)
        flat = values.flatten(0, 1)
        mixed = None
        for number in range(int(sequence.max()) + 1 if len(places) else 0):
            own = places[sequence == number]
            row = operation(flat[own].unsqueeze(0), *given)[0]
            mixed = row.new_zeros((batch * length, row.shape[-1])) if mixed is None else mixed
            mixed[own] = row
        return operation(self.zero_pads(values), *given) if mixed is None else mixed.view(batch, length, -1)

    def history_places(self, past_length: int | Tensor, total_length: int) -> Tensor:
        """Return where positions go to put pads before real tokens once this call's tokens have joined the history.

        Args:
            past_length: number of positions held before this call, all of which count as real (its pads are zeros at
                the front, and zeros moved among zeros change nothing).
            total_length: positions of the history now; those from past_length + length on are unused.

        Returns:
            (batch, total_length) long, the place that each position moves to; unused positions stay.

        Raises:
            ValueError: for a layout without a mask.
        """
        if self.mask is None:
            raise ValueError("a layout without a mask has nothing to realign.")
        length = self.mask.shape[1]
        positions = torch.arange(total_length, device=self.mask.device)
        chunk = positions - past_length
        inside = (chunk >= 0) & (chunk < length)  # (total,)
        is_pad = inside & ~self.mask[:, chunk.clamp(0, length - 1)]  # (batch, total)
        return places_first(is_pad)


def token_layout(
    attention_mask: Tensor | TokenLayout | None,
    batch: int,
    length: int,
    *,
    past_length: int | Tensor = 0,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    seq_idx: Tensor | None = None,
    grid_size: tuple[int, int] | None = None,
    has_cache: bool = False,
    **others: Any,
) -> TokenLayout:
    """Work out where the real tokens of each sequence lie.

    Explicit boundaries (`cu_seq_lens_q`, then `seq_idx`) win over `position_ids` that restart. By `position_ids`, a
    row is packed where a real token's position does not exceed that of the real token before it. Pads are pads in a
    packed row, too.

    Args:
        attention_mask: (batch, length) or (batch, past + length), 1 at real tokens and 0 at pads; None when all are
            real; a `TokenLayout` is returned as it is.
        batch: rows of this call.
        length: tokens of a row in this call.
        past_length: number of positions in the cache.
        position_ids: (batch or 1, length) position of each token in its sequence.
        cu_seq_lens_q: (sequences + 1,) cumulative lengths, from 0 to batch * length, of sequences laid end to end.
        seq_idx: (batch, length) number of the sequence a token belongs to.
        grid_size: (height, width) of the grid that the tokens of an image form.
        has_cache: whether the tokens are to join a cache, even an empty one. Rows of a traced call are then not
            packed: the graph stops where `position_ids` restart.
        **others: other keyword arguments of a model's forward, ignored.

    Raises:
        ValueError: for shapes that do not fit, for a mask of other numbers than 0 and 1, for packed rows together with
            a cache that holds tokens, and for boundaries by another name.
    """
    refuse_other_names(cu_seq_lens_q, others)
    if isinstance(attention_mask, TokenLayout):
        return attention_mask
    if grid_size is not None:
        layout = token_layout(
            attention_mask,
            batch,
            length,
            past_length=past_length,
            position_ids=position_ids,
            cu_seq_lens_q=cu_seq_lens_q,
            seq_idx=seq_idx,
        )
        # Field by field, since older compilers follow neither `_replace` nor a slice of a named tuple.
        return TokenLayout(
            layout.mask,
            layout.key_mask,
            layout.sequence_ids,
            layout.gather,
            layout.gathered,
            layout.scatter,
            layout.realign,
            layout.left_padded,
            grid_size,
        )
    given = attention_mask, position_ids, seq_idx
    tracing = torch.compiler.is_compiling() or not all(has_numbers(x) for x in given if x is not None)
    key_mask = None if attention_mask is None else real_tokens(attention_mask, batch, length, past_length)
    if attention_mask is not None and not tracing and all_are_real(attention_mask):
        key_mask = None
    mask = None if key_mask is None else key_mask[:, key_mask.shape[1] - length :]

    sequence_ids = None
    if tracing and has_cache and cu_seq_lens_q is None and seq_idx is None:
        refuse_restarts(mask, batch, length, position_ids)
    elif not (position_ids is None and cu_seq_lens_q is None and seq_idx is None):
        sequence_ids = packed_sequence_ids(mask, batch, length, position_ids, cu_seq_lens_q, seq_idx)
    if sequence_ids is not None:
        if not isinstance(past_length, int) or past_length > 0:
            raise ValueError(
                "packed sequences (restarting position_ids, cu_seq_lens_q or seq_idx) cannot continue a cache: pass "
                "each sequence as its own row, or start from an empty cache."
            )
        if torch.compiler.is_compiling() and dispatch(sequence_ids)[0] != "real":
            plan = packed_plan(mask, sequence_ids)
            return TokenLayout(mask, key_mask, sequence_ids, realign=mask is not None, plan=plan)
        lay_out = row_of_each_sequence if tracing else group_by_length
        return TokenLayout(mask, key_mask, sequence_ids, *lay_out(mask, sequence_ids), realign=mask is not None)
    if mask is None or (not tracing and bool(mask.all())):
        return TokenLayout(key_mask=key_mask)

    if length == 1 and tracing:
        # A compiled decoding step: a token or a left pad; a scan over the history for more would cost more than the
        # step.
        return TokenLayout(mask=mask, key_mask=key_mask)
    if not tracing:
        seen = key_mask if key_mask is not None and key_mask.shape[1] > length else mask
        pad_after_real = seen.cummax(dim=1).values & ~seen
        if seen is mask and not (isinstance(past_length, int) and past_length == 0):
            pad_after_real = ~seen  # what the cache holds counts as real
        if not bool(pad_after_real[:, -length:].any()):
            return TokenLayout(mask=mask, key_mask=key_mask, left_padded=True)  # pads on the left only
        interior = mask.flip(1).cummax(dim=1).values.flip(1) & mask.cummax(dim=1).values & ~mask
        if not bool(interior.any()):
            left_padded = not bool(mask[:, 0].all())
            return TokenLayout(mask=mask, key_mask=key_mask, realign=True, left_padded=left_padded)
    return TokenLayout(mask, key_mask, None, *_pads_last(mask), realign=True)


def _pads_last(mask: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Return `gather`, `gathered` and `scatter` that move each row's real tokens to its front, in order."""
    batch, length = mask.shape
    scatter = places_first(mask)  # (batch, length)
    gather = inverse_order(scatter)
    offsets = torch.arange(batch, device=mask.device).unsqueeze(1) * length
    return (gather + offsets,), (mask.gather(1, gather),), scatter + offsets
