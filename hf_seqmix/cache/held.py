"""What growing cache layers with more than keys and values share: a change of rows is done to all tensors."""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from .._compat import DynamicLayer

__all__ = ["HeldLayer"]


class HeldLayer(DynamicLayer):
    """A growing layer whose tensors, all with the batch first, are named by `held`; each may be None."""

    held: ClassVar[tuple[str, ...]] = ("keys", "values")

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
