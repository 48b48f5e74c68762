"""What growing cache layers share: a change of rows is done to all tensors, and rows of several layers are joined."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor

from .._compat import DynamicLayer

__all__ = ["HeldLayer", "stack_rows"]


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


class HeldLayer(DynamicLayer):
    """A growing layer whose tensors, all with the batch first, are named by `held`; each may be None."""

    held: ClassVar[tuple[str, ...]] = ("keys", "values")
    fills: ClassVar[dict[str, int]] = {}
    """What a tensor has at pads, where that is not zero."""

    def join(self, others: Sequence[Any]) -> None:
        """Add the rows of other layers of this kind; rows of fewer tokens begin with pads."""
        layers: list[HeldLayer] = [self, *others]
        rows = [0 if layer.keys is None else len(layer.keys) for layer in layers]
        for name in self.held:
            parts = [getattr(layer, name) for layer in layers]
            setattr(self, name, stack_rows(parts, rows, self.fills.get(name, 0)))

    def forget_first(self, count: int) -> None:
        """Forget the first positions, which are pads of every row."""
        assert self.keys is not None and self.values is not None
        self.keys, self.values = self.keys[:, :, count:], self.values[:, :, count:]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows of the batch for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        self._map(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep rows of the batch."""
        self._map(lambda x: x[indices.to(x.device)])

    def offload(self) -> None:
        """Move what is held to the CPU."""
        self._map(lambda x: x.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move what is held back to the device."""
        self._map(lambda x: x.to(self.device, non_blocking=True))

    def reset(self) -> None:
        """Forget everything."""
        for name in self.held:
            setattr(self, name, None)
        self.is_initialized = False

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.get_seq_length() == 0:
            return
        for name in self.held:
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, change(tensor))
