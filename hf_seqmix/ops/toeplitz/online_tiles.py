"""The far part of `online.py` in squares that are multiplied by transforms, each a little at a time.

The plane of pairs (j, t) is cut as in a relaxed (online) convolution (van der Hoeven 2002; Oncescu et al. 2024, arXiv
2410.12982, "Flash Inference"), with other squares: tiles of size U = block 2^level that do not touch the diagonal, of
U inputs, and U outputs that begin U or 2U positions after the last of these inputs. A tile is a circular convolution
of length 2U.

Departure: the squares of the sources touch the diagonal, so that a tile of n / 2 inputs is needed the moment the last
of these inputs is known, and takes that step n / 2 times as long as most. Here a tile is needed U steps after its
inputs are known, and is computed in pieces, a few channels at a time, over these steps. The price is twice as many
transforms, which are the smaller part of the time.
"""

from typing import Any

import torch
from torch import Tensor

from ..common.fft import step_sizes, stepped_product, stepped_spectrum
from .online_history import BlockHistory, allocate

__all__ = ["Tiles"]

PIECE = 2**14
"""Samples that are transformed in a piece.

Measured on a busy CPU (256 channels, one row, 8,192 tokens): mean 40 us and worst token 6 times that. Half as many
samples: 55 us and 5 times. Twice as many: 33 us and 10 times.
"""


class Tiles:
    """The far part of a kernel given by its taps.

    Args:
        kernel: `OnlineKernel`, which makes this object; its spectra are multiplied.
        history: inputs, which the convolution writes.
        piece: samples that are transformed in a piece, unless one channel of all rows has more.
        limit: positions that follow at most; None if not known.
    """

    def __init__(self, kernel: Any, history: BlockHistory, piece: int, limit: int | None) -> None:
        self._kernel, self._history, self._limit = kernel, history, limit
        self._batch = history.shape[0]
        self._tiles: list[Tensor] = []  # of each level, (2, blocks, batch, channels, block), outputs of two tiles
        self._rooms: list[Tensor] = []  # of each level, (signals, columns, rows) of a piece, zeros in their last half
        self._samples = piece // max(1, self._batch)  # of a row, in a piece

    @property
    def memory(self) -> int:
        """Bytes of the state, without the history."""
        return sum(tiles.nbytes for tiles in self._tiles)

    def put(self, index: int, inputs: Tensor) -> None:
        """Do nothing: tiles read the history."""

    def outputs(self, block: int) -> Tensor | None:
        """Return what tiles add to the outputs of a block, (batch, channels, block)."""
        parts = []
        for level, tiles in enumerate(self._tiles):
            tile = block >> level
            if tile >= 2:
                parts.append(tiles[tile % 2, block & ((1 << level) - 1)])
        if len(parts) < 2:
            return parts[0] if parts else None
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total.add_(part)
        return total

    def pieces(self, block: int) -> list[Any]:
        """Return the pieces that are to be computed during a block: the same share of each tile in every block."""
        self._add_levels(block)
        pieces = []
        for level in range(len(self._tiles)):
            offset = block & ((1 << level) - 1)
            tile = (block >> level) + 1
            pieces += self._pieces(level, tile, self._share(level, tile, offset), self._share(level, tile, offset + 1))
        return pieces

    def compute(self, piece: Any) -> None:
        """Write the outputs of a tile in a range of channels."""
        level, tile, start, stop = piece
        blocks = 1 << level
        size = self._kernel.block << level
        levels = self._kernel.levels
        # Outputs of an odd tile lack two blocks of inputs, unless the kernel has ended.
        count = 1 if levels is not None and level + 1 >= levels else 1 + tile % 2
        batch, width, block = self._batch, stop - start, self._kernel.block
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
        taps = self._kernel.spectra(level, count, start, stop).unsqueeze(1)
        y = stepped_product(stepped_spectrum(padded), taps, rows)
        # What wraps around falls on the first half.
        y = y[..., rows // 2 :, :].reshape(batch, width, blocks, block)
        self._tiles[level][tile % 2].narrow(2, start, width).copy_(y.permute(2, 0, 1, 3))

    def load(self, first: int, inputs: Tensor) -> None:
        """Make the tiles at the beginning of the block that follows these inputs."""
        self._rebuild(first + inputs.shape[1] // self._kernel.block, None)

    def crop(self, block: int, before: int) -> None:
        """Make the tiles at the beginning of a block; tiles that saw none of the inputs forgotten stay."""
        self._rebuild(block, before)

    def _rebuild(self, block: int, before: int | None) -> None:
        self._add_levels(block)
        for level in range(len(self._tiles)):
            tile, offset = block >> level, block & ((1 << level) - 1)
            if before is None or before >> level != tile:
                pieces = self._pieces(level, tile, 0, self._share(level, tile, 1 << level))
                for piece in pieces + self._pieces(level, tile + 1, 0, self._share(level, tile + 1, offset)):
                    self.compute(piece)

    def oldest(self, block: int) -> int:
        """Return the first block of inputs that tiles read at a block."""
        levels = self._kernel.levels
        return 0 if levels is None else ((block >> max(0, levels - 1)) - 2) << max(0, levels - 1)

    def reorder(self, rows: Tensor) -> None:
        """Keep rows of the batch."""
        before, self._batch = self._batch, len(rows)
        self._tiles = [tiles.index_select(2, rows) for tiles in self._tiles]
        self._rooms = [room.new_zeros((len(room) // before * len(rows), *room.shape[1:])) for room in self._rooms]

    def to(self, device: torch.device, non_blocking: bool) -> None:
        """Move the tiles to a device."""
        self._tiles = [tiles.to(device, non_blocking=non_blocking) for tiles in self._tiles]
        self._rooms = [room.to(device, non_blocking=non_blocking) for room in self._rooms]

    def _width(self, level: int, tile: int) -> int:
        """Return the number of channels of a piece; a tile of two parts has twice as many pieces."""
        samples = 2 * (1 + tile % 2) * (self._kernel.block << level)
        return min(self._kernel.channels, max(1, self._samples // samples))

    def _share(self, level: int, tile: int, blocks: int) -> int:
        """Return how many pieces of a tile are ready when that many blocks of the tile before it have passed."""
        count = -(-self._kernel.channels // self._width(level, tile))
        # Levels take turns: (sqrt(5) - 1) / 2 spreads multiples over the circle.
        turn = int((level * 0.618034) % 1 * (1 << level))
        return (blocks * count + turn) >> level

    def _pieces(self, level: int, tile: int, start: int, stop: int) -> list[Any]:
        if tile < 2 or (self._limit is not None and tile * (self._kernel.block << level) >= self._limit):
            return []
        width, channels = self._width(level, tile), self._kernel.channels
        return [(level, tile, c * width, min(channels, (c + 1) * width)) for c in range(start, stop)]

    def _add_levels(self, at: int) -> None:
        batch, channels, block = self._history.shape
        levels = self._kernel.levels
        while at >> len(self._tiles) and (levels is None or len(self._tiles) < levels):
            size = block << len(self._tiles)
            if self._limit is not None and 2 * size >= self._limit:
                break
            shape = (2, size // block, batch, channels, block)
            # Written before it is read, so that pages of memory are asked for a few at a time.
            self._tiles.append(allocate(shape, self._kernel.taps))
            level = len(self._rooms)
            signals = batch * max((1 + tile % 2) * self._width(level, tile) for tile in (0, 1))
            rows, columns = step_sizes(2 * size)
            self._rooms.append(allocate((signals, columns, rows), self._kernel.taps).zero_())
