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

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..common.fft import step_sizes, stepped_inverse, stepped_spectrum
from .online_history import BlockHistory, allocate

__all__ = ["PIECE", "Tiles"]

PIECE = 2**15
"""Samples that are transformed in a piece.

Measured on a busy CPU (256 channels, one row, 8,192 tokens): half as many take 1.15 times as long in the mean, and the
worst token the same, which is one that begins a block.
"""


class Tiles:
    """The far part of a kernel given by its taps.

    A piece of work is (level, span, part, stage): a stage of what makes the outputs of a span in one of the parts of
    the channels. The stages of a part follow each other in one block. The last piece of a block adds the levels.

    Args:
        kernel: `OnlineKernel`, which makes this object; its spectra are multiplied.
        history: inputs, which the convolution writes.
        piece: samples that are transformed in a piece, unless one channel of all rows has more.
        limit: positions that follow at most; None if not known.
    """

    def __init__(self, kernel: Any, history: BlockHistory, piece: int, limit: int | None) -> None:
        self._kernel, self._history, self._samples, self._limit = kernel, history, piece, limit
        self._levels: list[_Level] = []
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
        return [*pieces, (0, block + 1, 0, _Level.STAGES)] if pieces else pieces

    def compute(self, piece: tuple[int, int, int, int]) -> None:
        """Do a stage of a span, or add levels."""
        level, span, part, stage = piece
        if stage < _Level.STAGES:
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
            if block < blocks or (self._limit is not None and 2 * blocks * self._kernel.block >= self._limit):
                break
            self._levels.append(_Level(self._kernel, level, self._history.shape, self._samples))

    def _share(self, level: "_Level", start: int, stop: int) -> list[tuple[int, int, int, int]]:
        """Return the pieces that are computed from block `start` up to `stop`, both of the span before the outputs."""
        span = start // level.blocks + 1
        if span < 2 or self._beyond(level, span):
            return []
        first = (span - 1) * level.blocks
        # Levels take turns: (sqrt(5) - 1) / 2 spreads multiples over the circle.
        turn = int((level.number * 0.618034) % 1 * level.blocks)
        begin, end = ((level.parts * (block - first) + turn) // level.blocks for block in (start, stop))
        return [(level.number, span, part, stage) for part in range(begin, end) for stage in range(_Level.STAGES)]

    def _beyond(self, level: "_Level", span: int) -> bool:
        return self._limit is not None and span * level.blocks * self._kernel.block >= self._limit

    def _rebuild(self, block: int, before: int | None) -> None:
        self._add_levels(block)
        for level in self._levels:
            span = block // level.blocks
            if before is not None and before // level.blocks == span:
                continue
            if span >= 2 and not self._beyond(level, span):
                inputs = range(level.first(span), span - 1)
                missing = [index for index in inputs if before is None or not level.holds(index)]
                for part in range(level.parts):
                    for index in missing:
                        level.read(self._history, index, part)
                        level.transform(index, part)
                    for stage in range(2, _Level.STAGES):
                        level.compute(self._history, span, part, stage)
            for piece in self._share(level, span * level.blocks, block):
                self.compute(piece)
        self._add(block)


class _Level:
    """Spans of one size: spectra of the last inputs, and outputs of the span that is read and of the next.

    Args:
        kernel: `OnlineKernel`, of which spectra are multiplied.
        number: of the level; spans have 4^number blocks.
        shape: (batch, channels, positions) of a block.
        samples: that are transformed in a part.

    Attributes:
        STAGES: what the outputs of a span in a part of the channels are made in, one after the other.
        number: of the level.
        blocks: of a span.
        parts: number of parts of the channels.
        outputs: (2, blocks, batch, channels, positions), of even and of odd spans.
    """

    STAGES = 6

    def __init__(self, kernel: Any, number: int, shape: tuple[int, int, int], samples: int) -> None:
        batch, channels, self._block = shape
        self._kernel, self.number, self.blocks = kernel, number, kernel.blocks(number)
        self._kept = kernel.segments(number)
        self._size = 2 * self._block * self.blocks
        self._rows, self._columns = step_sizes(self._size)
        rows, columns = max(1, self._block // self._columns), max(1, self._columns // self._block)
        self._shape = (self._rows // 2 // rows, rows, columns, self._columns // columns)
        # A transform in two steps takes about twice as long.
        samples = samples if self._columns == 1 else samples // 2
        self._channels, self._width = channels, min(channels, max(1, samples // (self._size * max(1, batch))))
        self.parts = -(-channels // self._width)
        # Written before it is read, so that pages of memory are asked for a few at a time.
        self.outputs = allocate((2, self.blocks, batch, channels, self._block), kernel.taps)
        self._spectra: list[dict[int, Tensor]] = [{} for _ in range(self._kept)]  # a ring of spans, by part
        self._held = [-1] * self._kept  # numbers of these spans
        self._room: list[Tensor] = []  # see `_room_of`
        self._views: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    @property
    def memory(self) -> int:
        """Bytes of the state."""
        return self.outputs.nbytes + sum(each.nbytes for parts in self._spectra for each in parts.values())

    def first(self, span: int) -> int:
        """Return the first span of inputs that the outputs of a span see."""
        return max(0, 4 * (span // 4 - 1), span - 1 - self._kept)

    def holds(self, span: int) -> bool:
        """Return whether the spectra of a span of inputs are held: some parts of them for the last span."""
        return self._held[span % self._kept] == span

    def compute(self, history: BlockHistory, span: int, part: int, stage: int) -> None:
        """Do a stage of the outputs of a span in a part of the channels."""
        if stage == 0:
            self.read(history, span - 2, part)
        elif stage == 1:
            self.transform(span - 2, part)
        elif stage < 5:
            self.multiply(span, part, stage - 2)
        else:
            self.write(span, part)

    def read(self, history: BlockHistory, span: int, part: int) -> None:
        """Read a span of inputs in a part of the channels."""
        start, stop = self._range(part)
        inputs = history.read(span * self.blocks, self.blocks, start, stop)  # (batch, channels, blocks, positions)
        self._room_of(stop - start)[1].copy_(self._by_blocks(inputs))

    def transform(self, span: int, part: int) -> None:
        """Make the spectra of the inputs that were read last."""
        start, stop = self._range(part)
        self._spectra[span % self._kept][part] = stepped_spectrum(self._room_of(stop - start)[0])
        self._held[span % self._kept] = span

    def multiply(self, span: int, part: int, third: int) -> None:
        """Add a third of the products of taps and the inputs that a span of outputs sees; thirds come in order."""
        start, stop = self._range(part)
        first, total = self.first(span), self._room_of(stop - start)[2]
        begin, end = (first + (span - 1 - first) * each // 3 for each in (third, third + 1))
        for index in range(begin, end):
            spectrum = self._spectra[index % self._kept][part]
            taps = self._kernel.spectrum(self.number, span - index, start, stop)
            if index == first:
                torch.mul(spectrum, taps, out=total)
            else:
                total.addcmul_(spectrum, taps)

    def write(self, span: int, part: int) -> None:
        """Write the outputs of a span in the part of the channels that was multiplied last."""
        start, stop = self._range(part)
        y = stepped_inverse(self._room_of(stop - start)[2], self._rows)
        outputs = self.outputs[span % 2].narrow(2, start, stop - start).permute(1, 2, 0, 3)
        # What wraps around falls on the first half.
        self._by_blocks(outputs).copy_(self._by_rows(y, self._rows // 2))

    def _range(self, part: int) -> tuple[int, int]:
        """Return the first channel of a part, and the channel after the last."""
        return part * self._width, min(self._channels, (part + 1) * self._width)

    def _room_of(self, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return memory for a part of so many channels: views take as long as small products, and are made once.

        Returns:
            The inputs, (batch, channels, rows, columns), with zeros in their last half; their first half as
            `_by_blocks`; and the spectra of the outputs.
        """
        if not self._room:  # made with the first piece, since a step that begins a block has other work
            batch, dtype = self.outputs.shape[2], torch.promote_types(self.outputs.dtype, torch.complex64)
            # Rows of a signal lie side by side, where the first step of the transform wants them.
            inputs = allocate((batch, self._width, self._columns, self._rows), self.outputs).zero_()
            spectra = allocate((batch, self._width, self._rows // 2 + 1, self._columns), self.outputs, dtype)
            self._room = [inputs, spectra]
        if width not in self._views:
            inputs = self._room[0][:, :width].transpose(2, 3)
            self._views[width] = (inputs, self._by_rows(inputs, 0), self._room[1][:, :width])
        return self._views[width]

    def _by_rows(self, signals: Tensor, first: int) -> Tensor:
        """Return half of the rows of signals (batch, channels, rows, columns), in the order of `_by_blocks`."""
        batch, channels, row, column = signals.stride()
        strides = (batch, channels, self._shape[1] * row, row, self._shape[3] * column, column)
        return signals.as_strided((*signals.shape[:2], *self._shape), strides, signals.storage_offset() + first * row)

    def _by_blocks(self, signals: Tensor) -> Tensor:
        """Return signals (batch, channels, blocks, positions) with four dimensions of time.

        Time is row * columns + column, and block * positions + position. A block is some rows, or a row some blocks:
        the dimensions are groups of rows, rows of a block, blocks of a row, and columns of a block.
        """
        batch, channels, block, place = signals.stride()
        strides = (batch, channels, self._shape[2] * block, self._shape[3] * place, block, place)
        return signals.as_strided((*signals.shape[:2], *self._shape), strides, signals.storage_offset())

    def reorder(self, rows: Tensor) -> None:
        """Keep rows of the batch."""
        self.outputs = self.outputs.index_select(2, rows)
        self._map(lambda rows_first: rows_first.index_select(0, rows))

    def to(self, device: torch.device, non_blocking: bool) -> None:
        """Move the state to a device."""
        self.outputs = self.outputs.to(device, non_blocking=non_blocking)
        self._map(lambda each: each.to(device, non_blocking=non_blocking))

    def _map(self, function: Callable[[Tensor], Tensor]) -> None:
        self._room, self._views = [function(each) for each in self._room], {}
        self._spectra = [{part: function(each) for part, each in parts.items()} for parts in self._spectra]
