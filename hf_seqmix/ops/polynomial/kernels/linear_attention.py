"""Causal linear attention without a denominator in Triton: chunks in parallel, and sums of states between them.

With a state S of width x values numbers a head and optional factors o, i of each position,

    y_t = o_t a_t (S + sum_(s <= t) i_s b_s c_s^T),        or over s >= t, in reverse.

One program that walks a whole head with the state in registers reads everything once. But at small batches, batch x
heads of such programs leave most of a GPU idle. So a head is cut into parts of whole chunks, as many as fill the
device and no more, since each part writes and reads a state of width x values numbers in float32:

1. `part_sums_kernel`: sum_(s in part) i_s b_s c_s^T, for every part but the last;
2. `running_totals` (`running_mean.py`): their sums over the parts before, and the state;
3. `outputs_kernel`: a program a part walks its chunks with the state in registers.

Of a head that is one part, only the third is launched. The gradients are of the same form, and the two that share a
state come from one launch: `causal_sum_pair`.

Every output is written by one program and sums over parts are made in their order, without atomics: results repeat bit
for bit. Within rounding, results depend on the number of parts, and so on batch, heads and length.

Products are of half-precision numbers where an argument is, summed in float32; see `tiles.py`.
"""

import torch
import triton
from torch import Tensor

from ...common.precision import dot_precision
from .linear_attention_parts import outputs_kernel, part_sums_kernel
from .running_mean import running_totals
from .tiles import dot_dtype, serves_pairs, tile_settings

__all__ = ["LARGEST_WIDTH", "causal_sum", "causal_sum_pair"]

LARGEST_WIDTH = 128
"""Largest width of a, b and c: the state has to fit into the registers of a program."""

PROGRAMS = 264
"""Programs that a head is cut for: two for each of the 132 multiprocessors of an H200 (from a model, not measured)."""


def causal_sum(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor | None = None,
    reverse: bool = False,
    *,
    outer: Tensor | None = None,
    inner: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    programs: int = PROGRAMS,
) -> Tensor:
    """Compute y_t = o_t a_t (S + sum i_s b_s c_s^T) over s <= t, or, in `reverse`, over s >= t.

    Args:
        a: (batch, length, heads, width), of any strides, as all others.
        b: (batch, length, heads, width).
        c: (batch, length, heads, values).
        state: S, (batch, heads, width, values) in float32; None for zero.
        reverse: the direction.
        outer: o, (batch, length) in float32, or with a length of 1; None for ones.
        inner: i, likewise.
        dtype: of the result.
        programs: that a head is cut for.

    Returns:
        (batch, length, heads, values).
    """
    y = torch.empty((*a.shape[:3], c.shape[3]), dtype=dtype, device=a.device)
    with torch.cuda.device_of(a):
        _launch((a, None), (b, c), (y, None), state, outer, inner, reverse, programs)
    return y


def causal_sum_pair(
    a: Tensor,
    other: Tensor,
    b: Tensor,
    c: Tensor,
    reverse: bool = False,
    *,
    outer: Tensor | None = None,
    inner: Tensor | None = None,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
    programs: int = PROGRAMS,
) -> tuple[Tensor, Tensor]:
    """Compute o_t a_t (sum i_s b_s c_s^T) and o_t d_t (sum i_s c_s b_s^T), the gradients in v and k, over one state.

    Args:
        a: (batch, length, heads, width), as b.
        other: d, (batch, length, heads, values), as c.
        b: see `causal_sum`, as the others.
        c: see there.
        reverse: see there.
        outer: see there.
        inner: see there.
        dtypes: of the results.
        programs: that a head is cut for.

    Returns:
        (batch, length, heads, values) and (batch, length, heads, width).
    """
    y = torch.empty((*a.shape[:3], c.shape[3]), dtype=dtypes[0], device=a.device)
    z = torch.empty((*a.shape[:3], b.shape[3]), dtype=dtypes[1], device=a.device)
    with torch.cuda.device_of(a):
        if serves_pairs(b.shape[3], c.shape[3], dot_dtype(a, other, b, c)):
            _launch((a, other), (b, c), (y, z), None, outer, inner, reverse, programs)
        else:
            _launch((a, None), (b, c), (y, None), None, outer, inner, reverse, programs)
            _launch((other, None), (c, b), (z, None), None, outer, inner, reverse, programs)
    return y, z


def _launch(
    queries: tuple[Tensor, Tensor | None],
    pairs: tuple[Tensor, Tensor],
    outputs: tuple[Tensor, Tensor | None],
    state: Tensor | None,
    outer: Tensor | None,
    inner: Tensor | None,
    reverse: bool,
    programs: int,
) -> None:
    """Launch on the current device, which tiles and precision are chosen for."""
    (a, other), (b, c), (y, z) = queries, pairs, outputs
    batch, length, heads, width = a.shape
    values = c.shape[3]
    if max(width, values) > LARGEST_WIDTH:
        raise ValueError(f"width is {width} and values {values}; the kernel takes at most {LARGEST_WIDTH}.")
    if y.numel() == 0:
        return
    a, b, c = _near(a), _near(b), _near(c)
    other = None if other is None else _near(other)
    dot = dot_dtype(a, b, c) if other is None else dot_dtype(a, other, b, c)
    settings = tile_settings(width, values, dot, other is not None)
    chunk, block = settings["CHUNK"], settings["VALUES_BLOCK"]
    blocks, chunks = triton.cdiv(values, block), triton.cdiv(length, chunk)
    wanted = triton.cdiv(programs, batch * heads * blocks)
    part_chunks = triton.cdiv(chunks, min(wanted, chunks))
    parts = triton.cdiv(chunks, part_chunks)
    outer, inner = _factor(outer, batch, length), _factor(inner, batch, length)
    if state is not None:
        state = state.to(torch.float32).reshape(batch * heads, width * values)
    shared = {
        "WIDTH": width,
        "VALUES": values,
        "REVERSE": reverse,
        "HAS_INNER": inner is not None,
        "DOT": dot,
        "PRECISION": dot_precision(),
        **settings,
    }
    unused = a  # stands where a kernel reads nothing
    sums = unused
    if parts > 1:
        sums = torch.empty((batch * heads, parts - 1, width * values), dtype=torch.float32, device=a.device)
        part_sums_kernel[(blocks * batch * heads * (parts - 1),)](
            b,
            c,
            unused if inner is None else inner,
            sums,
            length,
            part_chunks,
            parts,
            heads,
            *b.stride(),
            *c.stride(),
            **shared,
        )
        sums = running_totals(sums, state)
    outputs_kernel[(blocks * batch * heads * parts,)](
        a,
        unused if other is None else other,
        b,
        c,
        y,
        unused if z is None else z,
        unused if state is None else state,
        sums,
        unused if outer is None else outer,
        unused if inner is None else inner,
        length,
        part_chunks,
        parts,
        heads,
        *a.stride(),
        *(unused if other is None else other).stride(),
        *b.stride(),
        *c.stride(),
        HAS_STATE=state is not None,
        HAS_OUTER=outer is not None,
        PAIR=other is not None,
        **shared,
    )


def _near(x: Tensor) -> Tensor:
    """Return x, copied where the rows of a chunk are 2^31 numbers apart, which kernels count in 32 bits."""
    return x.contiguous() if max(abs(step) for step in x.stride()[1::2]) >= 2**24 else x


def _factor(x: Tensor | None, batch: int, length: int) -> Tensor | None:
    return None if x is None else x.to(torch.float32).expand(batch, length).contiguous()
