"""Inputs of `online.py` in blocks of positions, in memory that grows without copies."""

import torch
from torch import Tensor

__all__ = ["BlockHistory", "allocate"]

FIRST = 4
"""Blocks of the first segment, a power of two."""


def allocate(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return memory on the device of `like`, with no value, to be written to in and outside of inference mode."""
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


class BlockHistory:
    """Blocks of inputs, in segments each as large as all before it; at most so many blocks, the oldest overwritten.

    The positions of a block lie side by side for each channel, as transforms want them; the blocks follow each other,
    so that writing one touches little memory.

    Args:
        shape: (batch, channels, positions) of a block.
        device: where blocks are kept.
        dtype: of inputs.
        most: blocks that are held, a power of two; None for all.

    Attributes:
        shape: (batch, channels, positions) of a block.
        segments: tensors of (blocks, batch, channels, positions), of 4, 4, 8, 16 and so on blocks.
        oldest: number of the oldest block that is held.
        most: blocks that are held; None for all.
    """

    def __init__(
        self, shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype, most: int | None
    ) -> None:
        self.segments: list[Tensor] = []
        self.oldest, self.most, self.shape = 0, most, shape
        self._like = torch.empty(0, dtype=dtype, device=device)
        self.at(0)  # makes the first segment

    def at(self, index: int) -> Tensor:
        """Return block `index`, (batch, channels, positions), in place."""
        index = index if self.most is None else index % self.most
        segment = self._segment(index)
        while len(self.segments) <= segment:
            self.segments.append(allocate((self._begin(len(self.segments)) or FIRST, *self.shape), self._like))
        return self.segments[segment][index - self._begin(segment)]

    def put(self, index: int, inputs: Tensor) -> None:
        """Write block `index`, in order."""
        self.at(index).copy_(inputs)
        if self.most is not None:
            self.oldest = max(self.oldest, index + 1 - self.most)

    def fill(self, first: int, inputs: Tensor) -> None:
        """Hold these blocks alone, as far as blocks are held.

        Args:
            first: number of the block that the inputs begin with.
            inputs: (batch, blocks * positions, channels).
        """
        inputs = inputs.unflatten(1, (-1, self.shape[2])).permute(1, 0, 3, 2)
        index, end = first, first + len(inputs)
        self.oldest = index if self.most is None else max(index, end - self.most)
        index = self.oldest
        while index < end:
            self.at(index)  # makes the segment
            place = index if self.most is None else index % self.most
            segment = self._segment(place)
            place -= self._begin(segment)
            count = min(end - index, len(self.segments[segment]) - place)
            self.segments[segment][place : place + count] = inputs[index - first : index - first + count]
            index += count

    def read(self, first: int, blocks: int, start: int, stop: int) -> Tensor:
        """Return blocks from `first` on, in place where the blocks are not the very first.

        Args:
            first: of the blocks.
            blocks: number of blocks, a power of two that divides `first`.
            start: first channel.
            stop: the channel after the last.

        Returns:
            (batch, stop - start, blocks, positions).
        """
        first = first if self.most is None else first % self.most
        batch, width, positions = self.shape
        size = batch * width * positions
        parts = []
        end = first + blocks
        while first < end:
            segment = self._segment(first)
            begin = self._begin(segment)
            count = min(end - first, (begin or FIRST))
            # One call for what slices and permutations do.
            shape, strides = (batch, stop - start, count, positions), (width * positions, positions, size, 1)
            offset = (first - begin) * size + start * positions
            parts.append(self.segments[segment].as_strided(shape, strides, offset))
            first += count
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def reorder(self, rows: Tensor) -> None:
        """Keep rows of the batch."""
        self.segments = [segment.index_select(1, rows) for segment in self.segments]
        self.shape = (len(rows), *self.shape[1:])

    def join(self, other: "BlockHistory") -> None:
        """Add the rows of a history of the same blocks."""
        self.shape = (self.shape[0] + other.shape[0], *self.shape[1:])
        for number, segment in enumerate(self.segments):
            if number < len(other.segments):
                added = other.segments[number]
            else:  # of blocks that are held no more
                added = segment.new_zeros((len(segment), *other.shape))
            self.segments[number] = torch.cat([segment, added], dim=1)

    def to(self, device: torch.device, non_blocking: bool) -> None:
        """Move the blocks to a device."""
        self.segments = [segment.to(device, non_blocking=non_blocking) for segment in self.segments]
        self._like = self._like.to(device)

    def _begin(self, segment: int) -> int:
        return (FIRST << segment) >> 1 if segment else 0

    def _segment(self, index: int) -> int:
        return (index // FIRST).bit_length()
