"""Tiles of causal sums: their sizes, how they are loaded, and in what numbers they are multiplied.

Where an argument is in half precision, products are of half-precision numbers and summed in float32. Float16 ends at
65504, which a state of thousands of positions exceeds. A factor 1 / t soon falls below the smallest numbers of
float16. So an operand that is no argument in float16 is brought to about 1 by a power of two, which is undone after
the product.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...common.precision import multiplies_shared_memory

__all__ = ["add_product", "dot_dtype", "fit", "load_rows", "masked_product", "serves_pairs", "tile_settings"]


def dot_dtype(*tensors: Tensor) -> Any:
    """Return the dtype in which products are made: half precision where an argument is."""
    half = {x.dtype for x in tensors} & {torch.bfloat16, torch.float16}
    if len(half) != 1:
        return tl.float32
    return tl.bfloat16 if torch.bfloat16 in half else tl.float16


def tile_settings(width: int, values: int, dot: Any, pair: bool) -> dict[str, Any]:
    """Return tiles and warps for a shape: the largest whose operands stay in registers, by what the compiler reports.

    A tile of the state, 64 x 64 numbers, takes a quarter of the registers of 4 warps. From sm_90 on, operands are
    multiplied out of shared memory. Before sm_90, operands take registers, too, and so do those in float32, which is
    multiplied as three parts. The masks of a width that is no power of two take registers as well.
    """
    width_block = max(16, triton.next_power_of_2(width))
    roomy, wide = multiplies_shared_memory(), width > 64
    if dot == tl.float32:
        chunk, values_block = 16, 16 if wide and not roomy else 32
    elif wide and not (roomy and width == width_block):
        chunk, values_block = 32, 32
    else:
        chunk, values_block = 64, 64 if roomy else 32
    return {
        "CHUNK": chunk,
        "WIDTH_BLOCK": width_block,
        "VALUES_BLOCK": min(values_block, max(16, triton.next_power_of_2(values))),
        "num_warps": 8 if wide or (pair and max(width, values) > 32) else 4,
        "num_stages": 2,
    }


def serves_pairs(width: int, values: int, dot: Any) -> bool:
    """Return whether one program can hold what two sums need: all values, and operands in shared memory."""
    return multiplies_shared_memory() and dot != tl.float32 and max(width, values) <= 64


@triton.jit
def load_rows(
    pointer, start, length, step, channel_step, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LIMIT: tl.constexpr
):
    """Load rows `start` to `start + ROWS` of one head, columns `first` to `first + COLUMNS`; zeros beyond its ends."""
    row = tl.arange(0, ROWS)
    column = first + tl.arange(0, COLUMNS)
    at = pointer + start.to(tl.int64) * step + row[:, None] * step + column[None, :] * channel_step
    inside = (start + row < length)[:, None]
    if LIMIT % COLUMNS != 0:
        inside = inside & (column < LIMIT)[None, :]
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _power(largest):
    """Return the power of two below positive numbers (1 for zero), and its inverse, within 2^-100 and 2^100."""
    bits = largest.to(tl.int32, bitcast=True) & 0x7F800000
    bits = tl.where(bits == 0, 127 << 23, tl.minimum(tl.maximum(bits, 27 << 23), 227 << 23))
    return bits.to(tl.float32, bitcast=True), ((254 << 23) - bits).to(tl.float32, bitcast=True)


@triton.jit
def fit(x, DOT: tl.constexpr):
    """Return x in the numbers of a product, and what to multiply the product by."""
    if (DOT == tl.float16) and (x.dtype != DOT):
        power, inverse = _power(tl.max(tl.abs(x.to(tl.float32))))
        return (x.to(tl.float32) * inverse).to(DOT), power
    else:
        return x.to(DOT), 1.0


@triton.jit
def masked_product(scores, x, power, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Return masked float32 scores times x. Each row of scores has its own scale, which later rows do not change."""
    if DOT == tl.float16:
        up, down = _power(tl.max(tl.abs(scores), 1))
        return tl.dot((scores * down[:, None]).to(DOT), x, input_precision=PRECISION) * (up * power)[:, None]
    else:
        return tl.dot(scores.to(DOT), x, input_precision=PRECISION)


@triton.jit
def add_product(total, x, y, power, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Return total + power x y."""
    if DOT == tl.float16:
        return total + tl.dot(x, y, input_precision=PRECISION) * power
    else:
        return tl.dot(x, y, total, input_precision=PRECISION)
