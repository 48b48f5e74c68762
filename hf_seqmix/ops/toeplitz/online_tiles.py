"""The far part of `online.py` in squares that are multiplied by transforms, each a little at a time.

The plane of pairs (j, t) is cut as in a relaxed (online) convolution (van der Hoeven 2002; Oncescu et al. 2024, arXiv
2410.12982, "Flash Inference"), with other squares. At each level, positions are in spans of U = block 4^level. The
outputs of a span B = 4 g + o, o < 4, see the spans 4 (g - 1) to B - 2 of inputs: 3 to 6 of them. What is older is seen
at the next level, where g is the number of the span; what is nearer, at the level before. A pair of spans is a square
off the diagonal, a circular convolution of length 2U. The squares of the same outputs share one inverse transform, and
the spectra of inputs are kept: they are multiplied by the spectra of segments of the kernel, and added.

So a token takes a transform of inputs and one of outputs at each of log_4 n levels, and 4.5 products in the mean.
Spans that double would take 1.5 products at twice as many levels; measured, a transform with its copies takes as long
as 2 to 3 products, and factors of 4 and 8 are about equal. The price is memory: up to 6 spectra of 2U numbers a
channel at each level, which the inputs would be transformed again without.

Departure: the squares of the sources touch the diagonal, so that a square of n / 2 inputs is needed the moment the
last of these inputs is known, and takes that step n / 2 times as long as most. Here the outputs of a span are needed U
steps after the last of its inputs are known, and are computed in pieces over these steps: a few channels at a time,
each in stages.
"""

from typing import Any

import torch
from torch import Tensor

from .online_history import BlockHistory, allocate
from .online_spans import Spans

__all__ = ["PIECE", "Tiles"]

PIECE = 2**15
"""Samples that are transformed in a piece.

Measured on a busy CPU (256 channels, one row, 8,192 tokens): half as many take 1.15 times as long in the mean, and the
worst token the same, which is one that begins a block.
"""

TAPS = Spans.STAGES + 1
"""The stage of a piece that makes taps which later blocks need."""


class Tiles:
    """The far part of a kernel given by its taps.

    A piece of work is (level, span, part, stage): a stage of what makes the outputs of a span in one of the parts of
    the channels. The stages of a part follow each other in one block. The first piece of a block makes taps and
    a level for the next block, and the last one adds the levels.

    Args:
        kernel: `OnlineKernel`, which makes this object; its spectra are multiplied.
        history: inputs, which the convolution writes.
        piece: samples that are transformed in a piece, unless one channel of all rows has more.
    """

    def __init__(self, kernel: Any, history: BlockHistory, piece: int) -> None:
        self._kernel, self._history, self._samples = kernel, history, piece
        self._levels: list[Spans] = []
        self._sums: Tensor | None = None  # (2, block, batch, channels), outputs of even and of odd blocks
        self._add_levels(1)  # here, since the step that begins a block has other work

    @property
    def memory(self) -> int:
        """Bytes of the state, without the history."""
        return sum(level.memory for level in self._levels) + (0 if self._sums is None else self._sums.nbytes)

    def put(self, index: int, inputs: Tensor) -> None:
        """Do nothing: spans are read from the history."""

    def outputs(self, block: int) -> Tensor | None:
        """Return what far inputs add to the outputs of a block, (batch, channels, block)."""
        return None if self._sums is None or block < 2 else self._sums[block % 2].permute(1, 2, 0)

    def pieces(self, block: int) -> list[tuple[int, int, int, int]]:
        """Return the pieces that are to be computed during a block: the same share of each span in every block."""
        self._add_levels(block)
        pieces = [piece for level in self._levels for piece in self._share(level, block, block + 1)]
        if pieces:
            pieces.append((0, block + 1, 0, Spans.STAGES))
        return [(0, block, 0, TAPS), *pieces]

    def compute(self, piece: tuple[int, int, int, int]) -> None:
        """Do a stage of a span, add the outputs of levels, or make what the next block needs."""
        level, span, part, stage = piece
        if stage == TAPS:
            # Spans of b blocks are first needed at block b, with lags of up to three spans. A level is made one block
            # before, since the step that begins a block has other work.
            self._kernel.taps.prepare(3 * (span + 2) * self._kernel.block)
            self._add_levels(span + 1)
        elif stage < Spans.STAGES:
            self._levels[level].compute(self._history, span, part, stage)
        else:
            self._add(span)

    def _add(self, block: int) -> None:
        """Add the outputs of all levels at the positions of a block."""
        total = None
        for level in self._levels:
            span, place = divmod(block, level.blocks)
            if span >= 2:
                part = level.outputs[span % 2, place]
                total = part if total is None else total + part
        if total is not None:
            batch, channels, positions = total.shape
            if self._sums is None:
                self._sums = allocate((2, positions, batch, channels), total)
            self._sums[block % 2] = total.permute(2, 0, 1)

    def load(self, first: int, inputs: Tensor) -> None:
        """Make the state at the beginning of the block that follows these inputs."""
        self._rebuild(first + inputs.shape[1] // self._kernel.block, None)

    def crop(self, block: int, before: int) -> None:
        """Make the state at the beginning of a block; spans that saw none of the inputs forgotten stay."""
        self._rebuild(block, before)

    def oldest(self, block: int) -> int:
        """Return the first block of inputs that is read at a block."""
        levels = [level for level in self._levels if block >= level.blocks]
        return min([block - 1, *(level.first(block // level.blocks) * level.blocks for level in levels)])

    def reorder(self, rows: Tensor) -> None:
        """Keep rows of the batch."""
        for level in self._levels:
            level.reorder(rows)
        self._sums = None if self._sums is None else self._sums.index_select(2, rows)

    def alike(self, history: BlockHistory) -> "Tiles":
        """Return an empty far part that does the same pieces for other rows."""
        other = Tiles(self._kernel, history, self._samples)
        other._levels = [level.alike(history.shape[0]) for level in self._levels]
        return other

    def join(self, other: "Tiles") -> None:
        """Add the rows of another far part."""
        for level, added in zip(self._levels, other._levels, strict=True):
            level.join(added)
        if self._sums is not None and other._sums is not None:
            self._sums = torch.cat([self._sums, other._sums], dim=2)

    def to(self, device: torch.device, non_blocking: bool) -> None:
        """Move the state to a device."""
        for level in self._levels:
            level.to(device, non_blocking)
        self._sums = None if self._sums is None else self._sums.to(device, non_blocking=non_blocking)

    def _add_levels(self, block: int) -> None:
        most = self._kernel.levels
        while most is None or len(self._levels) < most:
            level = len(self._levels)
            blocks = self._kernel.blocks(level)
            if block < blocks:
                break
            self._levels.append(Spans(self._kernel, level, self._history.shape, self._samples))

    def _share(self, level: Spans, start: int, stop: int) -> list[tuple[int, int, int, int]]:
        """Return the pieces that are computed from block `start` up to `stop`, both of the span before the outputs."""
        span = start // level.blocks + 1
        if span < 2:
            return []
        first = (span - 1) * level.blocks
        # Levels take turns: (sqrt(5) - 1) / 2 spreads multiples over the circle.
        turn = int((level.number * 0.618034) % 1 * level.blocks)
        begin, end = ((level.parts * (block - first) + turn) // level.blocks for block in (start, stop))
        return [(level.number, span, part, stage) for part in range(begin, end) for stage in range(Spans.STAGES)]

    def _rebuild(self, block: int, before: int | None) -> None:
        self._sums = None  # those of before a crop, which may have other rows than those that join
        self._add_levels(block)
        for level in self._levels:
            span = block // level.blocks
            if before is not None and before // level.blocks == span:
                continue
            if span >= 2:
                inputs = range(level.first(span), span - 1)
                missing = [index for index in inputs if before is None or not level.holds(index)]
                for part in range(level.parts):
                    for index in missing:
                        level.read(self._history, index, part)
                        level.transform(index, part)
                    for stage in range(2, Spans.STAGES):
                        level.compute(self._history, span, part, stage)
            for piece in self._share(level, span * level.blocks, block):
                self.compute(piece)
        self._add(block)
