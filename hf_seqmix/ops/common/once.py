"""Gradients that cannot be differentiated again, and an error wherever somebody tries.

`once_differentiable` of torch refuses too little: `torch.autograd.grad` of some inputs leaves the refusing node out,
as no path leads from that node to them. A second derivative then lacks terms, without a word. Here the gradients are
tied to all that they depend on.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["once", "tie"]

Formula = Callable[..., tuple[Any, ...]]


def once(backward: Formula) -> Formula:
    """Return the `backward` of a function of autograd, whose gradients refuse to be differentiated again.

    The function saves the inputs that its gradients depend on, or a `tie` to them, by `save_for_backward`.

    Args:
        backward: (ctx, *upstream) -> gradients of all arguments.
    """

    def formula(ctx: Any, *upstream: Any) -> tuple[Any, ...]:
        if not torch.is_grad_enabled():  # no `create_graph`
            return backward(ctx, *upstream)
        read = _Read(ctx)
        with torch.no_grad():
            gradients = backward(read, *upstream)
        sources = [x for x in (*upstream, *read.saved_tensors) if isinstance(x, Tensor) and x.requires_grad]
        given = [x for x in gradients if isinstance(x, Tensor)]
        if not (sources and given):
            return gradients
        tied = iter(_Refuse.apply(len(given), *given, *sources))
        return tuple(next(tied) if isinstance(x, Tensor) else x for x in gradients)

    return formula


def tie(*tensors: Tensor) -> Tensor:
    """Return an empty tensor that depends on others, to be saved in their place where these would take memory."""
    empty: Tensor = _Tie.apply(*tensors)
    return empty


class _Read:
    """The context of a backward pass whose saved tensors are read once, which checkpoints ask for."""

    def __init__(self, ctx: Any) -> None:
        self.ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return tensors[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor | None) -> Any:
        return (None,) * len(ctx.needs_input_grad)


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in tensors[:count])  # not views, which could not be changed in place

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        raise RuntimeError(
            "second derivatives are not implemented for an operation of this model: IPA's, the sum of a copy head, or "
            "the continuation of a cache. For products with the Hessian take differences of first derivatives, or a "
            "model without these and calls without a cache."
        )
