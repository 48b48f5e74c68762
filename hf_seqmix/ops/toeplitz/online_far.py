"""What a far part of `online.py` is: what blocks b - 2 and earlier add to the outputs of block b."""

from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["FarPart"]


class FarPart(Protocol):
    """Contributions of inputs two blocks back and further; what is nearer is multiplied directly, when it comes.

    `OnlineConvolution` calls, when block b - 1 is complete and block b begins: `put(b - 1, inputs)`, `outputs(b)`,
    `pieces(b)`; then `compute` for each piece, spread evenly over the steps of block b, in their order. So work on the
    outputs of block b + 1 can begin when block b - 1 is known, and has one block of steps.

    The kernel makes a far part (`far_part`), and gives it the history: the convolution writes blocks to it and a far
    part only reads. What a far part makes on the way, it allocates by `allocate`, so that it can be written to in and
    outside of inference mode. Calls come without derivatives.
    """

    @property
    def memory(self) -> int:
        """Bytes of the state, without the history."""

    def put(self, index: int, inputs: Tensor) -> None:
        """Take the inputs of block `index`, (batch, channels, block), which is complete and in the history.

        Args:
            index: of the block; blocks come in order.
            inputs: a view that is overwritten later.
        """

    def outputs(self, block: int) -> Tensor | None:
        """Return what blocks up to `block` - 2 add to the outputs of a block, (batch, channels, block); None: zeros.

        The result is read at once and not written to. It is asked for when the block begins, and again after `load`
        and `crop` in the middle of the block.
        """

    def pieces(self, block: int) -> list[Any]:
        """Return the pieces of work that are to be done during a block, in their order, of about equal cost."""

    def compute(self, piece: Any) -> None:
        """Do a piece of work."""

    def load(self, first: int, inputs: Tensor) -> None:
        """Make the state after these inputs alone, at the beginning of the block that follows them.

        The pieces of that block, which `pieces` returns, are computed next.

        Args:
            first: block that the inputs begin with.
            inputs: (batch, blocks * block, channels), in the history as far as the kernel needs them.
        """

    def crop(self, block: int, before: int) -> None:
        """Make the state at the beginning of a block from the state during the same or a later one, `before`.

        The inputs of blocks up to `block` - 1 stay; the history holds them from `oldest(block)` on. The pieces of the
        block are computed next.
        """

    def oldest(self, block: int) -> int:
        """Return the first block of inputs that `crop` to that block reads; at most 0 for the very first."""

    def reorder(self, rows: Tensor) -> None:
        """Keep rows of the batch, (kept,) long, in that order; those of the history are already kept."""

    def alike(self, history: Any) -> "FarPart":
        """Return an empty far part that does the same pieces for other rows, whose history is given."""

    def join(self, other: Any) -> None:
        """Add the rows of a far part from `alike` in the same state; those of the history have been added."""

    def to(self, device: torch.device, non_blocking: bool) -> None:
        """Move the state to a device; the history is already there."""
