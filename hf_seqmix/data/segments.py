"""The order in which blocks of a text are read where each row of a batch goes on in the text."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

__all__ = ["SegmentSampler"]


class SegmentSampler(Sampler[int]):
    """Blocks of a text as streams of consecutive blocks, one stream a row: block t + 1 of a row follows its block t.

    A stream is `segments` blocks. All rows of an update begin their streams together and end them together, `segments`
    updates later. Each pass over the text cuts it into streams anew, from a place drawn at random, and deals the
    streams out in a random order. Blocks that fill no stream, and streams that fill no update, wait for another pass.
    The order depends on the seed and the pass alone.

    Blocks of updates before `first` are shuffled: the pass in which that update lies deals its streams out in the same
    way, and then mixes the blocks of those that are not read as streams.

    Args:
        num_blocks: of the text, in its order.
        segments: blocks of a stream, at least 2.
        rows: of an update, over all processes and accumulation steps.
        seed: of the order.

    Raises:
        ValueError: if a stream has fewer than 2 blocks, or the text too few streams for one update.
    """

    def __init__(self, num_blocks: int, segments: int, rows: int, seed: int = 0) -> None:
        if segments < 2:
            raise ValueError(f"a stream was to be {segments} segments; it must be at least 2.")
        streams = num_blocks // segments
        if streams < rows:
            raise ValueError(
                f"the training text has {num_blocks} blocks, which are {streams} streams of {segments} segments, but "
                f"an update reads {rows} rows, each a stream of its own: give more text, fewer segments, shorter "
                "blocks, or fewer rows an update."
            )
        self.num_blocks = num_blocks
        self.segments = segments
        self.rows = rows
        self.seed = seed
        self.epoch = 0
        self.first = 0
        """Update of the run from which blocks are read as streams; a multiple of `segments`."""

    @property
    def updates(self) -> int:
        """Updates of a pass, a multiple of `segments`."""
        return self.num_blocks // self.segments // self.rows * self.segments

    def __len__(self) -> int:
        return self.updates * self.rows

    def set_epoch(self, epoch: int) -> None:
        """Choose the pass, from 0."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        streams, rounds = self.num_blocks // self.segments, self.updates // self.segments
        unused = self.num_blocks - streams * self.segments
        offset = torch.randint(unused + 1, (), generator=generator)
        dealt = torch.randperm(streams, generator=generator)[: rounds * self.rows].view(rounds, 1, self.rows)
        blocks = (
            dealt * self.segments + torch.arange(self.segments).view(1, -1, 1) + offset
        )  # (rounds, segments, rows)
        shuffled = min(max(self.first - self.epoch * self.updates, 0), self.updates) // self.segments
        alone = blocks[:shuffled].flatten()
        yield from alone[torch.randperm(len(alone), generator=generator)].tolist()
        yield from blocks[shuffled:].flatten().tolist()
