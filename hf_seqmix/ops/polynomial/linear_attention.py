"""How causal linear attention is computed and differentiated; `polynomial.py` is its public face.

With factors o, i of each position (None for ones) and a state S,

    y_t = o_t a_t (S + sum i_s b_s c_s^T)   over s <= t, or, in reverse, over s >= t.

The value and the derivatives in a, b and c are all of this form, so that it is closed under differentiation of any order and
saves nothing but its arguments, in their own dtype. The derivatives in b and in c share a state: they are computed in one
pass, the pair o_t a_t (sum i_s b_s c_s^T) and o_t d_t (sum i_s c_s b_s^T).

Both have two faces over one computation: a `torch.library` operator, opaque while tracing, since a traced graph knows no
number of chunks, and an `autograd.Function` otherwise. On the CPU the computation goes one chunk after another, whose buffers
stay in the processor's cache; in torch elsewhere, all chunks at once; and in Triton where `backend.py` says so.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.backend import implementation, kernel_module, route
from ..common.operator import define_operator

__all__ = ["LOOP_CHUNK", "causal_kernels", "causal_sum", "causal_sum_vectorised", "multiplies_halves"]

# Measured on one CPU thread, heads 32 and 64 wide, 512 to 8192 positions, forward and backward.
LOOP_CHUNK = 32
VECTOR_CHUNK = 64


def causal_sum(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, scale: Tensor | None, traced: bool = False
) -> Tensor:
    """Compute y_t = scale_t q_t (S + sum_(s <= t) k_s v_s^T) in float32 (float64).

    Args:
        q: (batch, length, heads, width).
        k: (batch, length, heads, width).
        v: (batch, length, heads, values).
        state: S, (batch, heads, width, values) in the dtype of the result; None for zero.
        scale: (batch, length or 1) in that dtype; None for ones. It has no gradient.
        traced: whether a graph is made.

    Returns:
        (batch, length, heads, values).
    """
    return (_operator if traced else _CausalSum.apply)(q, k, v, state, scale, None, False, _sum_dtype(q, k, v))


def causal_kernels(*tensors: Tensor) -> Any:
    """Return the module of Triton kernels that serves tensors (batch, length, ...), or None. Not to be called while tracing."""
    if any(x.dtype == torch.float64 for x in tensors):
        return None
    narrowest = min(tensors, key=lambda x: x.dtype.itemsize)
    if implementation("causal_sum", narrowest, narrowest.shape[1]) != "chunks":
        return None
    return kernel_module("polynomial.kernels.linear_attention")


def multiplies_halves(x: Tensor) -> bool:
    """Say whether products of x are made in its own precision; in a graph, which does not know, whether x is on a GPU."""
    return causal_kernels(x) is not None if route(x) == "eager" else x.device.type == "cuda"


def causal_sum_vectorised(
    a: Tensor, b: Tensor, c: Tensor, state: Tensor | None, reverse: bool = False, symbolic: bool = False
) -> Tensor:
    """The sum over all chunks at once, for tensors of one dtype; `symbolic` for graphs that serve any length."""
    length, size = a.shape[1], VECTOR_CHUNK
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


def _compute(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor | None,
    outer: Tensor | None,
    inner: Tensor | None,
    reverse: bool,
    dtype: torch.dtype,
) -> Tensor:
    """The sum, in float32 (float64), written in `dtype`."""
    kernels = causal_kernels(a, b, c)
    # Backward runs under whatever autocast it is called in.
    with torch.autocast(a.device.type, enabled=False):
        if kernels is not None and max(a.shape[3], c.shape[3]) <= kernels.LARGEST_WIDTH:
            return kernels.causal_sum(a, b, c, state, reverse, outer=outer, inner=inner, dtype=dtype)
        if a.device.type == "cpu":
            return _loop([a], b, c, state, outer, inner, reverse, [dtype])[0]
        compute = _sum_dtype(a, b, c)
        b = _scaled(b.to(compute), inner)
        y = causal_sum_vectorised(a.to(compute), b, c.to(compute), state, reverse)
        return _scaled(y, outer).to(dtype).contiguous()


def _compute_pair(
    a: Tensor,
    d: Tensor,
    b: Tensor,
    c: Tensor,
    outer: Tensor | None,
    inner: Tensor | None,
    reverse: bool,
    dtype: torch.dtype,
    other_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The sum, and that of d with b and c exchanged."""
    kernels = causal_kernels(a, b, c, d)
    if kernels is not None and max(a.shape[3], c.shape[3]) <= kernels.LARGEST_WIDTH:
        dtypes = (dtype, other_dtype)
        return kernels.causal_sum_pair(a, d, b, c, reverse, outer=outer, inner=inner, dtypes=dtypes)
    if a.device.type == "cpu":
        with torch.autocast("cpu", enabled=False):
            y, z = _loop([a, d], b, c, None, outer, inner, reverse, [dtype, other_dtype])
        return y, z
    y = _compute(a, b, c, None, outer, inner, reverse, dtype)
    return y, _compute(d, c, b, None, outer, inner, reverse, other_dtype)


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
) -> list[Tensor]:
    """The sum for one query, or the pair for two, one chunk after another.

    A chunk is copied before it is multiplied: products of rows that lie heads x width numbers apart take twice the time.
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
    starts: Sequence[int] = range(0, length, LOOP_CHUNK)
    starts = starts[::-1] if reverse else starts
    key, value, *own, scores = buffers = [b.new_empty(0, dtype=compute)] * (3 + len(queries))
    for start in starts:
        chunk = slice(start, start + LOOP_CHUNK)
        size = min(LOOP_CHUNK, length - start)
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


Product = Callable[..., Tensor]
Pair = Callable[..., tuple[Tensor, Tensor]]


def _derivatives(
    product: Product, pair: Pair, saved: Sequence[Any], reverse: bool, needs: Sequence[bool], g: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of the sum in a, b, c and the state."""
    a, b, c, state, outer, inner = saved
    transposed = None if state is None else state.mT
    da = product(g, c, b, transposed, outer, inner, reverse, a.dtype) if needs[0] else None
    db = dc = None
    if needs[1] and needs[2]:
        dc, db = pair(b, c, a, g, inner, outer, not reverse, c.dtype, b.dtype)
    elif needs[1]:
        db = product(c, g, a, None, inner, outer, not reverse, b.dtype)
    elif needs[2]:
        dc = product(b, a, g, None, inner, outer, not reverse, c.dtype)
    dstate = None
    if needs[3]:
        compute = _sum_dtype(a, g)
        with torch.autocast(a.device.type, enabled=False):
            dstate = torch.einsum("bshc,bshd->bhcd", _scaled(a.to(compute), outer), g.to(compute))
    return da, db, dc, dstate


def _backward_formulas(product: Product, pair: Pair) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the backward of the sum and of the pair, written in one face of the operators."""

    def of_product(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        return *_derivatives(product, pair, ctx.saved_tensors, ctx.reverse, needs, g), None, None, None, None

    def of_pair(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor | None, ...]:
        a, d, b, c, outer, inner = ctx.saved_tensors
        needs = ctx.needs_input_grad
        da, db, dc, _ = _derivatives(
            product, pair, (a, b, c, None, outer, inner), ctx.reverse, (needs[0], needs[2], needs[3], False), g
        )
        dd, dc_too, db_too, _ = _derivatives(
            product, pair, (d, c, b, None, outer, inner), ctx.reverse, (needs[1], needs[3], needs[2], False), h
        )
        db = db + db_too if db is not None and db_too is not None else None
        dc = dc + dc_too if dc is not None and dc_too is not None else None
        return da, dd, db, dc, None, None, None, None, None

    return of_product, of_pair


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.reverse, _ = inputs
    ctx.save_for_backward(*tensors)


def _save_pair(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.reverse, _, _ = inputs
    ctx.save_for_backward(*tensors)


def flatten_vmapped(size: int, in_dims: Sequence[int | None], args: Sequence[Any]) -> list[Any]:
    """Move the dimension that `vmap` maps over into the batch, which comes first, of every tensor among the arguments."""
    flat = []
    for x, dim in zip(args, in_dims, strict=True):
        if isinstance(x, Tensor):
            x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.flatten(0, 1)
        flat.append(x)
    return flat


def _product_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return _backward_formulas(_CausalSum.apply, _CausalPair.apply)[0](ctx, g)


def _pair_backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor | None, ...]:
    return _backward_formulas(_CausalSum.apply, _CausalPair.apply)[1](ctx, g, h)


class _CausalSum(torch.autograd.Function):
    forward = staticmethod(_compute)
    setup_context = staticmethod(_save_product)
    backward = staticmethod(_product_backward)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        y = _CausalSum.apply(*flatten_vmapped(info.batch_size, in_dims, args))
        return y.unflatten(0, (info.batch_size, len(y) // info.batch_size)), 0


class _CausalPair(torch.autograd.Function):
    forward = staticmethod(_compute_pair)
    setup_context = staticmethod(_save_pair)
    backward = staticmethod(_pair_backward)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        pair = _CausalPair.apply(*flatten_vmapped(info.batch_size, in_dims, args))
        return tuple(y.unflatten(0, (info.batch_size, len(y) // info.batch_size)) for y in pair), (0, 0)


# The version is part of the name, which is global to a process. Change it with any change of meaning.
_operator = define_operator(
    "hf_seqmix::causal_sum_v2",
    schema="(Tensor a, Tensor b, Tensor c, Tensor? state, Tensor? outer, Tensor? inner, bool reverse, ScalarType dtype) "
    "-> Tensor",
)(_compute)

_pair_operator = define_operator(
    "hf_seqmix::causal_pair_v1",
    schema="(Tensor a, Tensor d, Tensor b, Tensor c, Tensor? outer, Tensor? inner, bool reverse, ScalarType dtype, "
    "ScalarType other_dtype) -> (Tensor, Tensor)",
)(_compute_pair)


@_operator.register_fake
def _(a: Tensor, b: Tensor, c: Tensor, *args: Any) -> Tensor:
    return c.new_empty((*a.shape[:3], c.shape[3]), dtype=args[-1])


@_pair_operator.register_fake
def _(a: Tensor, d: Tensor, b: Tensor, c: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    y = c.new_empty((*a.shape[:3], c.shape[3]), dtype=args[-2])
    return y, c.new_empty((*a.shape[:3], b.shape[3]), dtype=args[-1])


_traced_product_backward, _traced_pair_backward = _backward_formulas(_operator, _pair_operator)
_operator.register_autograd(_traced_product_backward, setup_context=_save_product)
_pair_operator.register_autograd(_traced_pair_backward, setup_context=_save_pair)
