"""The programs of `operator.py`: tokens are collected at inducing points, and points spread to tokens."""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["collect_kernel", "spread_kernel"]


@triton.jit
def _cubic_weight(u, K: tl.constexpr):
    """Return the weight of the K-th of four points at 0, 1, 2 and 3 for a token at u."""
    v, w, x = u - 1, u - 2, u - 3
    if K == 0:
        weight = v * w * x * (-1 / 6)
    elif K == 1:
        weight = u * w * x * 0.5
    elif K == 2:
        weight = u * v * x * -0.5
    else:
        weight = u * v * w * (1 / 6)
    return weight


@triton.jit(do_not_specialize=["length", "points", "cells", "tokens", "groups"])
def collect_kernel(
    x, collected, length, points, cells, tokens, inverse, groups, x_batch,
    X_STEP: tl.constexpr, CHANNELS: tl.constexpr, DEGREE: tl.constexpr, OWNED: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write W^T x for OWNED points of some channels of a sequence."""
    BLOCKS: tl.constexpr = (CHANNELS + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    channel = (program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    in_row = channel < CHANNELS
    batch = (program // BLOCKS // groups).to(tl.int64)
    first = program // BLOCKS % groups * OWNED  # the first point of its own
    # Linear weights reach into the cells beside a point, cubic ones one further; of the first cell, even to the fourth
    # point.
    BEFORE: tl.constexpr = 1 if DEGREE == 1 else 2
    cell, last = tl.maximum(first - BEFORE, 0).to(tl.int64), (first + OWNED + BEFORE - 1).to(tl.int64)
    start = (cell * tokens + cells - 1) // cells
    stop = tl.minimum((last * tokens + cells - 1) // cells, length).to(tl.int32)
    place = (start * cells - first.to(tl.int64) * tokens).to(tl.int32)  # of `start`, from `first`, in 1 / tokens cells
    point = tl.arange(0, 16)[:, None]  # dots have 16 rows at least
    total = tl.zeros((16, COLUMNS), tl.float32)
    x_at = x + batch * x_batch + channel
    begin = start.to(tl.int32)
    # From a multiple of TOKENS, so that sums do not depend on how many points a program owns, and so on the batch.
    for at in range(begin // TOKENS * TOKENS, stop, TOKENS):
        token = at + tl.arange(0, TOKENS)
        inside = ((token >= begin) & (token < stop))[:, None] & in_row
        tile = tl.load(x_at + token.to(tl.int64)[:, None] * X_STEP, mask=inside, other=0.0)
        places = (place + (token - begin) * cells)[None, :]
        if DEGREE == 1:
            away = tl.abs(places - point * tokens)
            weights = tl.where(away < tokens, 1 - away.to(tl.float32) * inverse, 0.0)
        else:
            # A step of 4 cells keeps the division among positive numbers.
            nearest = tl.maximum((places + 4 * tokens) // tokens - 5, -first)
            u = (places - nearest * tokens).to(tl.float32) * inverse
            k = point - nearest
            weights = tl.where(k == 0, _cubic_weight(u, 0), 0.0)
            weights = tl.where(k == 1, _cubic_weight(u, 1), weights)
            weights = tl.where(k == 2, _cubic_weight(u, 2), weights)
            weights = tl.where(k == 3, _cubic_weight(u, 3), weights)
        if tile.dtype == tl.float32:
            total = tl.dot(weights, tile, total, input_precision=PRECISION)
        else:
            leading = weights.to(tile.dtype)
            total = tl.dot(leading, tile, total)
            total = tl.dot((weights - leading.to(tl.float32)).to(tile.dtype), tile, total)
    owned = (point < OWNED) & (first + point < points)
    tl.store(collected + (batch * points + first + point) * CHANNELS + channel, total, mask=owned & in_row)


@triton.jit(do_not_specialize=["length", "points", "cells", "tokens", "all_tiles", "tiles", "tiles_each"])
@no_type_check  # tuples that grow
def spread_kernel(
    x, taps, values, out, other, sums,
    length, points, cells, tokens, inverse, all_tiles, tiles, tiles_each, x_batch, other_batch,
    X_STEP: tl.constexpr, OTHER_STEP: tl.constexpr, CHANNELS: tl.constexpr, DEGREE: tl.constexpr,
    TAPS: tl.constexpr, BEFORE: tl.constexpr, MIRRORED: tl.constexpr, HAS_OUT: tl.constexpr, HAS_SUMS: tl.constexpr,
    WIDE: tl.constexpr, AHEAD: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write conv(x) + W v, sums over positions for the gradient of the taps, or both, for some tiles of tokens."""
    BLOCKS: tl.constexpr = (CHANNELS + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    channel = (program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    in_row = channel < CHANNELS
    part = program // BLOCKS
    factors = ()
    totals = ()
    for q in tl.static_range(TAPS):
        if HAS_OUT:
            at = taps + (TAPS - 1 - q if MIRRORED else q) * CHANNELS + channel
            factors = factors + (tl.load(at, mask=in_row, other=0.0),)
        if HAS_SUMS:
            totals = totals + (tl.zeros((ROWS, COLUMNS), tl.float32),)
    for tile in range(part * tiles_each, tl.minimum((part + 1) * tiles_each, all_tiles)):
        batch = (tile // tiles).to(tl.int64)
        token = (tile % tiles * ROWS + tl.arange(0, ROWS)) * TOKENS  # the first of each row
        step = token.to(tl.int64)[:, None]
        x_at = x + batch * x_batch + (step - BEFORE) * X_STEP + channel
        other_at = other + batch * other_batch + step * OTHER_STEP + channel
        out_at = out + (batch * length + step) * CHANNELS + channel
        scaled = token.to(tl.int64) * cells if WIDE else token * cells
        cell = (scaled // tokens).to(tl.int32)
        rest = (scaled - cell * tokens).to(tl.int32)  # of the way to the next point, in 1 / tokens
        values_at = values + batch * points * CHANNELS + channel
        window = ()
        numbers = ()
        for r in tl.static_range(TOKENS):
            # Tokens are loaded some steps before they are met.
            for d in tl.static_range(0 if r == 0 else r + TAPS - 1 + AHEAD, min(r + TAPS + AHEAD, TOKENS + TAPS - 1)):
                met = (token + (d - BEFORE)).to(tl.uint32, bitcast=True)  # large if it is negative
                inside = (met < length.to(tl.uint32))[:, None] & in_row
                window = window + (tl.load(x_at + d * X_STEP, mask=inside, other=0.0).to(tl.float32),)
            if HAS_SUMS:
                for d in tl.static_range(0 if r == 0 else r + 1, min(r + 2, TOKENS)):
                    inside = (token + d < length)[:, None] & in_row
                    numbers = numbers + (tl.load(other_at + d * OTHER_STEP, mask=inside, other=0.0),)
                number = numbers[r].to(tl.float32)
                updated = ()
                for q in tl.static_range(TAPS):
                    updated = updated + (totals[q] + window[r + q] * number,)
                totals = updated
            inside = (token + r < length)[:, None] & in_row
            if HAS_OUT:
                offset = (rest.to(tl.float32) * inverse)[:, None]
                # Unsigned, so that widening it costs nothing.
                first = (cell if DEGREE == 1 else tl.maximum(cell - 1, 0)).to(tl.uint32, bitcast=True).to(tl.int64)
                first_at = values_at + first[:, None] * CHANNELS
                here = tl.load(first_at, mask=inside, other=0.0)
                if DEGREE == 1:
                    # The last point of all has no next one, and only a token that stands on it asks for one.
                    after = tl.load(first_at + CHANNELS, mask=inside & (cell + 1 < points)[:, None], other=0.0)
                else:
                    u = offset + tl.minimum(cell, 1).to(tl.float32)[:, None]
                    interpolated = _cubic_weight(u, 0) * here
                    for k in tl.static_range(1, 4):
                        met = inside & (first + k < points)[:, None]
                        interpolated += _cubic_weight(u, k) * tl.load(first_at + k * CHANNELS, mask=met, other=0.0)
                # While those are on their way: in two sums, as one would wait for itself, unless others are made
                # beside it.
                total = factors[0] * window[r]
                for q in tl.static_range(2, TAPS, 2):
                    total += factors[q] * window[r + q]
                odd = total if HAS_SUMS else tl.zeros((ROWS, COLUMNS), tl.float32)
                for q in tl.static_range(1, TAPS, 2):
                    odd += factors[q] * window[r + q]
                total = odd if HAS_SUMS else total + odd
                if DEGREE == 1:
                    interpolated = here + offset * (after - here)
                total += interpolated
                tl.store(out_at + r * CHANNELS, total.to(out.dtype.element_ty), mask=inside)
                rest += cells
                passed = rest >= tokens
                rest = tl.where(passed, rest - tokens, rest)
                cell += passed.to(tl.int32)
    if HAS_SUMS:
        for q in tl.static_range(TAPS):
            at = sums + (part.to(tl.int64) * TAPS + (TAPS - 1 - q if MIRRORED else q)) * CHANNELS + channel
            tl.store(at, tl.sum(totals[q], axis=0)[None, :], mask=in_row)
