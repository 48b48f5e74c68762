"""Spans of one size of `online_tiles.py`: their transforms, products and outputs, a part of the channels at a time."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..common.fft import step_sizes, stepped_inverse, stepped_spectrum
from .online_history import BlockHistory, allocate

__all__ = ["Spans"]


class Spans:
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
        self.outputs = allocate((2, self.blocks, batch, channels, self._block), kernel.near[0])
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

    def alike(self, batch: int) -> "Spans":
        """Return empty spans of other rows, with the channels in the same parts."""
        other = copy.copy(self)
        shape = (*self.outputs.shape[:2], batch, *self.outputs.shape[3:])
        other.outputs = allocate(shape, self.outputs).zero_()
        other._spectra, other._held = [{} for _ in self._spectra], [-1] * len(self._held)
        other._room, other._views = [], {}
        return other

    def join(self, other: "Spans") -> None:
        """Add the rows of other spans. Spectra that the other ones have no use for are let go."""
        self.outputs = torch.cat([self.outputs, other.outputs], dim=2)
        for place, (parts, added) in enumerate(zip(self._spectra, other._spectra, strict=True)):
            both = parts.keys() & added.keys() if self._held[place] == other._held[place] else set()
            self._spectra[place] = {part: torch.cat([parts[part], added[part]]) for part in both}
            self._held[place] = self._held[place] if both else -1
        pairs = zip(self._room, other._room, strict=True) if len(self._room) == len(other._room) else []
        self._room, self._views = [torch.cat(pair) for pair in pairs], {}

    def to(self, device: torch.device, non_blocking: bool) -> None:
        """Move the state to a device."""
        self.outputs = self.outputs.to(device, non_blocking=non_blocking)
        self._map(lambda each: each.to(device, non_blocking=non_blocking))

    def _map(self, function: Callable[[Tensor], Tensor]) -> None:
        self._room, self._views = [function(each) for each in self._room], {}
        self._spectra = [{part: function(each) for part, each in parts.items()} for parts in self._spectra]
