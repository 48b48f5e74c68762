"""How sums over the positions before are computed and differentiated, with what is multiplied to them.

With factors o, i of each position (None for ones), a start S, and elementwise products,

    y_t = o_t p_t * (S + sum i_s x_s * z_s)   over s <= t, or, in reverse, over s >= t.

p and z may be None, for ones.

That is the sum of `linear_attention.py` with one number for a state, and closed under differentiation likewise. The
product saves its arguments, in their own dtype: neither the sums nor a mean made of them.
"""

from typing import Any

import torch
from torch import Tensor

from ..common.backend import kernel_module
from ..common.dispatch import Route, without_autocast
from ..common.invariance import is_batch_invariant
from ..common.operator import differentiable_operator
from .linear_attention import LOOP_CHUNK, causal_kernels

__all__ = ["running_product", "running_sums"]

BLOCK_NUMBERS = 2**17
"""Numbers of a block of positions on the CPU: half a MiB in float32."""


def running_product(
    route: Route,
    p: Tensor,
    x: Tensor,
    start: Tensor | None = None,
    scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute y_t = scale_t p_t * (S + sum_(s <= t) x_s), summed in float32 (float64 for float64).

    Args:
        route: of the call, from `dispatch`.
        p: (batch, length, heads, width).
        x: (batch, length, heads, width).
        start: S, (batch, heads, width), the sum over positions before; None for zero.
        scale: (batch, length), or with a length of 1, a constant without a gradient; None for ones.
        dtype: of the result; float32 (float64) by default.

    Returns:
        (batch, length, heads, width).
    """
    heads = p.shape[2:]
    compute = torch.promote_types(torch.promote_types(p.dtype, x.dtype), torch.float32)
    dtype = compute if dtype is None else dtype
    scale = None if scale is None else scale.to(compute)
    start = None if start is None else start.to(compute).flatten(1)
    p, x = p.flatten(2), x.flatten(2)
    if is_batch_invariant() or route in ("real", "forward_mode") or p.shape[1] <= 1:
        terms = x.to(compute)
        if start is not None:  # the first term, so that the order is that of one sum
            terms = torch.cat([start.unsqueeze(1), terms], dim=1)
        total = terms.cumsum(dim=1)[:, terms.shape[1] - p.shape[1] :]
        total = total if scale is None else total * scale.unsqueeze(-1)
        y = (p * total).to(dtype)
    else:
        y = running_sums(route == "operator", p, x, None, start, scale, None, False, dtype)
    return y.unflatten(2, heads)


def _loop(
    p: Tensor | None,
    x: Tensor,
    z: Tensor | None,
    start: Tensor | None,
    outer: Tensor | None,
    inner: Tensor | None,
    reverse: bool,
    compute: torch.dtype,
    dtype: torch.dtype,
    chunk: int,
) -> Tensor:
    """Compute one block of positions after another, with buffers in the cache of the processor; see `_chunk_sums`."""
    batch, length, channels = x.shape
    y = x.new_empty((batch, length, channels), dtype=dtype)
    total = x.new_zeros((batch, 1, channels), dtype=compute) if start is None else start.to(compute).unsqueeze(1)
    outer, inner = (None if f is None else f.to(compute).expand(batch, length).unsqueeze(-1) for f in (outer, inner))
    whole = length - length % chunk
    step = chunk * max(1, BLOCK_NUMBERS // max(1, batch * channels * chunk))
    blocks = [slice(first, min(first + step, whole)) for first in range(0, whole, step)]
    if whole < length:
        blocks.append(slice(whole, length))
    for block in reversed(blocks) if reverse else blocks:
        terms = x[:, block].to(compute)
        if z is not None:
            terms = terms * z[:, block]
        if inner is not None:
            terms = terms * inner[:, block]
        sums, total = _chunk_sums(terms.unflatten(1, (-1, min(chunk, terms.shape[1]))), total, reverse)
        sums = sums.flatten(1, 2)
        if outer is not None:
            sums *= outer[:, block]
        if p is None:
            y[:, block] = sums
        else:
            torch.mul(sums, p[:, block], out=y[:, block])
    return y


def _chunk_sums(terms: Tensor, total: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """Sum up terms (batch, chunks, size, channels) after a total (batch, 1, channels); return sums and new total.

    Multiply by triangles, within chunks and over chunks. `cumsum` along any dimension but the last took 5 times as
    long on one CPU thread (32 ms for 8192 x 512). On GPUs, `cumsum` has one thread a channel walk all positions.
    """
    chunks, size = terms.shape[1:3]
    sums = _triangle(terms, size, reverse) @ terms
    through = sums[:, :, 0 if reverse else -1]  # (batch, chunks, channels)
    before = torch.baddbmm(total, _triangle(terms, chunks, reverse, own=False).expand(len(terms), -1, -1), through)
    last = slice(0, 1) if reverse else slice(chunks - 1, chunks)
    total = before[:, last] + through[:, last]
    return sums.add_(before.unsqueeze(2)), total


def _triangle(like: Tensor, size: int, reverse: bool, own: bool = True) -> Tensor:
    """Return ones at the positions before each position, and at the position itself if `own`."""
    ones = like.new_ones(size, size)
    return ones.triu_(0 if own else 1) if reverse else ones.tril_(0 if own else -1)


def _at_once(
    p: Tensor | None,
    x: Tensor,
    z: Tensor | None,
    start: Tensor | None,
    outer: Tensor | None,
    inner: Tensor | None,
    reverse: bool,
    compute: torch.dtype,
    chunk: int,
) -> Tensor:
    """Compute all chunks together, for other devices than a CPU."""
    batch, length, channels = x.shape
    terms = x.to(compute)
    terms = terms if z is None else terms * z
    terms = terms if inner is None else terms * inner.unsqueeze(-1)
    chunks = torch.nn.functional.pad(terms, (0, 0, 0, -length % chunk)).unflatten(1, (-1, chunk))
    totals = chunks.sum(dim=2)  # (batch, chunks, channels)
    totals = totals.flip(1) if reverse else totals
    first = totals.new_zeros((batch, 1, channels)) if start is None else start.to(compute).unsqueeze(1)
    before = torch.cat([first, totals], dim=1).cumsum(dim=1)[:, :-1]
    before = before.flip(1) if reverse else before
    y = (_triangle(chunks, chunk, reverse) @ chunks + before.unsqueeze(2)).flatten(1, 2)[:, :length]
    y = y if outer is None else y * outer.unsqueeze(-1)
    return y if p is None else y * p


def _empty_sums(p: Tensor | None, x: Tensor, *args: Any) -> Tensor:
    return x.new_empty(x.shape, dtype=args[-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.reverse, _ = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(traced: bool, ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients, three of which are of the same form."""
    p, x, z, start, outer, inner = ctx.saved_tensors
    needs, reverse = ctx.needs_input_grad, ctx.reverse
    dstart = None
    if needs[3]:
        terms = g if p is None else g * p
        terms = terms if outer is None else terms * outer.unsqueeze(-1)
        dstart = terms.to(start.dtype).sum(dim=1)
    return (
        running_sums(traced, g, x, z, start, outer, inner, reverse, p.dtype) if needs[0] else None,
        running_sums(traced, z, g, p, None, inner, outer, not reverse, x.dtype) if needs[1] else None,
        running_sums(traced, x, g, p, None, inner, outer, not reverse, z.dtype) if needs[2] else None,
        dstart,
        None,
        None,
        None,
        None,
    )


@differentiable_operator(
    "hf_seqmix::running_product_v1",
    "(Tensor? p, Tensor x, Tensor? z, Tensor? start, Tensor? outer, Tensor? inner, bool reverse, ScalarType dtype) "
    "-> Tensor",
    fake=_empty_sums,
    save=_save,
    backward=_differentiate,
    batched=True,
)
def running_sums(
    p: Tensor | None,
    x: Tensor,
    z: Tensor | None,
    start: Tensor | None,
    outer: Tensor | None,
    inner: Tensor | None,
    reverse: bool,
    dtype: torch.dtype,
    chunk: int | None = None,
) -> Tensor:
    """Compute y_t = o_t p_t * (S + sum i_s x_s * z_s) in float32 (float64), written in `dtype`.

    Args:
        p: (batch, length, channels), or None for ones.
        x: (batch, length, channels).
        z: like p.
        start: S, (batch, channels), or None for zero.
        outer: o, (batch, length or 1), or None for ones. Factors have no gradient.
        inner: i, likewise.
        reverse: whether the sum is over s >= t.
        dtype: of the result.
        chunk: positions of a chunk in torch; `LOOP_CHUNK` by default.

    Returns:
        (batch, length, channels).
    """
    given = [tensor for tensor in (p, x, z) if tensor is not None]
    compute, chunk = torch.float32, chunk or LOOP_CHUNK
    for tensor in given:
        compute = torch.promote_types(compute, tensor.dtype)
    if causal_kernels(*given) is not None:
        kernels = kernel_module("polynomial.kernels.running_mean")
        return kernels.running_product(p, x, z, start, reverse, outer=outer, inner=inner, dtype=dtype)
    with without_autocast(x.device.type):
        if x.device.type == "cpu":
            return _loop(p, x, z, start, outer, inner, reverse, compute, dtype, chunk)
        return _at_once(p, x, z, start, outer, inner, reverse, compute, chunk).to(dtype).contiguous()
