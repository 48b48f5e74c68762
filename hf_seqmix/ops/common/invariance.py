"""Results that do not depend, to the last bit, on what else is in the batch or in the call.

The same numbers are summed in another order when a library of matrix products picks its kernel by the number of rows,
a transform has the length of the longest row, a sum over positions is cut where a chunk ends, or a vectorized function
leaves the end of its input to another code path. Within `batch_invariant()` the order is fixed:

* `x @ weight` is computed for 64 rows at a time, filled up with zeros: one kernel, whatever the number of rows.
* Products of batches of matrices, softmaxes, sums and running sums add up term by term, in the order of positions. A
  term of zero, such as a pad, changes nothing, and what follows a position cannot reach it.
* Causal Toeplitz products and linear attention are such sums, too, O(n^2). A bidirectional product, by a transform,
  has each sequence in a row of its own, as long as it is.
* Functions with a path for the end of the input get one that has no end: zeros follow it.

Source of the problem and of the first remedy: He 2025, "Defeating Nondeterminism in LLM Inference" (Thinking Machines
Lab), with kernels for GPUs. Here everything is made of ordinary operations of torch.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["batch_invariant", "is_batch_invariant"]

_ROWS = 64
"""Rows of a product with a weight that are computed at a time."""
_NUMBERS = 256
"""Elementwise functions get a multiple of so many numbers a thread: more than one step of any vector unit."""

aten = torch.ops.aten
_state = threading.local()


def is_batch_invariant() -> bool:
    """Return whether the calling thread is within `batch_invariant()`; never so while a graph is traced."""
    return not torch.compiler.is_compiling() and getattr(_state, "depth", 0) > 0


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Compute a token's numbers the same, bit for bit, however the token comes, in this thread.

    Whatever the batch, the padding, the packing, and the chunks of a prompt; and decoding with a cache gives what one
    call on the whole text gives.

        with batch_invariant():
            logits = model(ids, attention_mask=mask).logits

    For models in evaluation, and eager calls only: a compiled graph has its own kernels. A cache must be filled within
    the context. The preallocated running sums of polynomial mixers are the exception: they sum up chunk by chunk, and
    chunks agree to rounding. `scripts/measured/invariance` has what the context costs.

    `torch.use_deterministic_algorithms` does not turn this on: it asks for less, the same result of the same call. The
    README of `ops` says which operations need it for that.

    Raises:
        RuntimeError: while a graph is traced.
    """
    if torch.compiler.is_compiling():
        raise RuntimeError("batch_invariant() is for eager calls, but a graph is traced: call the model uncompiled.")
    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        with sdpa_kernel(SDPBackend.MATH), _FixedOrder():
            yield
    finally:
        _state.depth -= 1


class _FixedOrder(TorchDispatchMode):
    """Computes the operations of `_RULES` by these, and all others as they are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _RULES.get(func, func)(*args, **(kwargs or {}))


def _mm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    rows = x.shape[0]
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % _ROWS))
    tiles = [aten.mm(tile, weight) for tile in padded.split(_ROWS)] if rows else [aten.mm(x, weight)]
    y = torch.cat(tiles)[:rows]
    return y if out is None else out.copy_(y)


def _addmm(bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _added(bias, _mm(x, weight), beta, alpha)


def _added(start: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    product = product if alpha == 1 else product * alpha
    if beta == 0:  # the start may be memory that nothing has written
        return product
    return product + (start if beta == 1 else start * beta)


def _bmm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    dtype = torch.promote_types(a.dtype, torch.float32)
    left, right = a.to(dtype), b.to(dtype)
    total = left.new_zeros((*left.shape[:2], right.shape[2]))
    term = torch.empty_like(total)
    for k in range(left.shape[2]):
        # In two steps: one fused instruction rounds once, and not every path has it.
        torch.mul(left[:, :, k : k + 1], right[:, k : k + 1], out=term)
        total.add_(term)
    return total.to(a.dtype) if out is None else out.copy_(total)


def _baddbmm(
    start: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    y = _added(start, _bmm(a, b), beta, alpha)
    return y if out is None else out.copy_(y)


def _sum(
    x: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    if not x.is_floating_point() or dim is None or len(dim) != 1 or x.ndim == 0:
        y = aten.sum.dim_IntList(x, dim, keepdim, dtype=dtype)
    else:
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        total = torch.zeros_like(values.select(dim[0], 0)) if x.shape[dim[0]] else values.sum(dim[0])
        for term in values.unbind(dim[0]):
            total.add_(term)
        y = (total.unsqueeze(dim[0]) if keepdim else total).to(dtype or x.dtype)
    return y if out is None else out.copy_(y)


def _cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    values = x if dtype is None else x.to(dtype)
    if not values.is_floating_point() or values.numel() == 0 or values.ndim == 0:
        return aten.cumsum(values, dim)
    first, *others = values.to(torch.promote_types(values.dtype, torch.float32)).unbind(dim)
    sums = [first]
    for term in others:
        sums.append(sums[-1] + term)
    return torch.stack(sums, dim=dim).to(values.dtype)


def _mean(x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    # Over channels, whose number is the same in every call: the order depends on how they lie in memory.
    return aten.mean.dim(x.contiguous(), dim, keepdim, dtype=dtype)


def _exponentials(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return x - max, its exponential and the sum of that, in float32 (float64)."""
    values = x.to(torch.promote_types(x.dtype, torch.float32))
    # Not minus infinity, where all terms are.
    values = values - values.amax(dim=dim, keepdim=True).clamp(min=torch.finfo(values.dtype).min)
    weights = _exp(values)
    return values, weights, _sum(weights, [dim], True)


def _softmax(x: Tensor, dim: int, half_to_float: bool = False, *, out: Tensor | None = None) -> Tensor:
    _, weights, total = _exponentials(x, dim)
    y = (weights / total).to(total.dtype if half_to_float else x.dtype)
    return y if out is None else out.copy_(y)


def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    _, weights, total = _exponentials(x, dim)
    return (weights / total.clamp(min=torch.finfo(total.dtype).tiny)).to(dtype or x.dtype)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool = False, *, out: Tensor | None = None) -> Tensor:
    if dim % x.ndim == x.ndim - 1:  # over a vocabulary, whose size is the same in every call
        y = aten._log_softmax(x, dim, half_to_float)
    else:
        values, _, total = _exponentials(x, dim)
        y = (values - _log(total)).to(total.dtype if half_to_float else x.dtype)
    return y if out is None else out.copy_(y)


def _log_sum_exp(x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    if len(dim) != 1:
        return aten.logsumexp.default(x, dim, keepdim)
    values = x.to(torch.promote_types(x.dtype, torch.float32))
    largest = values.amax(dim=dim[0], keepdim=True).clamp(min=torch.finfo(values.dtype).min)
    y = (largest + _log(_sum(_exp(values - largest), [dim[0]], True))).to(x.dtype)
    return y if keepdim else y.squeeze(dim[0])


def _pointwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make of an elementwise function one that computes the last elements as it does the others."""

    def rule(x: Tensor, *args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:
        multiple = _NUMBERS * torch.get_num_threads()
        padded = x.new_zeros(-(-x.numel() // multiple) * multiple)
        padded[: x.numel()] = x.reshape(-1)
        result = function(padded, *args, **kwargs)[: x.numel()].view(x.shape)
        return result if out is None else out.copy_(result)

    return rule


def _in_place(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, *args, **kwargs: x.copy_(rule(x, *args, **kwargs))


_exp, _log, _log1p = (_pointwise(function.default) for function in (aten.exp, aten.log, aten.log1p))


def _log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    largest = torch.maximum(a, b)
    # The difference of equal infinities is no number.
    return torch.where(largest.isinf(), largest, largest + _log1p(_exp(-(a - b).abs())))


def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    decay = _exp(-x.abs())
    return x.clamp(max=0) - _log1p(decay), decay  # the second is for backward, as the library of torch keeps it


_RULES: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _mm,
    aten.mm.out: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
    aten.bmm.out: _bmm,
    aten.baddbmm.default: _baddbmm,
    aten.baddbmm.out: _baddbmm,
    aten.baddbmm_.default: lambda x, a, b, **kwargs: _baddbmm(x, a, b, out=x, **kwargs),
    aten.sum.dim_IntList: _sum,
    aten.sum.IntList_out: _sum,
    aten.cumsum.default: _cumsum,
    aten._softmax.default: _softmax,
    aten._softmax.out: _softmax,
    aten.softmax.int_out: lambda x, dim, dtype=None, *, out: _softmax(x, dim, out=out),
    aten._safe_softmax.default: _safe_softmax,
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax.out: _log_softmax,
    aten.log_softmax.int_out: lambda x, dim, dtype=None, *, out: _log_softmax(x, dim, out=out),
    aten.mean.dim: _mean,
    aten.logaddexp.default: _log_add_exp,
    aten.logsumexp.default: _log_sum_exp,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.pow.Tensor_Scalar: _pointwise(aten.pow.Tensor_Scalar),
}
for _name in ("cos", "exp", "gelu", "log", "sigmoid", "silu", "sin", "tanh"):
    _rule = _pointwise(getattr(aten, _name).default)
    _RULES[getattr(aten, _name).default] = _RULES[getattr(aten, _name).out] = _rule
    _RULES[getattr(aten, _name + "_").default] = _in_place(_rule)
