"""Inputs of `online.py` in blocks of positions, in memory that grows without copies."""

import torch
from torch import Tensor

from .online_kernel import allocate

__all__ = ["BlockHistory"]


class BlockHistory:
    """Blocks of inputs, in segments each as large as all before it; at most so many blocks, the oldest overwritten.

    The positions of a block lie side by side for each channel, as transforms want them; the blocks follow each other,
    so that writing one touches little memory.

    Args:
        shape: (batch, channels, positions) of a block.
        like: tensor on the device where blocks are kept.
        dtype: of inputs.
        most: blocks that are held, a power of two; None for all.

    Attributes:
        segments: tensors of (blocks, batch, channels, positions), of 1, 1, 2, 4, 8 and so on blocks.
        oldest: number of the oldest block that is held.
        most: blocks that are held; None for all.
    """

    def __init__(self, shape: tuple[int, int, int], like: Tensor, dtype: torch.dtype, most: int | None) -> None:
        self.segments: list[Tensor] = []
        self.oldest, self.most = 0, most
        self._shape, self._like, self._dtype = shape, like, dtype

    def at(self, index: int) -> Tensor:
        """Return block `index`, (batch, channels, positions), in place."""
        index = index if self.most is None else index % self.most
        segment = index.bit_length()
        while len(self.segments) <= segment:
            self.segments.append(
                allocate((self._begin(len(self.segments)) or 1, *self._shape), self._like, self._dtype)
            )
        return self.segments[segment][index - self._begin(segment)]

    def put(self, index: int, inputs: Tensor) -> None:
        """Write block `index`, in order."""
        self.at(index).copy_(inputs)
        if self.most is not None:
            self.oldest = max(self.oldest, index + 1 - self.most)

    def read(self, first: int, parts: int, blocks: int, start: int, stop: int) -> Tensor:
        """Return blocks from `first` on; their number, parts * blocks, is a power of two that divides `first`.

        Args:
            first: of the blocks.
            parts: number of signals.
            blocks: blocks of a signal.
            start: first channel.
            stop: the channel after the last.

        Returns:
            (parts, batch, stop - start, blocks, positions), in place where the blocks are not the very first.
        """
        first = first if self.most is None else first % self.most
        segment = first.bit_length()
        batch, channels, positions = self._shape
        if first:
            # One call for what slices and permutations do.
            size = batch * channels * positions
            strides = (blocks * size, channels * positions, positions, size, 1)
            shape = (parts, batch, stop - start, blocks, positions)
            offset = (first - self._begin(segment)) * size + start * positions
            return self.segments[segment].as_strided(shape, strides, offset)
        last = (parts * blocks - 1).bit_length()
        whole = [each[:, :, start:stop].permute(1, 2, 0, 3) for each in self.segments[: last + 1]]
        return torch.cat(whole, dim=2).view(batch, stop - start, parts, blocks, positions).permute(2, 0, 1, 3, 4)

    def reorder(self, rows: Tensor) -> None:
        """Keep rows of the batch."""
        self.segments = [segment.index_select(1, rows) for segment in self.segments]
        self._shape = (len(rows), *self._shape[1:])

    def _begin(self, segment: int) -> int:
        return (1 << segment) >> 1
