"""How the work of the Toeplitz tiles is cut: the sizes that a count of what a multiprocessor does finds cheapest.

The count is a model of an NVIDIA H200, in clocks of a multiprocessor, and unmeasured. In a clock, a multiprocessor
passes 128 bytes between registers, L1 and shared memory. In the same clock it multiplies 2048 pairs of half-precision
numbers by `wgmma`, which takes 4 warps and 64 rows or more, or 1024 pairs by `mma.sync`. float32, as three products of
tf32, takes 6 times as long. An operand is loaded, stored to shared memory and read from there, a Toeplitz tile at half
the loads. To this come the instructions, four a clock. What one covers of the other is left out. Device memory is left
out, too: it is the same for all sizes.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import triton

__all__ = ["GradientTiles", "ProductTiles", "gradient_tiles", "product_tiles"]

PROGRAMS = 264
"""Two for each of 132 multiprocessors: fewer leave some idle."""


class ProductTiles(NamedTuple):
    """A program multiplies (batches x rows) blocks of `chunk` positions by tiles of (chunk, size), and sums up."""

    batches: int
    rows: int
    size: int
    chunk: int
    warps: int


class GradientTiles(NamedTuple):
    """A program sums outer products (size, size) of (batches x rows) blocks; `parts` programs share a channel."""

    batches: int
    rows: int
    size: int
    parts: int
    warps: int


@lru_cache(maxsize=4096)
def product_tiles(batch: int, channels: int, length: int, causal: bool, itemsize: int) -> ProductTiles:
    """Return the sizes for a product, causal or transposed causal, or else bidirectional.

    Columns, the outputs of one Toeplitz tile, are blocks of `size` positions of `batches` x `rows`: at least 16, so
    that a tile's loads stay below a sixteenth of its multiplications.
    """
    largest = 128 * 128 if itemsize == 2 else 64 * 64
    best = None
    for size in _powers(16, max(16, min(128, triton.next_power_of_2(length)))):
        blocks = triton.cdiv(length, size)
        for columns in _powers(16, min(128, largest // size)):
            for batches in _powers(1, min(columns, triton.next_power_of_2(batch))):
                rows = columns // batches
                tiles = ProductTiles(
                    batches, rows, size, min(size, 64 if itemsize == 2 else 32), _warps(columns * size)
                )
                groups, row_groups = triton.cdiv(batch, batches), triton.cdiv(blocks, rows)
                # Blocks of input that a group of rows sees, over groups.
                whole = blocks // rows
                seen = rows * whole * (whole + 1) // 2 + blocks * (row_groups - whole)
                if not causal:
                    seen = row_groups * (blocks + rows - 1)
                steps = groups * seen * (size // tiles.chunk)
                clocks = (
                    steps * _product_step(columns, tiles, itemsize) / min(channels * groups * row_groups, PROGRAMS)
                )
                if best is None or clocks < best[0]:
                    best = clocks, tiles
    assert best is not None
    return best[1]


@lru_cache(maxsize=4096)
def gradient_tiles(batch: int, channels: int, length: int, causal: bool, itemsize: int) -> GradientTiles:
    """Return the sizes for a gradient in the taps."""
    best = None
    for size in _powers(16, max(16, min(64, triton.next_power_of_2(length)))):
        blocks = triton.cdiv(length, size)
        lags = blocks if causal else 2 * blocks
        parts = min(lags, triton.cdiv(PROGRAMS, channels))
        for columns in _powers(16, 64 if itemsize == 2 else 32):
            for batches in _powers(1, min(columns, triton.next_power_of_2(batch))):
                rows = columns // batches
                tiles = GradientTiles(batches, rows, size, parts, _warps(size * size))
                whole, rest = divmod(blocks, rows)
                steps = rows * whole * (whole + 1) // 2 + rest * (whole + 1)  # groups of rows that overlap, over lags
                steps *= triton.cdiv(batch, batches) * (1 if causal else 2)
                clocks = steps * _gradient_step(columns, tiles, itemsize)
                clocks += (lags + parts) * 250 * (size / 64) ** 2  # sums along diagonals
                clocks /= min(channels * parts, PROGRAMS)
                if best is None or clocks < best[0]:
                    best = clocks, tiles
    assert best is not None
    return best[1]


def _product_step(columns: int, tiles: ProductTiles, itemsize: int) -> float:
    passes = max(1, columns // 64)  # a group of 4 warps reads the tile for 64 columns
    moved = tiles.chunk * (3 * columns + (1.5 + passes) * tiles.size) * itemsize
    return (
        moved / 128
        + _multiplications(columns, tiles.size * tiles.chunk, tiles.warps, itemsize)
        + _instructions(tiles.warps, itemsize)
    )


def _gradient_step(columns: int, tiles: GradientTiles, itemsize: int) -> float:
    moved = 6 * columns * tiles.size * itemsize
    return (
        moved / 128
        + _multiplications(tiles.size, tiles.size * columns, tiles.warps, itemsize)
        + _instructions(tiles.warps, itemsize)
    )


def _multiplications(rows: int, others: int, warps: int, itemsize: int) -> float:
    return rows * others / (2048 if rows >= 64 and warps >= 4 else 1024) * (1 if itemsize == 2 else 6)


def _instructions(warps: int, itemsize: int) -> float:
    return (100 if itemsize == 2 else 300) * warps / 4  # a step of a warp, in the compiled code for sm_90


def _warps(outputs: int) -> int:
    return max(1, min(8, outputs // 1024 if outputs <= 4096 else outputs // 2048))


def _powers(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2
