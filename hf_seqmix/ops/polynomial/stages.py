"""The two stages that products of projections are built from: causal linear attention without a denominator, and sums.

Both stages are linear in each of their inputs, so that the degree of a product of stages is the number of its factors.
"""

import torch
from torch import Tensor

from ..common.dispatch import Route, cast, check_real, compute_dtype, dispatch, without_autocast
from ..common.invariance import is_batch_invariant
from .linear_attention import LOOP_CHUNK, causal_sum, causal_sum_vectorized

__all__ = ["FORMS", "attend", "linear_attention", "outer_sum", "running_sum", "signed_power"]

FORMS = ("chunked", "parallel", "recurrent")

_POWER_EPS = 1e-4


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None = None,
    *,
    causal: bool = True,
    form: str = "chunked",
    scale: Tensor | None = None,
) -> Tensor:
    """Sum values weighted by products of queries and keys: y_t = scale_t (sum_(s <= t) <q_t, k_s> v_s + q_t S).

    No softmax, no feature map and no denominator: y is linear in q, in k and in v. Summed in float32 (float64 for
    float64) whatever autocast says; kernels of GPUs multiply half-precision arguments as such. Three forms of the same
    sum:

    * "parallel": the matrix of all q_t . k_s, masked, times v: the definition, O(n^2).
    * "chunked": that within chunks of positions, and q_t (sum of k_s v_s^T) for the chunks before: O(n).
    * "recurrent": one position after another, as in decoding.

    Source: linear attention, Katharopoulos et al. 2020 (arXiv 2006.16236), with the identity as feature map.

    Args:
        q: (batch, length, heads, width).
        k: (batch, earlier + length, heads, width); each query stands beside one of the last `length` keys, and sees
            it.
        v: (batch, earlier + length, heads, values).
        state: S, (batch, heads, width, values), a sum of k_s v_s^T over positions before; None for none.
        causal: whether a query sees no later keys; otherwise it sees all.
        form: one of `FORMS`; bidirectional sums have one form only.
        scale: (batch, length), where each may be 1; None for ones.

    Returns:
        (batch, length, heads, values) in float32 (float64).

    Raises:
        ValueError: for an unknown form, or shapes that do not fit.
    """
    return attend(*dispatch(q, k, v), q, k, v, state, causal, form, scale)


def attend(
    route: Route,
    dtype: torch.dtype,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    causal: bool,
    form: str,
    scale: Tensor | None,
) -> Tensor:
    """Compute `linear_attention` by a route, in a dtype, as `dispatch` gave them for the call.

    Args:
        route: how the call is computed.
        dtype: in which sums are made and the result is returned.
        q: (batch, length, heads, width).
        k: (batch, earlier + length, heads, width).
        v: (batch, earlier + length, heads, values).
        state: (batch, heads, width, values); None for none.
        causal: whether a query sees no later keys.
        form: one of `FORMS`.
        scale: (batch, length), where each may be 1; None for ones.

    Returns:
        (batch, length, heads, values) in `dtype`.

    Raises:
        ValueError: for an unknown form, or shapes that do not fit.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; it must be one of {', '.join(map(repr, FORMS))}.")
    _check(q, k, v, state, scale)
    state = None if state is None else cast(state, dtype)
    scale = None if scale is None else cast(scale, dtype)
    # A step of decoding is one query in compiled graphs, too; other lengths are not looked at there.
    # Where the order of sums is fixed, there are no chunks, whose sums would be terms of their own.
    short = q.shape[1] <= 1 or (route not in ("operator", "real") and q.shape[1] <= LOOP_CHUNK) or is_batch_invariant()
    with without_autocast(q.device.type):
        if scale is not None and (scale.requires_grad or not causal or form != "chunked" or short):
            q, scale = q * scale.reshape(*scale.shape, 1, 1), None
        if not causal:
            return torch.einsum("bthc,bhcd->bthd", q.to(dtype), _plus(outer_sum(k, v), state))
        if form == "parallel" or (form == "chunked" and short) or q.shape[1] == 0:
            return _parallel(cast(q, dtype), cast(k, dtype), cast(v, dtype), state)
        earlier = k.shape[1] - q.shape[1]
        if earlier != 0:
            state = _plus(outer_sum(k[:, :earlier], v[:, :earlier]), state)
            k, v = k[:, earlier:], v[:, earlier:]
        if form == "chunked" and route not in ("real", "forward_mode"):
            y = causal_sum(route == "operator", q, k, v, state, scale, None, False, dtype)
            return y
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        if form == "recurrent":
            return _recurrent(q, k, v, state)
        y = causal_sum_vectorized(q, k, v, state, symbolic=route == "real")
        return y if scale is None else y * scale[:, :, None, None]


def outer_sum(k: Tensor, v: Tensor) -> Tensor:
    """Sum the outer products k_s v_s^T over positions, in float32 (float64 for float64).

    Args:
        k: (batch, length, heads, width).
        v: (batch, length, heads, values).

    Returns:
        (batch, heads, width, values).

    Raises:
        ValueError: for keys and values of different positions or heads.
    """
    if not torch.compiler.is_compiling() and (k.ndim != 4 or v.ndim != 4 or k.shape[:3] != v.shape[:3]):
        raise ValueError(
            f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}; they must be (batch, length, heads, width) and "
            "(batch, length, heads, values), alike but for the last."
        )
    dtype = torch.promote_types(torch.promote_types(k.dtype, v.dtype), torch.float32)
    with without_autocast(k.device.type):
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

    Raises:
        ValueError: for a `start` of another shape than a position.
    """
    if start is not None and not torch.compiler.is_compiling() and start.shape != x.shape[:1] + x.shape[2:]:
        raise ValueError(
            f"start has shape {tuple(start.shape)}; it must be {tuple(x.shape[:1] + x.shape[2:])}, as x of shape "
            f"{tuple(x.shape)} without its positions."
        )
    x = cast(x, compute_dtype(x.dtype))
    if not causal or length == 1:
        total = x.sum(dim=1, keepdim=True)
    else:
        total = x.cumsum(dim=1)
        total = total if length is None else total[:, x.shape[1] - length :]
    return total if start is None else total + start.unsqueeze(1)


def signed_power(z: Tensor, exponent: float) -> Tensor:
    """Raise to a fractional power and keep the sign: sgnpow(z, a) = z (z^2 + eps)^((a - 1) / 2), in float32.

    eps is 1e-4. For |z| well above sqrt(eps) this is sign(z) |z|^a; eps keeps the slope at zero, eps^((a - 1) / 2),
    finite.

    Args:
        z: of any shape.
        exponent: a, greater than 0.

    Returns:
        The shape of `z`, in float32 (float64 for float64).
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    return z * (z.square() + _POWER_EPS) ** ((exponent - 1) / 2)


def _check(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, scale: Tensor | None) -> None:
    queries, keys, values = q.shape, k.shape, v.shape
    fits = len(queries) == len(keys) == len(values) == 4 and keys[:3] == values[:3] and queries[2:] == keys[2:]
    if not fits or queries[0] != keys[0]:
        raise ValueError(
            "q and k must be (batch, length, heads, width) and v (batch, length, heads, values), with as many keys as "
            f"values; got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}."
        )
    check_real(q=q, k=k, v=v)
    if not torch.compiler.is_compiling() and k.shape[1] < q.shape[1]:
        raise ValueError(f"there are {q.shape[1]} queries but {k.shape[1]} keys: each query needs one beside it.")
    sums = (q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    if state is not None and (state.ndim != 4 or (not torch.compiler.is_compiling() and state.shape != sums)):
        raise ValueError(f"state has shape {tuple(state.shape)}; it must be (batch, heads, width, values), {sums}.")
    if scale is not None and (scale.ndim != 2 or not (torch.compiler.is_compiling() or _is_scale(scale, q))):
        raise ValueError(
            f"scale has shape {tuple(scale.shape)}; it must be (batch, length), {tuple(q.shape[:2])}, where each may "
            "be 1."
        )


def _is_scale(scale: Tensor, q: Tensor) -> bool:
    return scale.shape[0] in (1, q.shape[0]) and scale.shape[1] in (1, q.shape[1])


def _plus(x: Tensor, state: Tensor | None) -> Tensor:
    return x if state is None else x + state


def _parallel(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> Tensor:
    key, value = k.transpose(1, 2), v.transpose(1, 2)
    if q.shape[1] == 1:  # stands beside the last key
        rows, keys, values = q.transpose(1, 2).flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
        y = torch.bmm(torch.bmm(rows, keys.mT), values)
        if state is not None:
            y = y + torch.bmm(rows, state.flatten(0, 1))
        return y.view(*q.shape[:3], v.shape[3])
    query = q.transpose(1, 2)
    # Masked before it is multiplied: in a product of several such matrices the future would come in through the
    # middle.
    scores = torch.tril(query @ key.transpose(-1, -2), k.shape[1] - q.shape[1])  # (batch, heads, length, keys)
    y = scores @ value
    return (y if state is None else y + query @ state).transpose(1, 2)


def _recurrent(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> Tensor:
    current = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]) if state is None else state
    outputs = []
    for t in range(q.shape[1]):
        current = current + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhc,bhcd->bhd", q[:, t], current))
    return torch.stack(outputs, dim=1)
