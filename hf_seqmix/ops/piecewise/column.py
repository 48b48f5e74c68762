"""IPA's column operation: affine maps of all visible tokens, weighted by kernels that are normalized over centers.

    y[b, p, l] = 1 / c[l] sum_j K[p, l, j] a[p, l, j] v[b, p, j]

    K = softmax over p of S: the center normalization, by which sum_p K[p, l, j] = 1
    S[p, l, j] = q[p, l] . k[p, j] + t[p, l - j]

v are the tokens after the affine maps of rank k, and a is the coupling, which scales a map by the offset. c[l] is the
number of visible tokens: the position l, counted from 1, of a causal row without pads.

Departure from the paper: the factor 1 / c[l], which the expansion around center points does not have. Along equal
tokens the expansion adds up l equal terms at position l, so that the norms of its outputs are 1, 2, 3, 4. With the
factor they are 1, 1, 1, 1. So the operation is not the literal form of the expansion but a mean over tokens, whose
size does not grow with the position.

`blocks.py` says how the operation is computed.
"""

from typing import Any

import torch
from torch import Tensor

from ..common.dispatch import ORDINARY, check_real, dispatch, without_autocast
from ..common.operator import define_operator, differentiable_operator
from .blocks import column_gradients, column_product, column_step
from .problem import ColumnProblem
from .single_query import SingleQuery
from .weights import piecewise_weights

__all__ = ["KERNEL_NORMS", "piecewise_column", "piecewise_column_dense"]

KERNEL_NORMS = ("p", "j", "prod", "mix", "none")
"""What the kernels may be normalized over, see `piecewise_column`."""


def piecewise_column(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    coupling: Tensor | None = None,
    mix: Tensor | None = None,
    *,
    kernel_norm: str = "p",
    scale: float = 1.0,
    causal: bool = True,
    key_mask: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    visible: Tensor | None = None,
    block_bytes: int | None = None,
) -> Tensor:
    """Compute the column operation; the dense (batch, centers, queries, keys) never exists.

    With S[p, l, j] = scale q[p, l] . k[p, j] + t[p, l - j], R the softmax of S over centers p, and V[l] the visible
    keys:

    * "p": K = R, the sum divided by |V[l]|, a departure from the paper (see the top of this file). Kernels are
      normalized first and masked after: masked first, a hidden pair would be 0 / 0.
    * "j": K = softmax of S over the keys in V[l]: multi-head attention, a head a center. No division.
    * "prod": K = softmax over V[l] of S + log R: responsibilities times competition. No division.
    * "mix": K = mix softmax over V[l] of S + (1 - mix) R / |V[l]|.
    * "none": K = S. No division.

    Where neither positions nor `visible` are given, query i stands at the place of key N - n + i, so that N > n
    continues a history. Otherwise all three are given, and `visible` alone says what a query sees. Logits and kernels
    are in float32 (float64 for float64). Their product with the values is in the dtype of the values, and in float32
    for float16, which long sums would exceed. The division is in float32. Source: Shamsi, Hua, Williams 2023 (arXiv
    2306.12317). The paper does not publish the form of its kernels; "prod", "mix" and the biases are additions of this
    package.

    Args:
        query: (batch, centers, n, r), real numbers.
        key: (batch, centers, N, r).
        value: (batch, centers, N, k).
        bias: t, (centers, M) at offsets 0 to M - 1 when causal, else (centers, 2 M - 1) at offsets -(M - 1) to M - 1;
            offsets beyond are clamped to the outermost. None for no bias.
        coupling: a, laid out like `bias`. None for 1.
        mix: (1,), for the norm "mix".
        kernel_norm: one of `KERNEL_NORMS`.
        scale: factor on q . k.
        causal: whether keys after a query are hidden.
        key_mask: (batch, N) bool, False at keys that are hidden and not counted; not with positions.
        query_positions: (batch or 1, n) long, counted over real tokens.
        key_positions: (batch or 1, N) long.
        visible: (batch or 1, n, N) bool, what each query sees.
        block_bytes: bytes of logits to have in memory at a time; by default what suits the device.

    Returns:
        (batch, centers, n, k) in the dtype of `value`; 0 for a query that sees nothing. The result can be
        differentiated once.

    Raises:
        ValueError: for shapes that do not fit, an unknown norm, and positions without `visible` or the reverse.
    """
    tensors = (query, key, value, bias, coupling, mix, query_positions, key_positions, visible, key_mask)
    _check(tensors, kernel_norm, causal)
    options = (kernel_norm, float(scale), causal)
    route, _ = dispatch(query, key)
    if route in ORDINARY:
        return _plain(*tensors, *options)
    traced = route == "operator"
    if not traced and (query.numel() == 0 or key.shape[2] == 0 or value.numel() == 0):
        return value.new_zeros((*query.shape[:3], value.shape[3])) + sum(
            x.sum().to(value.dtype) * 0 for x in tensors[:6] if x is not None
        )
    y: Tensor = _column(traced, *tensors, *options, block_bytes)
    return y


def piecewise_column_dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    coupling: Tensor | None = None,
    mix: Tensor | None = None,
    *,
    scale: float = 1.0,
    block_bytes: int | None = None,
    **options: Any,
) -> Tensor:
    """Compute `piecewise_column` by its formula, with every kernel in memory: the definition.

    Takes and refuses what `piecewise_column` does; `block_bytes` has no effect.
    """
    places = (options.get(name) for name in ("query_positions", "key_positions", "visible", "key_mask"))
    tensors = (query, key, value, bias, coupling, mix, *places)
    _check(tensors, options.get("kernel_norm", "p"), options.get("causal", True))
    weights = piecewise_weights(query, key, bias, coupling, mix, scale=float(scale), **options)
    return weights.to(value.dtype) @ value


def _check(tensors: tuple[Tensor | None, ...], kernel_norm: str, causal: bool) -> None:
    query, key, value, bias, coupling, mix, query_positions, key_positions, visible, key_mask = tensors
    assert query is not None and key is not None and value is not None
    if kernel_norm not in KERNEL_NORMS:
        raise ValueError(f"kernel_norm is {kernel_norm!r}; it must be one of {', '.join(map(repr, KERNEL_NORMS))}.")
    if kernel_norm == "mix" and mix is None:
        raise ValueError("kernel_norm is 'mix', but its share `mix` is None: give a tensor of shape (1,).")
    check_real(query=query, key=key, value=value)
    fits = query.ndim == key.ndim == value.ndim == 4 and query.shape[:2] == key.shape[:2] == value.shape[:2]
    if not fits or query.shape[3] != key.shape[3] or key.shape[2] != value.shape[2]:
        shapes = [tuple(x.shape) for x in (query, key, value)]
        raise ValueError(
            "expected query (batch, centers, n, r), key (batch, centers, N, r) and value (batch, centers, N, k), got "
            f"{shapes[0]}, {shapes[1]} and {shapes[2]}."
        )
    if not torch.compiler.is_compiling() and query.shape[3] == 0:
        raise ValueError("queries and keys have no numbers: r must be at least 1.")
    given = (query_positions is not None) + (key_positions is not None) + (visible is not None)
    if given and (given < 3 or key_mask is not None):
        raise ValueError("query_positions, key_positions and visible go together, and without key_mask.")
    if not given and not torch.compiler.is_compiling() and not causal and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{query.shape[2]} queries and {key.shape[2]} keys: without positions, a bidirectional operation takes as "
            "many queries as keys."
        )
    if mix is not None and (mix.numel() != 1 or mix.ndim > 1):
        raise ValueError(f"mix has shape {tuple(mix.shape)}; it must be (1,).")
    for name, mask in (("key_mask", key_mask), ("visible", visible)):
        if mask is not None and mask.dtype != torch.bool:
            raise ValueError(f"{name} is {mask.dtype}; it must be bool.")
    if not torch.compiler.is_compiling():
        batch, length, total = query.shape[0], query.shape[2], key.shape[2]
        if not given and length > total:
            raise ValueError(f"there are {length} queries but {total} keys: without positions each has one beside it.")
        _check_shape("key_mask", key_mask, (batch, total), one_row=False)
        _check_shape("visible", visible, (batch, length, total), one_row=True)
        _check_shape("query_positions", query_positions, (batch, length), one_row=True)
        _check_shape("key_positions", key_positions, (batch, total), one_row=True)
    centers = query.shape[1]
    for name, table in (("bias", bias), ("coupling", coupling)):
        if table is None:
            continue
        fits = table.ndim == 2 and table.shape[0] == centers and table.shape[1] > 0
        allowed = f"({centers}, M)" if causal else f"({centers}, 2 M - 1)"
        if not fits or (not causal and table.shape[1] % 2 == 0):
            raise ValueError(f"{name} has shape {tuple(table.shape)}; it must be {allowed}.")


def _check_shape(name: str, given: Tensor | None, shape: tuple[int, ...], *, one_row: bool) -> None:
    """Raise a `ValueError` unless a tensor has a shape; with `one_row` a single row may stand for all."""
    if given is None or tuple(given.shape) == shape or (one_row and tuple(given.shape) == (1, *shape[1:])):
        return
    raise ValueError(f"{name} has shape {tuple(given.shape)}; it must be {shape}{' or one row' if one_row else ''}.")


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    coupling: Tensor | None,
    mix: Tensor | None,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    visible: Tensor | None,
    key_mask: Tensor | None,
    kernel_norm: str,
    scale: float,
    causal: bool,
) -> Tensor:
    """Compute the definition in the precision that is promised, with ordinary operations: O(n^2) in memory."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    with without_autocast(query.device.type):
        return piecewise_column_dense(
            query.to(dtype),
            key.to(dtype),
            value.to(dtype),
            None if bias is None else bias.to(dtype),
            None if coupling is None else coupling.to(dtype),
            None if mix is None else mix.to(dtype),
            kernel_norm=kernel_norm,
            scale=scale,
            causal=causal,
            key_mask=key_mask,
            query_positions=query_positions,
            key_positions=key_positions,
            visible=visible,
        ).to(value.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.options = inputs[10:]
    ctx.save_for_backward(*inputs[:10])


def _differentiate(traced: bool, ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    given = ctx.saved_tensors
    gradients = _gradients(traced, upstream, *given, *ctx.options)
    return (*(None if x is None else g for x, g in zip(given[:6], gradients, strict=True)), *[None] * 8)


def _empty_column(*args: Any) -> Tensor:
    query, value = args[0], args[2]
    return value.new_empty((query.shape[0], query.shape[1], query.shape[2], value.shape[3]))


# The schemas have the optional tensors.
@differentiable_operator(
    "hf_seqmix::piecewise_column_v3",
    "(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? coupling, Tensor? mix, Tensor? query_positions, "
    "Tensor? key_positions, Tensor? visible, Tensor? key_mask, str norm, float scale, bool causal, "
    "int? block_bytes) -> Tensor",
    fake=_empty_column,
    save=_save,
    backward=_differentiate,
    once=True,
)
def _column(*args: Any) -> Tensor:
    query, key = args[:2]
    if not (query.numel() and key.numel()):
        return _empty_column(*args).zero_()
    # Autocast would take the logits down to half precision.
    with without_autocast(query.device.type):
        # In decoding, what blocks need would cost more than the operation.
        return column_step(SingleQuery(*args)) if query.shape[2] == 1 else column_product(ColumnProblem(*args))


def _empty_gradients(upstream: Tensor, *args: Any) -> tuple[Tensor, ...]:
    # An operator returns tensors only: an empty one stands for None.
    return tuple(upstream.new_empty(0) if x is None else x.new_empty(x.shape) for x in args[:6])


@define_operator(
    "hf_seqmix::piecewise_column_gradients_v3",
    "(Tensor upstream, Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? coupling, Tensor? mix, "
    "Tensor? query_positions, Tensor? key_positions, Tensor? visible, Tensor? key_mask, str norm, float scale, "
    "bool causal, int? block_bytes) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_empty_gradients,
)
def _gradients(upstream: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Return the gradients of the first six arguments, in their dtypes; empty tensors for arguments that are None."""
    if upstream.numel() == 0 or args[0].numel() == 0:
        return tuple(gradient.zero_() for gradient in _empty_gradients(upstream, *args))
    with without_autocast(upstream.device.type):
        gradients = column_gradients(ColumnProblem(*args), upstream)
    return tuple(
        upstream.new_empty(0) if x is None or gradient is None else gradient.to(x.dtype).contiguous()
        for x, gradient in zip(args[:6], gradients, strict=True)
    )
