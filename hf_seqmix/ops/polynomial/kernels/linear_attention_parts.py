"""The programs of `linear_attention.py`: sums of states over parts of a head, and the outputs of a part."""

import triton
import triton.language as tl

from .tiles import add_product, fit, load_rows, masked_product

__all__ = ["outputs_kernel", "part_sums_kernel"]


@triton.jit(do_not_specialize=["length", "part_chunks", "parts", "heads"])
def part_sums_kernel(
    b,
    c,
    inner,
    sums,
    length,
    part_chunks,
    parts,
    heads,
    b_batch,
    b_step,
    b_head,
    b_channel,
    c_batch,
    c_step,
    c_head,
    c_channel,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    REVERSE: tl.constexpr,
    HAS_INNER: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    VALUES_BLOCK: tl.constexpr,
):
    """Sum i_s b_s c_s^T over a part, for every part but the last in the direction of the sum."""
    # Blocks of values, which read the same keys, stand side by side.
    blocks: tl.constexpr = (VALUES + VALUES_BLOCK - 1) // VALUES_BLOCK
    program = tl.program_id(0).to(tl.int64) // blocks
    rank, head = program % (parts - 1), program // (parts - 1)
    part = (parts - 1 - rank if REVERSE else rank).to(tl.int32)
    first_value = tl.program_id(0) % blocks * VALUES_BLOCK
    b += head // heads * b_batch + head % heads * b_head
    c += head // heads * c_batch + head % heads * c_head
    inner += head // heads * length
    state = tl.zeros((WIDTH_BLOCK, VALUES_BLOCK), tl.float32)
    row = tl.arange(0, CHUNK)
    for i in range(0, part_chunks):
        start = (part * part_chunks + i) * CHUNK
        key = load_rows(b, start, length, b_step, b_channel, 0, CHUNK, WIDTH_BLOCK, WIDTH)
        value = load_rows(c, start, length, c_step, c_channel, first_value, CHUNK, VALUES_BLOCK, VALUES)
        if HAS_INNER:
            key = key.to(tl.float32) * tl.load(inner + start + row, mask=start + row < length, other=0.0)[:, None]
        key, key_power = fit(key, DOT)
        value, value_power = fit(value, DOT)
        state = add_product(state, tl.trans(key), value, key_power * value_power, DOT, PRECISION)
    width = tl.arange(0, WIDTH_BLOCK)[:, None]
    values = first_value + tl.arange(0, VALUES_BLOCK)[None, :]
    at = sums + program * (WIDTH * VALUES) + width * VALUES + values
    tl.store(at, state, mask=(width < WIDTH) & (values < VALUES))


@triton.jit(do_not_specialize=["length", "part_chunks", "parts", "heads"])
def outputs_kernel(
    a,
    other,
    b,
    c,
    y,
    z,
    initial,
    sums,
    outer,
    inner,
    length,
    part_chunks,
    parts,
    heads,
    a_batch,
    a_step,
    a_head,
    a_channel,
    other_batch,
    other_step,
    other_head,
    other_channel,
    b_batch,
    b_step,
    b_head,
    b_channel,
    c_batch,
    c_step,
    c_head,
    c_channel,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    REVERSE: tl.constexpr,
    HAS_STATE: tl.constexpr,
    HAS_OUTER: tl.constexpr,
    HAS_INNER: tl.constexpr,
    PAIR: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    VALUES_BLOCK: tl.constexpr,
):
    """Walk a part chunk by chunk: what the state gives, what the chunk gives itself, and on with the state."""
    blocks: tl.constexpr = (VALUES + VALUES_BLOCK - 1) // VALUES_BLOCK
    program = tl.program_id(0).to(tl.int64) // blocks
    rank, head = program % parts, program // parts
    part = (parts - 1 - rank if REVERSE else rank).to(tl.int32)
    batch = head // heads
    first_value = tl.program_id(0) % blocks * VALUES_BLOCK
    a += batch * a_batch + head % heads * a_head
    other += batch * other_batch + head % heads * other_head
    b += batch * b_batch + head % heads * b_head
    c += batch * c_batch + head % heads * c_head
    y += batch * length * heads * VALUES + head % heads * VALUES
    z += batch * length * heads * WIDTH + head % heads * WIDTH
    outer += batch * length
    inner += batch * length

    width = tl.arange(0, WIDTH_BLOCK)
    values = first_value + tl.arange(0, VALUES_BLOCK)
    # A state of other programs, or the initial one: at the rank of the other nothing is read.
    summed = (width < tl.where(rank > 0, WIDTH, 0))[:, None] & (values < VALUES)[None, :]
    given = (width < tl.where(rank > 0, 0, WIDTH))[:, None] & (values < VALUES)[None, :]
    entry = width[:, None] * VALUES + values[None, :]
    before = sums + (head * (parts - 1) + rank - 1) * (WIDTH * VALUES)
    state = tl.load(before + entry, mask=summed, other=0.0).to(tl.float32)
    if HAS_STATE:
        state += tl.load(initial + head * (WIDTH * VALUES) + entry, mask=given, other=0.0)

    row = tl.arange(0, CHUNK)
    if REVERSE:
        seen = row[None, :] >= row[:, None]
    else:
        seen = row[None, :] <= row[:, None]
    first_chunk = part * part_chunks
    here = tl.minimum(part_chunks, tl.cdiv(length, CHUNK) - first_chunk)
    for i in range(0, here):
        if REVERSE:
            start = (first_chunk + here - 1 - i) * CHUNK
        else:
            start = (first_chunk + i) * CHUNK
        inside = start + row < length
        query = load_rows(a, start, length, a_step, a_channel, 0, CHUNK, WIDTH_BLOCK, WIDTH)
        key = load_rows(b, start, length, b_step, b_channel, 0, CHUNK, WIDTH_BLOCK, WIDTH)
        value = load_rows(c, start, length, c_step, c_channel, first_value, CHUNK, VALUES_BLOCK, VALUES)
        query, query_power = fit(query, DOT)
        value, value_power = fit(value, DOT)
        if HAS_INNER:
            share = tl.load(inner + start + row, mask=inside, other=0.0)
            key = key.to(tl.float32) * share[:, None]
        key, key_power = fit(key, DOT)
        held, held_power = fit(state, DOT)

        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * (query_power * key_power)
        scores = tl.where(seen, scores, 0.0)
        out = masked_product(scores, value, value_power, DOT, PRECISION)
        out = add_product(out, query, held, query_power * held_power, DOT, PRECISION)
        if HAS_OUTER:
            scale = tl.load(outer + start + row, mask=inside, other=0.0)
            out *= scale[:, None]
        at = y + start.to(tl.int64) * heads * VALUES + row[:, None] * heads * VALUES + values[None, :]
        tl.store(at, out.to(y.dtype.element_ty), mask=inside[:, None] & (values < VALUES)[None, :])

        if PAIR:
            query, query_power = fit(
                load_rows(other, start, length, other_step, other_channel, first_value, CHUNK, VALUES_BLOCK, VALUES),
                DOT,
            )
            scores = tl.dot(query, tl.trans(value), input_precision=PRECISION) * (query_power * value_power)
            scores = tl.where(seen, scores, 0.0)
            out = masked_product(scores, key, key_power, DOT, PRECISION)
            out = add_product(out, query, tl.trans(held), query_power * held_power, DOT, PRECISION)
            if HAS_OUTER:
                out *= scale[:, None]
            at = z + start.to(tl.int64) * heads * WIDTH + row[:, None] * heads * WIDTH + width[None, :]
            tl.store(at, out.to(z.dtype.element_ty), mask=inside[:, None] & (width < WIDTH)[None, :])

        state = add_product(state, tl.trans(key), value, key_power * value_power, DOT, PRECISION)
