"""Causal Toeplitz products whose inputs come one at a time: y[t] = sum_j k[t - j] x[j], exact, O(log^2 n) a token.

The plane of pairs (j, t) is cut as in a relaxed (online) convolution (van der Hoeven 2002; Oncescu et al. 2024, arXiv
2410.12982, "Flash Inference"), with other squares. Positions are in blocks. Pairs of the same block or of neighboring
ones are multiplied directly, when the input comes. All other pairs lie in squares, tiles, of size U = block 2^level
that do not touch the diagonal: U inputs, and U outputs that begin U or 2U positions after the last of these inputs.
A tile is a circular convolution of length 2U.

Departure: the squares of the sources touch the diagonal, so that a tile of n / 2 inputs is needed the moment the last
of these inputs is known, and takes that step n / 2 times as long as most. Here a tile is needed U steps after its
inputs are known, and is computed in pieces, a few channels at a time, over these steps. The price is twice as many
transforms, which are the smaller part of the time.

A state is a function of the inputs so far, up to rounding. A cache layer has to keep `inputs()` alone: `load` makes
everything else of these.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.fft import step_sizes, stepped_product, stepped_spectrum
from .online_history import BlockHistory
from .online_kernel import OnlineKernel, allocate
from .product import toeplitz_matmul

__all__ = ["OnlineConvolution"]

PIECE = 2**14
"""Samples that are transformed in a piece.

Measured on a busy CPU (256 channels, one row, 8,192 tokens): mean 40 us and worst token 6 times that. Half as many
samples: 55 us and 5 times. Twice as many: 33 us and 10 times.
"""


class OnlineConvolution:
    """A causal convolution of each channel, a step at a time; without derivatives, not for `torch.compile`.

    All rows share one clock. A row of fewer tokens than others has pads before its tokens, whose inputs are zeros: a
    convolution does not depend on where the row begins.

    Args:
        kernel: that is convolved with.
        batch: number of rows.
        dtype: that of inputs, which are kept, and of outputs; sums are in float32 (float64 for float64).
        piece: samples that are transformed in a piece, unless one channel of all rows has more. Smaller pieces spread
            the work more evenly over the steps, and larger ones take less time in all.

    Attributes:
        kernel: the kernel.
        position: number of positions so far, pads included.

    Raises:
        ValueError: for a kernel in the wrong dtype.
    """

    def __init__(
        self, kernel: OnlineKernel, batch: int, dtype: torch.dtype = torch.float32, piece: int = PIECE
    ) -> None:
        if torch.promote_types(dtype, torch.float32) != kernel.dtype:
            raise ValueError(f"inputs are {dtype} but the kernel is {kernel.dtype}: make the kernel for that dtype.")
        self.kernel, self.dtype, self._piece = kernel, dtype, piece
        self._clear(batch)

    def _clear(self, batch: int) -> None:
        block, channels, levels = self.kernel.block, self.kernel.channels, self.kernel.levels
        most = None if levels is None else 4 << max(0, levels - 1)
        self._history = BlockHistory((batch, channels, block), self.kernel.taps, self.dtype, most)
        self._recent = allocate((block, batch, channels), self.kernel.taps, self.dtype)
        self._sums = allocate((2 * block, batch, channels), self.kernel.taps).zero_()
        self._tiles: list[Tensor] = []  # of each level, (2, blocks, batch, channels, block), outputs of two tiles
        self._rooms: list[Tensor] = []  # of each level, (signals, columns, rows) of a piece, zeros in their last half
        self._samples = self._piece // max(1, batch)  # of a row, in a piece
        self._tail: Tensor | None = None  # (blocks, batch, channels, block), what a forgotten prompt adds to outputs
        self._forgotten = 0  # positions of that prompt
        self._limit: int | None = None  # positions that can follow it
        self._block = self._place = 0  # the next input is at this place of this block
        self._todo: list[tuple[int, int, int, int]] = []  # pieces to be computed during this block
        self._view()

    def _view(self) -> None:
        # Views take as long as the arithmetic of a step: made once.
        self._recent_rows = list(self._recent)
        self._open_sums = [self._sums[place:] for place in range(self.kernel.block)]
        self._sum_rows = [sums[0] for sums in self._open_sums]

    @property
    def position(self) -> int:
        """Number of positions so far."""
        return self._forgotten + self._clock

    @property
    def _clock(self) -> int:
        return self._block * self.kernel.block + self._place

    @property
    def memory(self) -> int:
        """Bytes of the state, without those of the kernel, which states share."""
        tail = [] if self._tail is None else [self._tail]
        tensors = (self._recent, self._sums, *self._history.segments, *self._tiles, *tail)
        return sum(tensor.nbytes for tensor in tensors)

    def step(self, x: Tensor) -> Tensor:
        """Add inputs and return the outputs at their positions.

        Args:
            x: (batch, tokens, channels), zeros at pads. Many tokens at a time go the way of `prefill`.

        Returns:
            (batch, tokens, channels), in the dtype of the state.

        Raises:
            ValueError: for a wrong shape or dtype, for inputs that want derivatives, and for more tokens than
                `prefill` was told.
        """
        if torch.is_grad_enabled():
            if x.requires_grad:
                raise ValueError("x wants derivatives, which a step has not: detach it, or use toeplitz_matmul.")
            with torch.no_grad():
                return self.step(x)
        batch, tokens, channels = x.shape
        if (batch, channels) != self._sum_rows[0].shape or x.dtype != self.dtype:
            raise ValueError(
                f"x is {x.dtype} of shape {tuple(x.shape)}, but ({self._sums.shape[1]}, tokens, "
                f"{self.kernel.channels}) of {self.dtype} is needed."
            )
        if self._limit is not None and self._clock + tokens > self._limit:
            raise ValueError(
                f"{self._clock + tokens} tokens follow the prompt, but prefill was told {self._limit}: tell it more, "
                "or nothing, which keeps the prompt."
            )
        if tokens == 1:
            return self._step(x[:, 0]).unsqueeze(1)
        if tokens > 2 * self.kernel.block and self._limit is None:
            return self.prefill(x)
        outputs = [self._step(column) for column in x.unbind(1)]
        return torch.stack(outputs, dim=1) if outputs else x.clone()

    def _step(self, x: Tensor) -> Tensor:
        block, place = self.kernel.block, self._place
        if place == block:
            self._next_block()
            place = 0
        self._recent_rows[place].copy_(x)
        self._open_sums[place].addcmul_(x.to(self.kernel.dtype), self.kernel.near[place])
        y = self._sum_rows[place].to(self.dtype, copy=True)
        if self._todo:
            count = len(self._todo)
            for piece in self._todo[count * place // block : count * (place + 1) // block]:
                self._compute(*piece)
        self._place = place + 1
        return y

    def prefill(self, x: Tensor, tokens_to_come: int | None = None) -> Tensor:
        """Add many inputs and return the outputs at their positions, O(n log n).

        Args:
            x: (batch, tokens, channels), zeros at pads; may follow earlier inputs.
            tokens_to_come: how many tokens follow at most, if they are known. Then `x`, which must be the first
                inputs, is forgotten, and the state takes memory for these tokens alone. None keeps the inputs.

        Returns:
            (batch, tokens, channels), in the dtype of the state.

        Raises:
            ValueError: for `tokens_to_come` after earlier inputs, and for inputs after a forgotten prompt.
        """
        before = self._clock
        if self._limit is not None or (tokens_to_come is not None and before):
            raise ValueError(
                "a prompt that is to be forgotten must be the whole of what comes before the steps: give all inputs "
                "at once, or leave tokens_to_come out."
            )
        batch, tokens, channels = x.shape
        with torch.no_grad():
            if tokens_to_come is None:
                first = self._history.oldest
                inputs = torch.cat([self.inputs(), x], dim=1) if before else x
                length = inputs.shape[1]
                y = toeplitz_matmul(inputs.transpose(1, 2), self.kernel.first(length)).transpose(1, 2)
                self._load(inputs, first)
                return y[:, length - tokens :]
            block = self.kernel.block
            blocks = -(-tokens_to_come // block)
            padded = F.pad(x.to(self.kernel.dtype), (0, 0, 0, blocks * block))
            y = toeplitz_matmul(padded.transpose(1, 2), self.kernel.first(padded.shape[1]))
            self._clear(batch)
            self._tail = allocate((blocks, batch, channels, block), y)
            self._tail.copy_(y[..., tokens:].unflatten(-1, (blocks, block)).permute(2, 0, 1, 3))
            self._forgotten, self._limit = tokens, tokens_to_come
            self._rebuild(None)
            return y[..., :tokens].transpose(1, 2).to(self.dtype)

    def inputs(self) -> Tensor:
        """Return the inputs that later outputs depend on, (batch, held, channels): all, or some more than the taps.

        Raises:
            ValueError: if the prompt is forgotten.
        """
        if self._limit is not None:
            raise ValueError("the prompt is forgotten: leave tokens_to_come of prefill out to keep it.")
        blocks = [self._history.at(index) for index in range(self._history.oldest, self._block)]
        recent = self._recent[: self._place].transpose(0, 1)
        return torch.cat([*(part.transpose(1, 2) for part in blocks), recent], dim=1)

    def load(self, inputs: Tensor) -> None:
        """Make the state after these inputs, (batch, tokens, channels), zeros at pads: for rows that were joined."""
        with torch.no_grad():
            self._load(inputs, 0)

    def _load(self, inputs: Tensor, first: int) -> None:
        """Make the state after inputs that begin with block `first`."""
        batch, tokens, _ = inputs.shape
        block = self.kernel.block
        self._clear(batch)
        blocks = max(0, tokens - 1) // block
        self._block, self._place = first + blocks, tokens - blocks * block
        self._history.oldest = first
        for index in range(blocks):
            self._history.put(first + index, inputs[:, index * block : (index + 1) * block].transpose(1, 2))
        self._recent[: self._place] = inputs[:, blocks * block :].transpose(0, 1)
        self._rebuild(None)

    def crop(self, length: int) -> None:
        """Forget the inputs from position `length` on.

        Tiles that saw none of these inputs stay. The time depends on the number of inputs that are forgotten, but a
        large tile that began with them is computed again.

        Raises:
            ValueError: if inputs before that position, which are needed, are no longer held.
        """
        clock = length - self._forgotten
        block = max(0, clock - 1) // self.kernel.block
        levels = self.kernel.levels
        needed = 0 if levels is None else ((block >> max(0, levels - 1)) - 2) << max(0, levels - 1)
        if not 0 <= clock <= self._clock or max(0, needed) < self._history.oldest:
            raise ValueError(
                f"{self.position} positions cannot be cropped to {length}: the prompt of {self._forgotten} positions "
                f"and what is older than {self._history.oldest * self.kernel.block} are forgotten."
            )
        before, self._place = self._block, clock - block * self.kernel.block
        with torch.no_grad():
            if block != before:
                self._recent.copy_(self._history.at(block).permute(2, 0, 1))
                self._block = block
            self._rebuild(before)

    def reorder(self, rows: Tensor) -> None:
        """Keep rows of the batch, (kept,) long, in that order; a row may be kept more than once."""
        with torch.no_grad(), torch.inference_mode(False):
            rows, before = rows.clone(), self._sums.shape[1]
            self._recent, self._sums = (tensor.index_select(1, rows) for tensor in (self._recent, self._sums))
            self._tiles = [tiles.index_select(2, rows) for tiles in self._tiles]
            self._tail = None if self._tail is None else self._tail.index_select(1, rows)
            self._history.reorder(rows)
            self._rooms = [room.new_zeros((len(room) // before * len(rows), *room.shape[1:])) for room in self._rooms]
        self._view()

    def _next_block(self) -> None:
        block = self.kernel.block
        self._history.put(self._block, self._recent.permute(1, 2, 0))
        self._block += 1
        self._place = 0
        far = self._far()
        if far is None:
            self._sums[:block] = self._sums[block:]
        else:
            torch.add(self._sums[block:], far.permute(2, 0, 1), out=self._sums[:block])
        self._sums[block:] = 0
        self._plan()

    def _far(self) -> Tensor | None:
        """Return what tiles and a forgotten prompt add to the outputs of this block, (batch, channels, block)."""
        parts = [] if self._tail is None else [self._tail[self._block]]
        for level, tiles in enumerate(self._tiles):
            tile = self._block >> level
            if tile >= 2:
                parts.append(tiles[tile % 2, self._block & ((1 << level) - 1)])
        if len(parts) < 2:
            return parts[0] if parts else None
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total.add_(part)
        return total

    def _plan(self) -> None:
        """Set the pieces that are to be computed during this block: the same share of each tile in every block."""
        self._add_levels()
        self._todo = []
        for level in range(len(self._tiles)):
            blocks = 1 << level
            offset = self._block & (blocks - 1)
            tile = (self._block >> level) + 1
            self._todo += self._pieces(
                level, tile, self._share(level, tile, offset), self._share(level, tile, offset + 1)
            )

    def _width(self, level: int, tile: int) -> int:
        """Return the number of channels of a piece; a tile of two parts has twice as many pieces."""
        samples = 2 * (1 + tile % 2) * (self.kernel.block << level)
        return min(self.kernel.channels, max(1, self._samples // samples))

    def _share(self, level: int, tile: int, blocks: int) -> int:
        """Return how many pieces of a tile are ready when that many blocks of the tile before it have passed."""
        count = -(-self.kernel.channels // self._width(level, tile))
        # Levels take turns: (sqrt(5) - 1) / 2 spreads multiples over the circle.
        turn = int((level * 0.618034) % 1 * (1 << level))
        return (blocks * count + turn) >> level

    def _pieces(self, level: int, tile: int, start: int, stop: int) -> list[tuple[int, int, int, int]]:
        if tile < 2 or (self._limit is not None and tile * (self.kernel.block << level) >= self._limit):
            return []
        width, channels = self._width(level, tile), self.kernel.channels
        return [(level, tile, c * width, min(channels, (c + 1) * width)) for c in range(start, stop)]

    def _add_levels(self) -> None:
        batch, block, channels = self._recent.shape[1], self.kernel.block, self.kernel.channels
        levels = self.kernel.levels
        while self._block >> len(self._tiles) and (levels is None or len(self._tiles) < levels):
            size = block << len(self._tiles)
            if self._limit is not None and 2 * size >= self._limit:
                break
            shape = (2, size // block, batch, channels, block)
            # Written before it is read, so that pages of memory are asked for a few at a time.
            self._tiles.append(allocate(shape, self._sums))
            level = len(self._rooms)
            signals = batch * max((1 + tile % 2) * self._width(level, tile) for tile in (0, 1))
            rows, columns = step_sizes(2 * size)
            self._rooms.append(allocate((signals, columns, rows), self._sums).zero_())

    def _compute(self, level: int, tile: int, start: int, stop: int) -> None:
        """Write the outputs of a tile in a range of channels: a piece."""
        blocks = 1 << level
        size = self.kernel.block << level
        levels = self.kernel.levels
        # Outputs of an odd tile lack two blocks of inputs, unless the kernel has ended.
        count = 1 if levels is not None and level + 1 >= levels else 1 + tile % 2
        batch, width, block = self._recent.shape[1], stop - start, self.kernel.block
        signals = self._history.read((tile - 1 - count) * blocks, count, blocks, start, stop)
        room = self._rooms[level]
        columns, rows = room.shape[1:]
        # Rows of a signal lie side by side, where the first step of the transform wants them; the last half is zero.
        outer = (batch * width * 2 * size, width * 2 * size, 2 * size)
        if columns == 1:
            room.as_strided(signals.shape, (*outer, block, 1)).copy_(signals)
        else:
            shape = (count, batch, width, rows // 2, columns)
            room.as_strided(shape, (*outer, 1, rows)).copy_(signals.reshape(shape))
        padded = room.as_strided((count, batch, width, rows, columns), (*outer, 1, rows))
        taps = self.kernel.spectra(level, count, start, stop).unsqueeze(1)
        y = stepped_product(stepped_spectrum(padded), taps, rows)
        # What wraps around falls on the first half.
        y = y[..., rows // 2 :, :].reshape(batch, width, blocks, block)
        self._tiles[level][tile % 2].narrow(2, start, width).copy_(y.permute(2, 0, 1, 3))

    def _rebuild(self, before: int | None) -> None:
        """Make tiles and sums of the inputs held.

        Args:
            before: the block at which the tiles held were right, of which this is the same one or an earlier one.
        """
        self._plan()
        for level in range(len(self._tiles)):
            tile, offset = self._block >> level, self._block & ((1 << level) - 1)
            if before is None or before >> level != tile:
                pieces = self._pieces(level, tile, 0, self._share(level, tile, 1 << level))
                for piece in pieces + self._pieces(level, tile + 1, 0, self._share(level, tile + 1, offset + 1)):
                    self._compute(*piece)
        block = self.kernel.block
        near = allocate((2, *self._sums.shape[1:], 2 * block), self._sums).zero_()
        near[0, ..., : self._place] = self._recent[: self._place].permute(1, 2, 0)
        if self._block:
            near[1, ..., :block] = self._history.at(self._block - 1)
        y = toeplitz_matmul(near.flatten(0, 1), self.kernel.first(2 * block)).view(near.shape)
        y[0, ..., :block] += y[1, ..., block:]
        far = self._far()
        if far is not None:
            y[0, ..., :block] += far
        self._sums.copy_(y[0].permute(2, 0, 1))
