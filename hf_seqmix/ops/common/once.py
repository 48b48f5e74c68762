"""Gradients that cannot be differentiated again, and an error wherever somebody tries.

`once_differentiable` of torch refuses too little: `torch.autograd.grad` of some inputs leaves the refusing node out,
as no path leads from that node to them. A second derivative then lacks terms, without a word. Here the gradients are
tied to all that they depend on.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["once", "ties"]

Formula = Callable[..., tuple[Any, ...]]


def once(backward: Formula) -> Formula:
    """Return the `backward` of a function of autograd, whose gradients refuse to be differentiated again.

    The function saves the inputs that its gradients depend on, or `ties` to them, by `save_for_backward`.

    Args:
        backward: (ctx, *upstream) -> gradients of all arguments.
    """

    def formula(ctx: Any, *upstream: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            gradients = backward(ctx, *upstream)
        if not torch.is_grad_enabled():  # no `create_graph`
            return gradients
        sources = [x for x in (*upstream, *ctx.saved_tensors) if isinstance(x, Tensor) and x.requires_grad]
        given = [x for x in gradients if isinstance(x, Tensor)]
        if not (sources and given):
            return gradients
        tied = iter(_Refuse.apply(len(given), *given, *sources))
        return tuple(next(tied) if isinstance(x, Tensor) else x for x in gradients)

    return formula


def ties(*tensors: Tensor) -> list[Tensor]:
    """Return empty tensors that depend on others, to be saved in their place where these would take memory."""
    return [x[..., :0].clone() for x in tensors if x.requires_grad and torch.is_grad_enabled()]


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        raise RuntimeError(
            "second derivatives are not implemented for an operation of this model: its gradients can be computed "
            "once. For products with the Hessian take differences of first derivatives, or a model without IPA mixers "
            "and copy heads."
        )
