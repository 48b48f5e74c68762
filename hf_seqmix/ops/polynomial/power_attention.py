"""Causal sums of values, weighted by powers of products of queries and keys, that gates may let fade."""

import torch
from torch import Tensor

from ..common.dispatch import cast, dispatch, without_autocast
from ..common.invariance import is_batch_invariant
from .power_arguments import check_arguments, flags_of
from .power_chunks import (
    LARGEST_CHUNK,
    WEIGHT_EPS,
    PowerSums,
    advance,
    chunk_size,
    chunked,
    normalize,
    power_attention_operator,
    within,
)

__all__ = [
    "POWER_FORMS",
    "PowerSums",
    "power_attention",
    "power_attention_dense",
    "power_attention_weights",
    "power_sums",
]

POWER_FORMS = ("chunked", "parallel", "recurrent")
_SHUT = -100.0
"""The logarithm of a gate that lets nothing through in float32; differences of sums of -inf would be no numbers."""


def power_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gates: Tensor | None = None,
    *,
    power: int = 1,
    denominator: bool = False,
    real: Tensor | None = None,
    sums: PowerSums | None = None,
    causal: bool = True,
    form: str = "chunked",
    chunk: int | None = None,
) -> Tensor:
    """Sum values weighted by powers of products, which fade with the gates since, in float32 (float64 for float64).

        y_t = sum_(s <= t) D_ts (<q_t, k_s> / sqrt(width))^p v_s / N_t,   D_ts = f_(s+1) f_(s+2) ... f_t.

    f are gates between 0 and 1, p is the power. N_t is the gated number of real tokens, sum_(s <= t) D_ts r_s. Inputs
    that do not change then give outputs that do not depend on the gates. Without gates N_t is the number of real
    tokens, and y for p = 1 is linear attention as the polynomial mixers have it.

    With `denominator` the sum of the weights divides instead, N_t = sum_(s <= t) D_ts ((<q_t, k_s> / sqrt(width))^p +
    1e-4 r_s). Weights are not negative where p is even, and 1e-4 keeps the quotient finite where all are near 0. That
    is no polynomial any more.

    The past is in two sums, each multiplied by the gates that follow: S_t = f_t S_(t-1) + phi(k_t) v_t^T, with phi the
    symmetric power of `symmetric_power`, C(width + p - 1, p) numbers; and n_t = f_t n_(t-1) + r_t. S is kept without
    the weights of phi, which come in when S is read. Three forms of the same:

    * "parallel": the matrix of all weights times the values, O(n^2).
    * "chunked": that within chunks of positions, and the sums for those before: O(n).
    * "recurrent": one position after another.

    Differentiable any number of times, and a backward pass keeps the matrices of all chunks. In a graph the operation
    is differentiable once, and a backward pass computes the chunks again. Graphs for other runtimes (`real_valued`)
    and a fixed order of sums (`batch_invariant`) have the parallel form.

    Source: gates of one number a head and token, Dao and Gu 2024 (Mamba-2, arXiv 2405.21060), Yang et al. 2023
    (arXiv 2312.06635), Lin et al. 2025 (arXiv 2503.02130); powers, Kumar et al. 2025 (arXiv 2507.04239). The gated
    count is ours.

    Args:
        q: (batch, length, heads, width).
        k: (batch, earlier + length, heads, width), zero at pads; each query stands beside one of the last keys, and
            sees it.
        v: (batch, earlier + length, heads, values), zero at pads.
        log_gates: log f, (batch, earlier + length, heads), at most 0, and 0 at pads; None for gates of 1.
        power: p, from 1 to 16.
        denominator: whether the sum of the weights divides; for even powers.
        real: r, (batch, earlier + length), 1 at real tokens and 0 at pads; None when all are real.
        sums: what `power_sums` returns for positions before; None for none.
        causal: whether a query sees no later keys; otherwise it sees all.
        form: one of `POWER_FORMS`; bidirectional sums are parallel.
        chunk: positions of a chunk; 64 to 256 by default, see `chunk_size`.

    Returns:
        (batch, length, heads, values) in float32 (float64).

    Raises:
        ValueError: for an unknown form, shapes that do not fit, a power out of range, a chunk below 1, a denominator
            of an odd power, gates of bidirectional sums, and, on a CPU, gates above 1.
    """
    if form not in POWER_FORMS:
        raise ValueError(f"form is {form!r}; it must be one of {', '.join(map(repr, POWER_FORMS))}.")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1, or None for the default.")
    check_arguments(q, k, v, log_gates, power, denominator, causal, sums)
    route, dtype = dispatch(q, k, v)
    flags = flags_of(real, k, dtype)
    with without_autocast(q.device.type):
        query = (cast(q, dtype) * q.shape[-1] ** -0.5).transpose(1, 2)
        key, value = (cast(x, dtype).transpose(1, 2) for x in (k, v))
        value = _with_ones(value) if denominator else value
        gates = None if log_gates is None else cast(log_gates, dtype).clamp(min=_SHUT).transpose(1, 2)
        before = None if sums is None else PowerSums(*(cast(x, dtype) for x in sums))
        short = q.shape[1] <= 1 or route == "real" or is_batch_invariant()
        if not causal or form == "parallel" or (form == "chunked" and short):
            y = normalize(*within(query, key, value, gates, flags, before, power, causal), denominator)
        elif form == "recurrent":
            y = normalize(*_recurrent(query, key, value, gates, flags, before, power), denominator)
        else:
            size = chunk or chunk_size(q.shape[-1], power)
            tensors = [query, key, value, flags, *([] if gates is None else [gates]), *(before or ())]
            settings = [power, size, int(denominator), int(gates is not None), int(before is not None)]
            if route == "operator":
                y = power_attention_operator(True, tensors, settings)
            else:
                y = normalize(*chunked(query, key, value, gates, flags, before, power, size), denominator)
    return y.transpose(1, 2)


def power_sums(
    k: Tensor,
    v: Tensor,
    log_gates: Tensor | None = None,
    *,
    power: int = 1,
    denominator: bool = False,
    real: Tensor | None = None,
    sums: PowerSums | None = None,
) -> PowerSums:
    """Return the sums by which `power_attention` goes on after some positions; see there for the arguments.

    Returns:
        products, (batch, heads, C(width + p - 1, p), values), one value more with a denominator; and tokens, (batch,
        heads). Both in float32 (float64).

    Raises:
        ValueError: as there.
    """
    check_arguments(k, k, v, log_gates, power, denominator, True, sums)
    route, dtype = dispatch(k, v)
    with without_autocast(k.device.type):
        key, value = (cast(x, dtype).transpose(1, 2) for x in (k, v))
        value = _with_ones(value) if denominator else value
        gates = None if log_gates is None else cast(log_gates, dtype).clamp(min=_SHUT).transpose(1, 2)
        flags = flags_of(real, k, dtype)
        # A part at a time, whose features fit the memory; a graph serves any length.
        size = k.shape[1] if route in ("operator", "real") else LARGEST_CHUNK
        if size >= k.shape[1]:
            return advance(key, value, gates, flags, sums, power)
        for start in range(0, k.shape[1], size):
            part = slice(start, start + size)
            own = None if gates is None else gates[:, :, part]
            sums = advance(key[:, :, part], value[:, :, part], own, flags[:, part], sums, power)
        assert sums is not None
        return sums


def power_attention_weights(
    q: Tensor,
    k: Tensor,
    log_gates: Tensor | None = None,
    *,
    power: int = 1,
    denominator: bool = False,
    real: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """Return the matrix by which `power_attention` multiplies values, made as the formula says, without sums before.

    Args:
        q: (batch, length, heads, width), and so on as there.
        k: see there.
        log_gates: see there.
        power: see there.
        denominator: see there.
        real: see there.
        causal: see there.

    Returns:
        (batch, heads, length, earlier + length) in float32 (float64).
    """
    dtype = dispatch(q, k)[1]
    length, keys = q.shape[1], k.shape[1]
    visible = torch.ones((length, keys), dtype=dtype, device=q.device)
    kept = visible.tril(keys - length) if causal else visible
    if log_gates is not None:
        gates = log_gates.to(dtype).exp().transpose(1, 2)  # (batch, heads, keys)
        rows, row = [], torch.zeros_like(gates)
        own = torch.eye(keys, dtype=dtype, device=q.device)
        for t in range(keys):
            row = row * gates[..., t : t + 1] + own[t]
            rows.append(row)
        kept = torch.stack(rows, dim=2)[:, :, keys - length :] if rows else gates.unsqueeze(-1)
    product = torch.einsum("bthc,bshc->bhts", q.to(dtype), k.to(dtype)) * q.shape[-1] ** -0.5
    weights = product**power * kept
    count = (kept * flags_of(real, k, dtype)[:, None, None, :]).sum(dim=-1, keepdim=True).clamp(min=1)
    return weights / (weights.sum(dim=-1, keepdim=True) + WEIGHT_EPS * count if denominator else count)


def power_attention_dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gates: Tensor | None = None,
    *,
    power: int = 1,
    denominator: bool = False,
    real: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """Compute `power_attention` by its definition, with `power_attention_weights`; takes and refuses what it does."""
    check_arguments(q, k, v, log_gates, power, denominator, causal)
    weights = power_attention_weights(q, k, log_gates, power=power, denominator=denominator, real=real, causal=causal)
    return torch.einsum("bhts,bshd->bthd", weights, v.to(weights.dtype))


def _with_ones(v: Tensor) -> Tensor:
    """Add a value of 1; at pads that has no weight."""
    return torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)


def _recurrent(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, real: Tensor, before: PowerSums | None, power: int
) -> tuple[Tensor, Tensor]:
    length, earlier = q.shape[2], k.shape[2] - q.shape[2]
    parts = []
    for s in range(k.shape[2]):
        here = slice(s, s + 1)
        own = None if gates is None else gates[:, :, here]
        now = (k[:, :, here], v[:, :, here], own, real[:, here])
        if s >= earlier:
            parts.append(within(q[:, :, s - earlier : s - earlier + 1], *now, before, power))
        before = advance(*now, before, power)
    if length == 0:
        return within(q, k, v, gates, real, None, power)
    sums, counts = zip(*parts, strict=True)
    return torch.cat(sums, dim=2), torch.cat(counts, dim=2)
