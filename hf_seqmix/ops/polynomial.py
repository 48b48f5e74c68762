"""The two stages that products of projections are built from: causal linear attention without a denominator, and sums.

Both are linear in each of their inputs, so that the degree of what is built from them is counted by its factors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .backend import route
from .operator import define_operator

__all__ = ["FORMS", "linear_attention", "outer_sum", "running_sum", "signed_power"]

FORMS = ("chunked", "parallel", "recurrent")

# Measured on one CPU thread, heads 32 and 64 wide, 512 to 8192 positions, forward and backward.
LOOP_CHUNK = 32
VECTOR_CHUNK = 64


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None, *, causal: bool = True, form: str = "chunked"
) -> Tensor:
    """Sum values weighted by products of queries and keys: y_t = sum_(s <= t) <q_t, k_s> v_s + q_t S.

    No softmax, no feature map, no scale and no denominator: y is linear in q, in k and in v. Computed in float32 (float64
    for float64) whatever autocast says. Three forms of the same sum:

    * "parallel": the matrix of all q_t . k_s, masked, times v: the definition, O(n^2).
    * "chunked": that within chunks of positions, and q_t (sum of k_s v_s^T) for the chunks before: O(n).
    * "recurrent": one position after another, as in decoding.

    Source: linear attention, Katharopoulos et al. 2020 (arXiv 2006.16236), with the identity as feature map.

    Args:
        q: (batch, length, heads, width).
        k: (batch, earlier + length, heads, width); each query stands beside one of the last `length` keys, and sees it.
        v: (batch, earlier + length, heads, values).
        state: S, (batch, heads, width, values), a sum of k_s v_s^T over positions before; None for none.
        causal: whether a query sees no later keys; otherwise it sees all.
        form: one of `FORMS`; bidirectional sums have one form only.

    Returns:
        (batch, length, heads, values) in float32 (float64).

    Raises:
        ValueError: for an unknown form, or shapes that do not fit.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; it must be one of {', '.join(map(repr, FORMS))}.")
    _check(q, k, v)
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.promote_types(v.dtype, torch.float32))
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    state = None if state is None else state.to(dtype)
    with torch.autocast(q.device.type, enabled=False):
        if not causal:
            return torch.einsum("bthc,bhcd->bthd", q, _plus(outer_sum(k, v), state))
        chosen = route(q)
        # A step of decoding is one query in compiled graphs, too; other lengths are not looked at there.
        short = q.shape[1] <= 1 or (chosen == "eager" and q.shape[1] <= LOOP_CHUNK)
        if form == "parallel" or (form == "chunked" and short):
            return _parallel(q, k, v, state)
        earlier = k.shape[1] - q.shape[1]
        if earlier != 0:
            state = _plus(outer_sum(k[:, :earlier], v[:, :earlier]), state)
            k, v = k[:, earlier:], v[:, earlier:]
        if form == "recurrent":
            return _recurrent(q, k, v, state)
        if chosen == "operator":
            return _operator(q, k, v, state, False)
        if chosen == "real" or q.device.type != "cpu" or forward_ad._current_level >= 0:
            return _vectorised(q, k, v, state, symbolic=chosen == "real")
        return _CausalSum.apply(q, k, v, state, False)


def outer_sum(k: Tensor, v: Tensor) -> Tensor:
    """Sum the outer products k_s v_s^T over positions, in float32 (float64 for float64).

    Args:
        k: (batch, length, heads, width).
        v: (batch, length, heads, values).

    Returns:
        (batch, heads, width, values).
    """
    dtype = torch.promote_types(torch.promote_types(k.dtype, v.dtype), torch.float32)
    with torch.autocast(k.device.type, enabled=False):
        return torch.einsum("bshc,bshd->bhcd", k.to(dtype), v.to(dtype))


def running_sum(x: Tensor, start: Tensor | None = None, *, causal: bool = True, length: int | None = None) -> Tensor:
    """Sum over the positions up to each, y_t = sum_(s <= t) x_s + S, in float32 (float64 for float64).

    Args:
        x: (batch, positions, ...).
        start: S, (batch, ...), the sum over positions before; None for none.
        causal: whether a position sees no later ones; otherwise it sees all.
        length: how many of the last positions to return; all by default.

    Returns:
        (batch, length, ...); (batch, 1, ...), the same for all positions, unless causal.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if not causal or length == 1:
        total = x.sum(dim=1, keepdim=True)
    else:
        plain = route(x) != "eager" or x.ndim == 2 or x.device.type != "cpu" or x.shape[1] <= VECTOR_CHUNK
        total = x.cumsum(dim=1) if plain else _chunked_sum(x)
        total = total if length is None else total[:, x.shape[1] - length :]
    return total if start is None else total + start.unsqueeze(1)


def signed_power(z: Tensor, exponent: float, eps: float = 1e-4) -> Tensor:
    """Raise to a fractional power and keep the sign: sgnpow(z, a) = z (z^2 + eps)^((a - 1) / 2), in float32.

    For |z| well above sqrt(eps) this is sign(z) |z|^a; eps keeps the slope at zero, eps^((a - 1) / 2), finite.

    Args:
        z: of any shape.
        exponent: a, greater than 0.
        eps: added to the square.

    Returns:
        The shape of `z`, in float32 (float64 for float64).
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    return z * (z.square() + eps) ** ((exponent - 1) / 2)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    fits = q.ndim == k.ndim == v.ndim == 4 and k.shape[:3] == v.shape[:3] and q.shape[3] == k.shape[3]
    if not fits or q.shape[0] != k.shape[0] or q.shape[2] != k.shape[2]:
        raise ValueError(
            "q and k must be (batch, length, heads, width) and v (batch, length, heads, values), with as many keys as "
            f"values; got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}."
        )
    if not torch.compiler.is_compiling() and k.shape[1] < q.shape[1]:
        raise ValueError(f"there are {q.shape[1]} queries but {k.shape[1]} keys: each query needs one beside it.")


def _plus(x: Tensor, state: Tensor | None) -> Tensor:
    return x if state is None else x + state


def _parallel(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> Tensor:
    query, key, value = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    # Masked before it is multiplied: in a product of several such matrices the future would come in through the middle.
    scores = torch.tril(query @ key.transpose(-1, -2), k.shape[1] - q.shape[1])  # (batch, heads, length, keys)
    y = scores @ value
    return (y if state is None else y + query @ state).transpose(1, 2)


def _recurrent(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> Tensor:
    current = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]) if state is None else state
    outputs = []
    for t in range(q.shape[1]):
        current = current + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhc,bhcd->bhd", q[:, t], current))
    return torch.stack(outputs, dim=1) if outputs else v[:, :0]


def _vectorised(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, symbolic: bool = False) -> Tensor:
    """The chunked form over all chunks at once; `symbolic` for graphs that serve any length."""
    length, size = q.shape[1], VECTOR_CHUNK
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

    query, key, value = split(q), split(k), split(v)
    contributions = key.transpose(-1, -2) @ value  # (batch, heads, chunks, width, values)
    first = torch.zeros_like(contributions[:, :, :1]) if state is None else state.unsqueeze(2)
    before = torch.cat([first, contributions], dim=2).cumsum(dim=2)[:, :, :-1]
    y = torch.tril(query @ key.transpose(-1, -2)) @ value + query @ before
    y = y.permute(0, 2, 3, 1, 4)
    place = torch.arange(length, device=q.device)
    return y[:, place // size, place % size] if symbolic else y.flatten(1, 2)[:, :length]


def _chunked_sum(x: Tensor) -> Tensor:
    """`x.cumsum(dim=1)`, as a product with a triangle within chunks: 6 ms instead of 32 for 8192 x 512 on one CPU thread."""
    batch, length, size = x.shape[0], x.shape[1], LOOP_CHUNK
    chunks = torch.nn.functional.pad(x.flatten(2), (0, 0, 0, -length % size)).unflatten(1, (-1, size))
    totals = chunks.sum(dim=2)  # (batch, chunks, channels)
    before = torch.nn.functional.pad(totals, (0, 0, 1, 0))[:, :-1].cumsum(dim=1)
    with torch.autocast(x.device.type, enabled=False):
        sums = torch.ones(size, size, dtype=x.dtype).tril() @ chunks + before.unsqueeze(2)
    return sums.flatten(1, 2)[:, :length].reshape(batch, length, *x.shape[2:])


def _causal_sum(a: Tensor, b: Tensor, c: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    """Compute y_t = a_t (S + sum b_s c_s^T) over s <= t, or, in `reverse`, over s >= t, one chunk after another."""
    batch, length, heads, width = a.shape
    values = c.shape[3]
    y = c.new_empty(batch, length, heads, values)
    current = a.new_zeros(batch * heads, width, values)
    if state is not None:
        current += state.reshape(batch * heads, width, values)
    starts = range(0, length, LOOP_CHUNK)
    # Backward runs under whatever autocast it is called in.
    with torch.autocast(a.device.type, enabled=False):
        for start in reversed(starts) if reverse else starts:
            chunk = slice(start, start + LOOP_CHUNK)
            query, key, value = (x[:, chunk].transpose(1, 2).flatten(0, 1) for x in (a, b, c))
            scores = query @ key.transpose(1, 2)
            scores = scores.triu_() if reverse else scores.tril_()
            out = torch.bmm(scores, value).baddbmm_(query, current)
            y[:, chunk] = out.unflatten(0, (batch, heads)).transpose(1, 2)
            current.baddbmm_(key.transpose(1, 2), value)
    return y


class _CausalSum(torch.autograd.Function):
    """y_t = a_t (S + sum b_s c_s^T) over s <= t, or, in `reverse`, over s >= t.

    The value and the derivatives in a, b and c are all of this form, so that it is closed under differentiation of any
    order, and saves nothing but its arguments. One chunk after another, whose buffers stay in the processor's cache: on
    one thread this takes half the time of all chunks at once at 8192 positions.
    """

    @staticmethod
    def forward(a: Tensor, b: Tensor, c: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
        return _causal_sum(a, b, c, state, reverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save_operator(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return _derivatives(_CausalSum.apply, ctx, g)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        *tensors, reverse = args
        flat = []
        for x, dim in zip(tensors, in_dims[:4], strict=True):
            if x is not None:
                x = x.unsqueeze(0).expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
                x = x.flatten(0, 1)
            flat.append(x)
        y = _CausalSum.apply(*flat, reverse)
        return y.unflatten(0, (info.batch_size, len(y) // info.batch_size)), 0


def _derivatives(product: Callable[..., Tensor], ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of `_causal_sum`, three of which are `product`s of the same form."""
    a, b, c, state = ctx.saved_tensors
    needs, reverse = ctx.needs_input_grad, ctx.reverse
    transposed = None if state is None else state.transpose(-1, -2)
    return (
        product(g, c, b, transposed, reverse) if needs[0] else None,
        product(c, g, a, None, not reverse) if needs[1] else None,
        product(b, a, g, None, not reverse) if needs[2] else None,
        outer_sum(a, g) if needs[3] else None,
        None,
    )


@define_operator(
    "hf_seqmix::causal_sum_v1", schema="(Tensor a, Tensor b, Tensor c, Tensor? state, bool reverse) -> Tensor"
)
def _operator(a: Tensor, b: Tensor, c: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    """The same as an operator, opaque while tracing: a traced graph knows no number of chunks."""
    if a.device.type == "cpu":
        return _causal_sum(a, b, c, state, reverse)
    with torch.autocast(a.device.type, enabled=False):
        if not reverse:
            return _vectorised(a, b, c, state).contiguous()
        return _vectorised(a.flip(1), b.flip(1), c.flip(1), state).flip(1).contiguous()


@_operator.register_fake
def _fake_operator(a: Tensor, b: Tensor, c: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    return c.new_empty((a.shape[0], a.shape[1], a.shape[2], c.shape[3]))


def _save_operator(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, c, state, ctx.reverse = inputs
    ctx.save_for_backward(a, b, c, state)


def _operator_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return _derivatives(_operator, ctx, g)


_operator.register_autograd(_operator_backward, setup_context=_save_operator)
