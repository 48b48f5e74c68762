"""How power attention is computed; `power_attention.py` is its public face.

Within a chunk of positions the weights of all pairs are a matrix. What came before the chunk is in sums over symmetric
powers of keys. With gates, only differences of running sums of log gates that are at most 0 are exponentiated. Running
sums begin anew in each chunk, so that only the gates of one chunk cost digits: about as many as their sum has.

Everything here has the heads before the positions: q (batch, heads, length, width), k (batch, heads, keys, width), v
(batch, heads, keys, values), gates (batch, heads, keys), real (batch, keys).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.operator import define_operator, differentiable_operator, recorded
from .symmetric_power import monomials, multinomials, number_of_features, whole_power

__all__ = ["PowerSums", "advance", "chunk_size", "chunked", "normalize", "power_attention_operator", "within"]

SMALLEST_CHUNK, LARGEST_CHUNK, FEATURES_OF_A_POSITION = 64, 256, 4
"""A chunk of n positions costs n a position for its matrix, and the number of features for the sums. Measured on one
CPU thread, forward and backward, with heads 16 and 48 wide, powers 1 and 2, and 256 to 4096 positions."""

WEIGHT_EPS = 1e-4
"""What is added to each weight of a sum that divides: sums over features round to about 1e-6 a token in float32."""


class PowerSums(NamedTuple):
    """What positions before leave behind, each multiplied by the gates since."""

    products: Tensor
    """(batch, heads, features, values), the sum of m(k_s) v_s^T, m the monomials of phi without weights."""
    tokens: Tensor
    """(batch, heads), the sum of real tokens."""


def chunk_size(width: int, power: int) -> int:
    """Return how many positions a chunk has: the more, the more features there are."""
    return min(LARGEST_CHUNK, max(SMALLEST_CHUNK, number_of_features(width, power) // FEATURES_OF_A_POSITION))


def within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor | None,
    real: Tensor,
    before: PowerSums | None,
    power: int,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """Sum values with the matrix of all weights, after the sums of positions before.

    Args:
        q: those of the last positions.
        k: of all positions.
        v: likewise.
        gates: logarithms of gates, at most 0; None for gates of 1.
        real: 1 at real tokens, else 0.
        before: sums over positions before; None for none.
        power: of the products of queries and keys.
        causal: whether a query sees no later keys.

    Returns:
        (batch, heads, length, values), the sums; and (batch, heads, length or 1, 1), the sums of real tokens.
    """
    length, keys = q.shape[2], k.shape[2]
    weights = whole_power(q @ k.mT, power)  # (batch, heads, length, keys)
    hidden = None
    if causal and length > 1:  # the last query sees all keys
        places = torch.arange(keys, device=k.device)
        hidden = places > places[keys - length :].unsqueeze(-1)
    passed = None
    if gates is None:
        weights = weights if hidden is None else weights.masked_fill(hidden, 0)
        seen = real.cumsum(dim=1)[:, keys - length :] if causal else real.sum(dim=1, keepdim=True)
        count = seen[:, None, :, None].expand(-1, k.shape[1], -1, -1)
    else:
        total = gates.cumsum(dim=2)
        passed = total[:, :, keys - length :]
        since = passed.unsqueeze(-1) - total.unsqueeze(-2)  # (batch, heads, length, keys), at most 0 but for rounding
        kept = (since if hidden is None else since.masked_fill(hidden, -torch.inf)).exp()
        weights = weights * kept
        count = kept @ real[:, None, :, None].expand(-1, kept.shape[1], -1, -1)
    y = weights @ v
    if before is None:
        return y, count
    products, counted = before.products, before.tokens[..., None, None]
    if power == 1:
        earlier = q @ products
    else:
        # Weights go to the sums, which are smaller; products of rows of positions have gradients in rows.
        weighted = products * multinomials(q.shape[3], power, products)
        earlier = (weighted.mT @ monomials(q, power)).mT
    if passed is not None:
        left = passed.unsqueeze(-1).exp()
        earlier, counted = earlier * left, counted * left
    return y + earlier, count + counted


def advance(
    k: Tensor, v: Tensor, gates: Tensor | None, real: Tensor, before: PowerSums | None, power: int
) -> PowerSums:
    """Return the sums after some positions, from those before them; see `within` for the arguments."""
    count = real.unsqueeze(1)
    total = None
    if gates is not None:
        total = gates.sum(dim=2)
        left = (total.unsqueeze(-1) - gates.cumsum(dim=2)).clamp(max=0).exp()  # (batch, heads, keys)
        v, count, total = v * left.unsqueeze(-1), count * left, total.exp()
    products = monomials(k, power) @ v
    counts = count.sum(dim=2).expand(k.shape[:2])
    if before is None:
        return PowerSums(products, counts)
    earlier, counted = before
    if total is not None:
        earlier, counted = earlier * total[..., None, None], counted * total
    return PowerSums(earlier + products, counted + counts)


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor | None,
    real: Tensor,
    before: PowerSums | None,
    power: int,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Compute what `within` does, causally, one chunk of `size` positions after another."""
    length, earlier = q.shape[2], k.shape[2] - q.shape[2]
    if length <= size:
        return within(q, k, v, gates, real, before, power)

    def part(start: int, stop: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        own = None if gates is None else gates[:, :, start:stop]
        return k[:, :, start:stop], v[:, :, start:stop], own, real[:, start:stop]

    for start in range(0, earlier, size):
        before = advance(*part(start, min(start + size, earlier)), before, power)
    parts = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        own = part(earlier + start, earlier + stop)
        parts.append(within(q[:, :, start:stop], *own, before, power))
        if stop < length:
            before = advance(*own, before, power)
    sums, counts = zip(*parts, strict=True)
    return torch.cat(sums, dim=2), torch.cat(counts, dim=2)


def normalize(sums: Tensor, count: Tensor, denominator: bool) -> Tensor:
    """Divide sums by the sum of weights, which stands last among the values, or by the number of real tokens."""
    count = count.clamp(min=1)  # a real token counts itself with a gate of 1
    if denominator:
        return sums[..., :-1] / (sums[..., -1:].clamp(min=0) + WEIGHT_EPS * count)
    return sums / count


def _compute(tensors: Sequence[Tensor], settings: Sequence[int]) -> Tensor:
    """Compute in chunks.

    Args:
        tensors: q, k, v, real; gates, where there are; products and count of the sums before, where there are.
        settings: the power, positions of a chunk, whether weights divide, whether there are gates, and sums.
    """
    q, k, v, real, *rest = tensors
    power, size, denominator, gated, continued = settings
    gates = rest.pop(0) if gated else None
    before = PowerSums(*rest) if continued else None
    sums, count = chunked(q, k, v, gates, real, before, power, size)
    return normalize(sums, count, bool(denominator)).contiguous()


def _empty(tensors: Sequence[Tensor], settings: Sequence[int]) -> Tensor:
    q, _, v, *_ = tensors
    return q.new_empty((*q.shape[:3], v.shape[3] - settings[2]))


@define_operator(
    "hf_seqmix::power_attention_gradients_v1",
    "(Tensor upstream, Tensor[] tensors, int[] settings) -> Tensor[]",
    fake=lambda upstream, tensors, settings: [x.new_empty(x.shape) for x in tensors],
)
def _gradients(upstream: Tensor, tensors: Sequence[Tensor], settings: Sequence[int]) -> list[Tensor]:
    with recorded():
        leaves = [x.detach().requires_grad_() for x in tensors]
        found = torch.autograd.grad(_compute(leaves, settings), leaves, upstream, materialize_grads=True)
    return [x.contiguous() for x in found]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.settings = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(traced: bool, ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
    return list(_gradients(traced, upstream, list(ctx.saved_tensors), ctx.settings)), None


@differentiable_operator(
    "hf_seqmix::power_attention_v1",
    "(Tensor[] tensors, int[] settings) -> Tensor",
    fake=_empty,
    save=_save,
    backward=_differentiate,
    once=True,
)
def power_attention_operator(tensors: Sequence[Tensor], settings: Sequence[int]) -> Tensor:
    """Compute power attention as one node of a graph, whose backward pass computes it again; see `_compute`."""
    return _compute(tensors, settings)
