"""How IPA's column operation is computed and differentiated; `column.py` is its public face and holds the formula.

The backward pass computes the kernels again, block by block, so that neither pass has more than a block of them in
memory.
"""

import torch
from torch import Tensor

from ..common.dispatch import cast
from .problem import Block, ColumnProblem
from .single_query import SingleQuery

__all__ = ["column_gradients", "column_product", "column_step"]

_WHOLE = Block(slice(None), slice(None), 0)


def _over_keys(problem: ColumnProblem | SingleQuery, block: Block, logits: Tensor, which: int) -> Tensor:
    """Return the softmax over visible keys, 0 where nothing is visible; logits are lost.

    Args:
        problem: the arguments.
        block: the block.
        logits: of the block.
        which: scratch memory that holds neither the logits nor what is still needed.
    """
    problem.hide(block, logits, float("-inf"))
    if problem.all_see:
        return torch.softmax(logits, dim=-1, out=problem.scratch(block, which))
    top = logits.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    weights = logits.sub_(top).exp_()
    return weights.div_(weights.sum(dim=-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).tiny))


def _weights(problem: ColumnProblem | SingleQuery, block: Block) -> tuple[Tensor, Tensor | None]:
    """Return the weights of the values, and the divisor of the product, (rows or 1, centers or 1, queries, 1)."""
    logits = problem.logits(block)
    divisor: Tensor | None = None
    if problem.norm == "p":
        weights, divisor = torch.softmax(logits, dim=1, out=problem.scratch(block, 1)), problem.count(block)
        problem.hide(block, weights, 0)
    elif problem.norm == "none":
        weights = problem.hide(block, logits, 0)
    elif problem.norm == "mix":
        assert problem.mix is not None
        over_centers = problem.hide(block, torch.softmax(logits, dim=1, out=problem.scratch(block, 1)), 0)
        over_keys = _over_keys(problem, block, logits, 2)
        divisor = problem.count(block)
        weights = over_centers.mul_(1 - problem.mix).add_(over_keys.mul_(problem.mix * divisor))
    elif problem.norm == "prod":
        logits = torch.log_softmax(logits, dim=1, out=problem.scratch(block, 1)).add_(logits)
        weights = _over_keys(problem, block, logits, 0)
    else:
        weights = _over_keys(problem, block, logits, 1)
    if problem.coupling is not None:
        weights.mul_(problem.entries(block, problem.coupling, problem.coupling_window))
    return weights, divisor


def column_product(problem: ColumnProblem) -> Tensor:
    """Compute the column operation.

    Returns:
        (batch, centers, n, k) in the dtype of the values.
    """
    value = problem.value
    out = value.new_empty((problem.batch, problem.centers, problem.n, value.shape[-1]))
    if value.dtype == torch.float16:
        # Sums over many keys, which are divided afterwards, exceed its largest number, 65504.
        value = value.to(problem.dtype)
    for block in problem.blocks():
        weights, divisor = _weights(problem, block)
        product = weights.to(value.dtype).flatten(0, 1) @ value[block.rows, :, : block.keys].flatten(0, 1)
        product = product.view(weights.shape[:3] + product.shape[-1:])
        if divisor is not None:
            product = product.to(problem.dtype).div_(divisor)
        out[block.rows, :, block.queries] = product
    return out.flip(2)


def column_step(problem: SingleQuery) -> Tensor:
    """Compute the column operation for one query a row.

    Returns:
        (batch, centers, 1, k) in the dtype of the values.
    """
    weights, divisor = _weights(problem, _WHOLE)
    value = problem.value.to(problem.dtype) if problem.value.dtype == torch.float16 else problem.value
    product = cast(weights, value.dtype) @ value
    if divisor is not None:
        product = cast(product, problem.dtype).div_(divisor)
    return cast(product, problem.value.dtype)


def column_gradients(
    problem: ColumnProblem, upstream: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of query, key, value, bias, coupling and share; of the last three, None for an absent one.

    Args:
        problem: the arguments.
        upstream: (batch, centers, n, k).
    """
    dtype = problem.dtype
    g = upstream.to(dtype).flip(2)
    value = problem.value.to(dtype)
    dquery = torch.empty_like(problem.query)
    dkey, dvalue = torch.zeros_like(problem.key), torch.zeros_like(value)
    bias, coupling = problem.bias, problem.coupling
    bias_seen = None if bias is None else _gradient_memory(bias, problem.bias_window, dtype)
    coupling_seen = None if coupling is None else _gradient_memory(coupling, problem.coupling_window, dtype)
    dmix = None if problem.mix is None else torch.zeros_like(problem.mix)
    for block in problem.blocks():
        rows, queries, keys = block
        over_centers, over_keys, kernels = _kernels(problem, block)
        dlogits = problem.scratch(block, 1, wide=True)
        some = g[rows, :, queries]
        if problem.norm == "p":
            some = some / problem.count(block)
        flat_value = value[rows, :, :keys].flatten(0, 1)
        torch.bmm(some.flatten(0, 1), flat_value.transpose(1, 2), out=dlogits.flatten(0, 1))
        weights = kernels
        if coupling is not None:
            assert coupling_seen is not None
            entries = problem.entries(block, coupling, problem.coupling_window)
            relative = problem.coupling_window is not None
            if relative:
                pairs = _wide(dlogits)
                torch.mul(dlogits, kernels, out=pairs)
            else:
                pairs = dlogits * kernels
            problem.table_gradient(block, coupling, coupling_seen, pairs, relative)
            weights = kernels * entries
            dlogits.mul_(entries)
        dvalue_part = dvalue[rows, :, :keys].flatten(0, 1)
        dvalue_part.baddbmm_(weights.flatten(0, 1).transpose(1, 2), some.flatten(0, 1))
        _logit_gradients(problem, block, over_centers, over_keys, dlogits, dmix)
        if bias is not None:
            assert bias_seen is not None
            problem.table_gradient(block, bias, bias_seen, dlogits, problem.bias_window is not None)
        flat = dlogits.flatten(0, 1)
        part = torch.bmm(flat, problem.key[rows, :, :keys].flatten(0, 1))
        dquery[rows, :, queries] = part.view(dlogits.shape[:3] + part.shape[-1:])
        dkey_part = dkey[rows, :, :keys].flatten(0, 1)
        dkey_part.baddbmm_(flat.transpose(1, 2), problem.query[rows, :, queries].flatten(0, 1))
    dbias = None if bias is None or bias_seen is None else _fold(problem, bias, bias_seen, problem.bias_window)
    dcoupling = None
    if coupling is not None and coupling_seen is not None:
        dcoupling = _fold(problem, coupling, coupling_seen, problem.coupling_window)
    return dquery.flip(2).mul_(problem.scale), dkey, dvalue, dbias, dcoupling, dmix


def _gradient_memory(table: Tensor, window: Tensor | None, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(table, dtype=dtype) if window is None else torch.zeros_like(window)


def _wide(like: Tensor) -> Tensor:
    """Return new memory of the shape of wide scratch memory, and as wide, zeros beyond."""
    return like.new_zeros((*like.shape[:3], like.shape[3] + like.shape[2]))[..., : like.shape[3]]


def _fold(problem: ColumnProblem, table: Tensor, seen: Tensor, window: Tensor | None) -> Tensor:
    """Return the gradient of a table from that of its window, whose ends are many offsets of one entry."""
    if window is None:
        return seen
    gradient = torch.zeros_like(table, dtype=seen.dtype)
    return gradient.index_add_(1, problem.window_index(table), seen)


def _kernels(problem: ColumnProblem, block: Block) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return the softmax over centers and over keys, or None, and the kernels, not divided by the count."""
    logits = problem.logits(block)
    norm = problem.norm
    if norm == "none":
        return None, None, problem.hide(block, logits, 0)
    if norm == "p":
        over_centers = problem.hide(block, torch.softmax(logits, dim=1, out=problem.scratch(block, 2)), 0)
        return over_centers, None, over_centers
    if norm == "j":
        over_keys = _over_keys(problem, block, logits, 2)
        return None, over_keys, over_keys
    over_centers = torch.softmax(logits, dim=1)
    if norm == "prod":
        logits = torch.log_softmax(logits, dim=1, out=problem.scratch(block, 2)).add_(logits)
        over_keys = _over_keys(problem, block, logits, 0)
        return over_centers, over_keys, over_keys
    assert problem.mix is not None
    problem.hide(block, over_centers, 0).div_(problem.count(block))
    over_keys = _over_keys(problem, block, logits, 2)
    return over_centers, over_keys, torch.lerp(over_centers, over_keys, problem.mix)


def _logit_gradients(
    problem: ColumnProblem,
    block: Block,
    over_centers: Tensor | None,
    over_keys: Tensor | None,
    gradient: Tensor,
    dmix: Tensor | None,
) -> None:
    """Turn the gradient of the kernels into that of the logits, in place; add that of the share to `dmix`."""
    norm = problem.norm
    if norm == "none":
        problem.hide(block, gradient, 0)
    elif norm == "p":
        assert over_centers is not None  # 0 where hidden, and so is what follows
        gradient.sub_((gradient * over_centers).sum(dim=1, keepdim=True)).mul_(over_centers)
    elif norm in ("j", "prod"):
        assert over_keys is not None
        gradient.mul_(over_keys)
        gradient.sub_(over_keys * gradient.sum(dim=-1, keepdim=True))
        if norm == "prod":
            assert over_centers is not None
            shared = gradient.sum(dim=1, keepdim=True)
            gradient.mul_(2).sub_(over_centers.mul_(shared))
    else:
        assert over_centers is not None and over_keys is not None and problem.mix is not None and dmix is not None
        dmix += ((over_keys - over_centers) * gradient).sum()
        # The softmax over centers has been divided by the count, which its gradient is multiplied by once.
        among_centers = gradient * over_centers
        among_centers.sub_(over_centers.mul_(problem.count(block)) * among_centers.sum(dim=1, keepdim=True))
        gradient.mul_(over_keys)
        gradient.sub_(over_keys * gradient.sum(dim=-1, keepdim=True))
        gradient.mul_(problem.mix).add_(among_centers.mul_(1 - problem.mix))
