"""The gradient of the taps of a short convolution.

Few taps are summed one by one. The gradient of more is one batched matrix product whose diagonals are summed.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.dispatch import compute_dtype

__all__ = ["weight_gradient"]

# Taps up to which a product and a sum for each is faster than batched products, for 64 to 768 channels on CPU.
_FEW_TAPS = 12
# Positions that share one row of the batched product; 16 measured fastest for 17 and 33 taps.
_SEGMENT = 16
# Bytes of g that are laid out anew at a time: in cache on CPU, where 1 MiB measured fastest for 256 and 768 channels.
_CPU_BYTES = 2**20
_DEVICE_BYTES = 64 * 2**20


def weight_gradient(g: Tensor, x: Tensor, taps: int, back: int | None = None) -> Tensor:
    """Return dw[c, q] = sum over batch and i of g[b, c, i] x[b, c, i + q - back], shape (channels, taps).

    Args:
        g: (batch, channels, length), of the output.
        x: (batch, channels, length), the input.
        taps: their number.
        back: see `short_conv`; taps // 2 by default.
    """
    back = taps // 2 if back is None else back
    return (_by_taps if taps <= _FEW_TAPS else _by_segments)(g, x, taps, back)


def _by_taps(g: Tensor, x: Tensor, taps: int, back: int) -> Tensor:
    """Multiply and sum once for each tap, a few sequences at a time."""
    length, dtype = x.shape[2], compute_dtype(x.dtype)
    budget = _CPU_BYTES if x.device.type == "cpu" else _DEVICE_BYTES
    rows = max(1, budget // (x.shape[1] * length * dtype.itemsize))
    dweight = x.new_zeros((taps, x.shape[1]), dtype=dtype)
    for g_some, x_some in zip(g.transpose(1, 2).split(rows), x.transpose(1, 2).split(rows), strict=True):
        g_rows, x_rows = g_some.to(dtype), x_some.to(dtype)  # (rows, length, channels)
        for tap in range(taps):
            shift = tap - back
            first, last = max(0, -shift), min(length, length - shift)
            if first < last:
                dweight[tap] += (g_rows[:, first:last] * x_rows[:, first + shift : last + shift]).sum(dim=(0, 1))
    return dweight.t()


def _by_segments(g: Tensor, x: Tensor, taps: int, back: int) -> Tensor:
    """Sum by batched matrix products.

    Cut g into segments of 16 positions: the products of all pairs of a place in a segment and a place in the k-th
    segment after it of x, which begins `back` positions earlier, are one matrix product, and dw[q] is the sum of a
    diagonal of these products. Channels are the batch of the product, so blocks of g and x that fit the cache are
    transposed first.
    """
    batch, channels, length = x.shape
    dtype = compute_dtype(x.dtype)
    later = -(-(taps - 1) // _SEGMENT)  # segments after its own that a position meets
    reach = later * _SEGMENT
    budget = _CPU_BYTES if x.device.type == "cpu" else _DEVICE_BYTES
    most = max(budget // (channels * _SEGMENT * dtype.itemsize) - later, 1) * _SEGMENT
    blocks = -(-length // most)
    size = -(-length // (blocks * _SEGMENT)) * _SEGMENT  # positions of a block, all nearly as long
    rows = max(1, min(batch, most // (size + reach)))  # sequences of a block
    rows = -(-batch // -(-batch // rows))  # as many in each, but for the last
    # Several sequences stand end to end: zeros between them keep what belongs to the next out of the sums.
    stride = size if rows == 1 else size + reach
    g_block = x.new_empty((channels, rows * stride), dtype=dtype)
    x_block = x.new_empty((channels, size + reach if rows == 1 else rows * stride), dtype=dtype)
    used = x_block.shape[1] - reach
    g_segments = g_block[:, :used].unflatten(1, (-1, _SEGMENT)).transpose(1, 2)
    x_segments = [
        x_block[:, k * _SEGMENT : k * _SEGMENT + used].unflatten(1, (-1, _SEGMENT)) for k in range(later + 1)
    ]
    products = [x.new_zeros((channels, _SEGMENT, _SEGMENT), dtype=dtype) for _ in range(later + 1)]
    for first in range(0, batch, rows):
        some = slice(first, first + rows)
        if first + rows > batch:
            g_block.zero_()  # where there is no sequence any more
            x_block.zero_()
        for start in range(0, length, size):
            _lay_out(g_block, g[some], start, start + stride)
            _lay_out(x_block, x[some], start - back, start - back + size + reach)
            for product, segments in zip(products, x_segments, strict=True):
                product.baddbmm_(g_segments, segments)
    # One more column a row turns diagonals into columns.
    sheared = F.pad(torch.cat(products, dim=-1).flatten(1), (0, _SEGMENT)).view(channels, _SEGMENT, -1)
    return sheared[..., :taps].sum(dim=1)


def _lay_out(out: Tensor, x: Tensor, start: int, stop: int) -> None:
    """Write x[b, c, start:stop] to the front of out (channels, places), one b after another, zeros outside of x."""
    length = x.shape[-1]
    rows = x.transpose(1, 2)[:, max(start, 0) : min(stop, length)]
    if start < 0 or stop > length:
        rows = F.pad(rows, (0, 0, max(-start, 0), max(stop - length, 0)))
    # Two dimensions, the second contiguous in the source: the one transposing copy that is fast.
    out[:, : x.shape[0] * (stop - start)] = rows.reshape(-1, x.shape[1]).transpose(0, 1)
