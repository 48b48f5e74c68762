"""The last inputs of short convolutions, beside whatever else a cache layer keeps.

A layer has one `RecentInputs`, or, preallocated, one tensor, for each convolution by its name.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.common.ordering import inverse_order, places_first

__all__ = ["RecentInputs", "check_rows", "highest_floor", "last_real", "stack_rows"]


def check_rows(batch: int, new: Tensor) -> None:
    """Raise a ValueError unless new tokens, (rows, ...), have as many rows as the cache, `batch`."""
    if new.shape[0] != batch:  # `len` would fix the number of rows of an exported graph
        raise ValueError(
            f"{len(new)} rows cannot continue a cache of {batch} rows: give as many rows, change those of the cache "
            "(batch_select_indices, batch_repeat_interleave), or start from an empty cache."
        )


def stack_rows(parts: Sequence[Tensor | None], rows: Sequence[int], fill: int = 0) -> Tensor | None:
    """Lay tensors of several batches under each other; shorter ones begin with `fill`, and None is all `fill`.

    Args:
        parts: each (rows, ...), of equal sizes but for the number of rows and of positions; or None.
        rows: number of rows of each.
        fill: what stands before the positions of a shorter tensor.

    Returns:
        (all rows, ...), or None where every part is None.
    """
    known = [part for part in parts if part is not None]
    if not known:
        return None
    sizes = [max(part.shape[dim] for part in known) for dim in range(1, known[0].ndim)]
    stacked = known[0].new_full((sum(rows), *sizes), fill)
    start = 0
    for part, count in zip(parts, rows, strict=True):
        if part is not None:
            # At the end of every dimension: only positions differ in number.
            ends = [slice(size - have, None) for size, have in zip(sizes, part.shape[1:], strict=True)]
            stacked[(slice(start, start + count), *ends)] = part
        start += count
    return stacked


def highest_floor(parts: Sequence[tuple[int, int]]) -> int:
    """Return to which position joined rows can be cropped, all to the same one.

    Args:
        parts: of each batch, the position to which its rows can be cropped, 0 for any; and the number of positions,
            which end together, as in `stack_rows`.
    """
    longest = max(seen for _, seen in parts)
    return max((floor + longest - seen for floor, seen in parts if floor > 0), default=0)


def last_real(inputs: Tensor, real: Tensor | None, count: int) -> Tensor:
    """Return the last `count` real inputs of each row, in order, zeros before them where there are fewer.

    Args:
        inputs: (batch, length, channels), zeros at pads.
        real: (batch, length) bool, True at real tokens; None when all are.
        count: how many.

    Returns:
        (batch, count, channels).
    """
    inputs = F.pad(inputs, (0, 0, count, 0))
    if real is not None:
        order = inverse_order(places_first(F.pad(~real, (count, 0), value=True)))
        inputs = inputs.gather(1, order.unsqueeze(-1).expand_as(inputs))
    return inputs[:, inputs.shape[1] - count :]


class RecentInputs:
    """The inputs of the last steps: at least 64, or as many as the last call added.

    Attributes:
        inputs: (batch, held, channels), zeros at pads; None before the first call.
        real: (batch, held) bool, True at real tokens.
        earlier: (batch, taps - 1, channels), the last real inputs before those held.
        seen: steps so far.
        certain: the last steps held of which no row has a pad, as far as that is known without a look at `real`.
        floor: steps to which a crop may lead back: the inputs of some row before it were let go.
    """

    kept = 64
    """Steps that can always be taken back, if there were as many."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.inputs: Tensor | None = None
        self.real: Tensor | None = None
        self.earlier: Tensor | None = None
        self.device: torch.device | None = None
        self.seen = self.certain = self.floor = 0

    def push(self, inputs: Tensor, real: Tensor | None, count: int, keep_first: bool = True) -> Tensor:
        """Add the inputs of a call, and return the last real ones before it, see `last_real`.

        Args:
            inputs: (batch, length, channels), zeros at pads.
            real: (batch, length) bool, True at real tokens; None when all are.
            count: how many to return, the same in every call.
            keep_first: whether all inputs of a first call are kept until the second.

        Returns:
            (batch, count, channels), zeros first where there were fewer.
        """
        flags = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device) if real is None else real
        keep = max(self.kept, inputs.shape[1])
        if self.inputs is None or self.real is None or self.earlier is None:
            self.device = inputs.device
            before = self.earlier = inputs.new_zeros((inputs.shape[0], count, inputs.shape[2]))
            self.inputs, self.real = inputs, flags
            if not keep_first:
                keep = self.kept
        else:
            check_rows(self.inputs.shape[0], inputs)
            before = self._last(self.inputs.shape[1], count)
            self.inputs, self.real = torch.cat([self.inputs, inputs], dim=1), torch.cat([self.real, flags], dim=1)
        self.seen += inputs.shape[1]
        self.certain = self.certain + inputs.shape[1] if real is None else 0
        if self.inputs.shape[1] >= 2 * keep:
            gone = self.inputs.shape[1] - keep
            # Copied, so that the inputs before them are let go.
            self.earlier = self._last(gone, count).clone()
            self.inputs, self.real = self.inputs[:, gone:].clone(), self.real[:, gone:].clone()
            self.floor = max(self.floor, self.seen - keep)
        return before

    def _last(self, held: int, count: int) -> Tensor:
        """Return the last `count` real inputs among the first that are held, and before them."""
        assert self.inputs is not None and self.real is not None and self.earlier is not None
        if held >= count and self.inputs.shape[1] - held + count <= self.certain:
            return self.inputs[:, held - count : held]
        known = F.pad(self.real[:, :held], (count, 0), value=True)
        return last_real(torch.cat([self.earlier, self.inputs[:, :held]], dim=1), known, count)

    def check_crop(self, tokens_to_remove: int) -> None:
        """Refuse to take back steps whose inputs are gone; `tokens_to_remove` is minus their number."""
        if self.seen + min(0, tokens_to_remove) < self.floor:
            raise ValueError(
                f"{-tokens_to_remove} tokens were to be cropped from a cache of {self.seen}, but the inputs of only "
                f"the last {self.seen - self.floor} are held: crop less, call activate_past_recording() before the "
                "first tokens to take all of these back, or start from an empty cache."
            )

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last steps back, whose inputs are held."""
        if self.inputs is not None and self.real is not None:
            left = self.inputs.shape[1] + tokens_to_remove
            self.inputs, self.real = self.inputs[:, :left], self.real[:, :left]
            self.seen += tokens_to_remove
            self.certain = max(0, self.certain + tokens_to_remove)

    def join(self, others: Sequence["RecentInputs"]) -> None:
        """Add the rows of others; rows of fewer tokens begin with pads."""
        parts = [self, *others]
        rows = [0 if each.inputs is None else len(each.inputs) for each in parts]
        # Where fewer steps are held than are certain, zeros will stand before them.
        self.certain = min(0 if each.inputs is None else min(each.certain, each.inputs.shape[1]) for each in parts)
        self.inputs = stack_rows([each.inputs for each in parts], rows)
        self.real = stack_rows([each.real for each in parts], rows)
        self.earlier = stack_rows([each.earlier for each in parts], rows)
        self.floor = highest_floor([(each.floor, each.seen) for each in parts])
        self.seen = max(each.seen for each in parts)

    def forget_first(self, count: int) -> None:
        """Forget the first positions, which are pads of every row, and their inputs as far as they are held."""
        self.seen -= count
        self.floor = max(0, self.floor - count)
        if self.inputs is not None and self.real is not None:
            gone = max(0, self.inputs.shape[1] - self.seen)
            self.inputs, self.real = self.inputs[:, gone:], self.real[:, gone:]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        self._map(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep rows of the batch."""
        self._map(lambda x: x[indices.to(x.device)])

    def detach(self) -> None:
        """Cut what is held from the graph of the calls that brought it."""
        self._map(lambda x: x.detach())

    def offload(self) -> None:
        """Move what is held to the CPU."""
        self._map(lambda x: x.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move what is held back to the device."""
        self._map(lambda x: x.to(self.device, non_blocking=True))

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.inputs is not None and self.real is not None and self.earlier is not None:
            self.inputs, self.real, self.earlier = change(self.inputs), change(self.real), change(self.earlier)
