"""How causal linear attention is computed and differentiated; `stages.linear_attention` is its public face.

With factors o, i of each position (None for ones) and a state S,

    y_t = o_t a_t (S + sum i_s b_s c_s^T)   over s <= t, or, in reverse, over s >= t.

The value and the derivatives in a, b and c are all of this form. So the sum is closed under differentiation of any
order and saves nothing but its arguments, in their own dtype. The derivatives in b and in c share a state and are
computed in one pass: the pair o_t a_t (sum i_s b_s c_s^T) and o_t d_t (sum i_s c_s b_s^T).

A CPU computes one chunk of positions after another, whose buffers stay in the cache of the processor. torch elsewhere
computes all chunks at once. Triton computes where `crossovers.implementation` says so.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.backend import kernel_module
from ..common.crossovers import implementation
from ..common.dispatch import Route, without_autocast
from ..common.operator import differentiable_operator

__all__ = [
    "LOOP_CHUNK",
    "VECTOR_CHUNK",
    "causal_kernels",
    "causal_pair",
    "causal_sum",
    "causal_sum_vectorized",
    "multiplies_halves",
]

LOOP_CHUNK = 32
"""Positions of a chunk, one chunk after another. Both sizes were measured on one CPU thread, forward and backward,
with heads 32 and 64 wide and 512 to 8192 positions."""

VECTOR_CHUNK = 64
"""Positions of a chunk, all chunks at once."""


def causal_kernels(*tensors: Tensor) -> Any:
    """Return the module of Triton kernels that serves tensors (batch, length, ...), or None; not in a graph."""
    if any(x.dtype == torch.float64 for x in tensors):
        return None
    narrowest = min(tensors, key=lambda x: x.dtype.itemsize)
    if implementation("causal_sum", narrowest, narrowest.shape[1]) != "chunks":
        return None
    return kernel_module("polynomial.kernels.linear_attention")


def multiplies_halves(route: Route, x: Tensor) -> bool:
    """Return whether products of x are made in its own precision; in a graph, whether x is on a GPU."""
    return x.device.type == "cuda" if route in ("operator", "real") else causal_kernels(x) is not None


def causal_sum_vectorized(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor | None,
    reverse: bool = False,
    symbolic: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """Compute the sum over all chunks at once, for tensors of one dtype.

    Args:
        a: see `causal_sum`, and so b, c, state and reverse.
        b: see there.
        c: see there.
        state: see there.
        reverse: see there.
        symbolic: whether a graph is made that serves any length.
        chunk: positions of a chunk; `VECTOR_CHUNK` by default.
    """
    length, size = a.shape[1], chunk or VECTOR_CHUNK
    # Never one alone, on whose number a traced graph would insist.
    chunks = length // size + 2 if symbolic else -(-length // size)

    def split(x: Tensor) -> Tensor:
        """(batch, length, heads, width) -> (batch, heads, chunks, size, width)."""
        if symbolic:  # gathered, since a tracer cannot prove that pads fill the chunks
            place = torch.arange(chunks, device=x.device).unsqueeze(1) * size + torch.arange(size, device=x.device)
            x = x[:, place.clamp(max=length - 1)].masked_fill((place >= length)[..., None, None], 0)
        else:
            x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, chunks * size - length)).unflatten(1, (chunks, size))
        return x.permute(0, 3, 1, 2, 4)

    query, key, value = split(a), split(b), split(c)
    contributions = key.transpose(-1, -2) @ value  # (batch, heads, chunks, width, values)
    first = torch.zeros_like(contributions[:, :, :1]) if state is None else state.unsqueeze(2)
    if reverse:
        contributions = contributions.flip(2)
    before = torch.cat([first, contributions], dim=2).cumsum(dim=2)[:, :, :-1]
    if reverse:
        before = before.flip(2)
    scores = query @ key.transpose(-1, -2)
    y = (scores.triu() if reverse else scores.tril()) @ value + query @ before
    y = y.permute(0, 2, 3, 1, 4)
    place = torch.arange(length, device=a.device)
    return y[:, place // size, place % size] if symbolic else y.flatten(1, 2)[:, :length]


def _sum_dtype(*tensors: Tensor) -> torch.dtype:
    dtype = torch.float32
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype


def _scaled(x: Tensor, factor: Tensor | None) -> Tensor:
    """Multiply (batch, length, heads, width) by a factor (batch, length) of each position."""
    return x if factor is None else x * factor[:, :, None, None]


def _loop(
    queries: Sequence[Tensor],
    b: Tensor,
    c: Tensor,
    state: Tensor | None,
    outer: Tensor | None,
    inner: Tensor | None,
    reverse: bool,
    dtypes: Sequence[torch.dtype],
    positions: int,
) -> list[Tensor]:
    """Compute the sum for one query, or the pair for two, one chunk of so many positions after another.

    A chunk is copied before it is multiplied: products of rows that lie heads x width numbers apart take twice the
    time.
    """
    batch, length, heads, width = b.shape
    values = c.shape[3]
    compute = _sum_dtype(*queries, b, c)
    sizes = (values, width)[: len(queries)]
    outputs = [b.new_empty((batch, length, heads, n), dtype=dtype) for n, dtype in zip(sizes, dtypes, strict=True)]
    # (batch, 1, length, 1)
    outer, inner = (
        None if f is None else f.to(compute).expand(batch, length)[:, None, :, None] for f in (outer, inner)
    )
    current = None if state is None else state.to(compute, copy=True).reshape(batch * heads, width, values)
    starts: Sequence[int] = range(0, length, positions)
    starts = starts[::-1] if reverse else starts
    key, value, *own, scores = buffers = [b.new_empty(0, dtype=compute)] * (3 + len(queries))
    for start in starts:
        chunk = slice(start, start + positions)
        size = min(positions, length - start)
        if key.shape[1:2] != (size,):
            widths = (width, values, *(a.shape[3] for a in queries), size)
            buffers = [b.new_empty((batch * heads, size, n), dtype=compute) for n in widths]
            key, value, *own, scores = buffers
            products = [torch.empty_like(x) for x in (value, key)]
        _take(key, b, chunk, inner)
        _take(value, c, chunk, None)
        for i, (a, query, out, y) in enumerate(zip(queries, own, products, outputs, strict=False)):
            left, right = (key, value) if i == 0 else (value, key)
            _take(query, a, chunk, None)
            torch.bmm(query, left.mT, out=scores)
            torch.bmm(scores.triu_() if reverse else scores.tril_(), right, out=out)
            if current is not None:
                out.baddbmm_(query, current if i == 0 else current.mT)
            by_heads, target = out.unflatten(0, (batch, heads)), y[:, chunk].transpose(1, 2)
            if outer is None:
                target.copy_(by_heads)
            else:
                torch.mul(by_heads, outer[:, :, chunk], out=target)
        if start != starts[-1]:
            current = torch.bmm(key.mT, value) if current is None else current.baddbmm_(key.mT, value)
    return outputs


def _take(buffer: Tensor, x: Tensor, chunk: slice, factor: Tensor | None) -> None:
    """Copy a chunk of (batch, length, heads, width), times a factor, into (batch * heads, positions, width)."""
    by_heads, source = buffer.view(x.shape[0], x.shape[2], *buffer.shape[1:]), x[:, chunk].transpose(1, 2)
    if factor is None:
        by_heads.copy_(source)
    else:
        torch.mul(source, factor[:, :, chunk], out=by_heads)


def _gradients(
    traced: bool, saved: Sequence[Any], reverse: bool, needs: Sequence[bool], g: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the sum in a, b, c and the state."""
    a, b, c, state, outer, inner = saved
    transposed = None if state is None else state.mT
    da = causal_sum(traced, g, c, b, transposed, outer, inner, reverse, a.dtype) if needs[0] else None
    db = dc = None
    if needs[1] and needs[2]:
        dc, db = causal_pair(traced, b, c, a, g, inner, outer, not reverse, c.dtype, b.dtype)
    elif needs[1]:
        db = causal_sum(traced, c, g, a, None, inner, outer, not reverse, b.dtype)
    elif needs[2]:
        dc = causal_sum(traced, b, a, g, None, inner, outer, not reverse, c.dtype)
    dstate = None
    if needs[3]:
        compute = _sum_dtype(a, g)
        with without_autocast(a.device.type):
            dstate = torch.einsum("bshc,bshd->bhcd", _scaled(a.to(compute), outer), g.to(compute))
    return da, db, dc, dstate


def _empty_sum(a: Tensor, b: Tensor, c: Tensor, *args: Any) -> Tensor:
    return c.new_empty((*a.shape[:3], c.shape[3]), dtype=args[-1])


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.reverse, _ = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_sum(traced: bool, ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    gradients = _gradients(traced, ctx.saved_tensors, ctx.reverse, ctx.needs_input_grad, g)
    return *gradients, None, None, None, None


@differentiable_operator(
    "hf_seqmix::causal_sum_v2",
    "(Tensor a, Tensor b, Tensor c, Tensor? state, Tensor? outer, Tensor? inner, bool reverse, ScalarType dtype) "
    "-> Tensor",
    fake=_empty_sum,
    save=_save_sum,
    backward=_differentiate_sum,
    batched=True,
)
def causal_sum(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor | None,
    outer: Tensor | None,
    inner: Tensor | None,
    reverse: bool,
    dtype: torch.dtype,
    chunk: int | None = None,
) -> Tensor:
    """Compute y_t = o_t a_t (S + sum i_s b_s c_s^T) in float32 (float64), written in `dtype`.

    Args:
        a: (batch, length, heads, width).
        b: (batch, length, heads, width).
        c: (batch, length, heads, values).
        state: S, (batch, heads, width, values) in the dtype of the sum; None for zero.
        outer: o, (batch, length or 1); None for ones. Factors have no gradient.
        inner: i, likewise.
        reverse: whether the sum is over s >= t.
        dtype: of the result.
        chunk: positions of a chunk in torch; by default `LOOP_CHUNK` on a CPU and `VECTOR_CHUNK` elsewhere.

    Returns:
        (batch, length, heads, values).
    """
    kernels = causal_kernels(a, b, c)
    # Backward runs under whatever autocast it is called in.
    with without_autocast(a.device.type):
        if kernels is not None and max(a.shape[3], c.shape[3]) <= kernels.LARGEST_WIDTH:
            return kernels.causal_sum(a, b, c, state, reverse, outer=outer, inner=inner, dtype=dtype)
        if a.device.type == "cpu":
            return _loop([a], b, c, state, outer, inner, reverse, [dtype], chunk or LOOP_CHUNK)[0]
        compute = _sum_dtype(a, b, c)
        b = _scaled(b.to(compute), inner)
        y = causal_sum_vectorized(a.to(compute), b, c.to(compute), state, reverse, chunk=chunk)
        return _scaled(y, outer).to(dtype).contiguous()


def _empty_pair(a: Tensor, d: Tensor, b: Tensor, c: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    y = c.new_empty((*a.shape[:3], c.shape[3]), dtype=args[-2])
    return y, c.new_empty((*a.shape[:3], b.shape[3]), dtype=args[-1])


def _save_pair(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.reverse, _, _ = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_pair(traced: bool, ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor | None, ...]:
    a, d, b, c, outer, inner = ctx.saved_tensors
    needs = ctx.needs_input_grad
    first = (needs[0], needs[2], needs[3], False)
    second = (needs[1], needs[3], needs[2], False)
    da, db, dc, _ = _gradients(traced, (a, b, c, None, outer, inner), ctx.reverse, first, g)
    dd, dc_too, db_too, _ = _gradients(traced, (d, c, b, None, outer, inner), ctx.reverse, second, h)
    db = db + db_too if db is not None and db_too is not None else None
    dc = dc + dc_too if dc is not None and dc_too is not None else None
    return da, dd, db, dc, None, None, None, None, None


@differentiable_operator(
    "hf_seqmix::causal_pair_v1",
    "(Tensor a, Tensor d, Tensor b, Tensor c, Tensor? outer, Tensor? inner, bool reverse, ScalarType dtype, "
    "ScalarType other_dtype) -> (Tensor, Tensor)",
    fake=_empty_pair,
    save=_save_pair,
    backward=_differentiate_pair,
    batched=True,
)
def causal_pair(
    a: Tensor,
    d: Tensor,
    b: Tensor,
    c: Tensor,
    outer: Tensor | None,
    inner: Tensor | None,
    reverse: bool,
    dtype: torch.dtype,
    other_dtype: torch.dtype,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the sum for a, and the sum for d with b and c exchanged; the arguments are those of `causal_sum`."""
    kernels = causal_kernels(a, b, c, d)
    if kernels is not None and max(a.shape[3], c.shape[3]) <= kernels.LARGEST_WIDTH:
        dtypes = (dtype, other_dtype)
        return kernels.causal_sum_pair(a, d, b, c, reverse, outer=outer, inner=inner, dtypes=dtypes)
    if a.device.type == "cpu":
        dtypes = (dtype, other_dtype)
        with without_autocast("cpu"):
            y, z = _loop([a, d], b, c, None, outer, inner, reverse, dtypes, chunk or LOOP_CHUNK)
        return y, z
    y = causal_sum.compute(a, b, c, None, outer, inner, reverse, dtype, chunk)
    return y, causal_sum.compute(d, c, b, None, outer, inner, reverse, other_dtype, chunk)
