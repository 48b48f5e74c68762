"""Root-mean-square normalization in few passes, which keeps its output for backward and not its input."""

from typing import Any

import torch
from torch import Tensor

from .dispatch import Route, cast, dispatch

__all__ = ["rms_normalize"]


def rms_normalize(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """Compute y = w x / sqrt(mean(x^2) + eps) over the last dimension.

    In float32 (float64 for float64 `x`). Backward needs y, which the linear layer that follows keeps in any case, and
    one number a row.

    Args:
        x: (..., channels) of any floating dtype.
        eps: added to the mean square.
        weight: w, (channels,) in the dtype of `x`; None for ones.

    Returns:
        (..., channels) in the dtype of `x`.
    """
    route, dtype = dispatch(x)
    if route == "eager" and not torch.is_grad_enabled():
        # The same in one call, which rounds half precision once where there is a weight. The order of a mean may
        # depend on how channels lie in memory.
        return cast(torch.rms_norm(x.contiguous(), x.shape[-1:], weight, eps), x.dtype)
    y = _RMSNormalize.apply(x, eps, dtype)[0] if route == "eager" else _formula(x, eps, route, dtype)
    return y if weight is None else y * weight


def _formula(x: Tensor, eps: float, route: Route, dtype: torch.dtype) -> Tensor:
    values = x.to(dtype)
    square = values.square().mean(dim=-1, keepdim=True)
    if eps > 0 and route == "real":
        # In units of eps: converters drop the addition of so small a number, and a zero vector becomes NaN.
        return (values * (torch.rsqrt(square / eps + 1) * eps**-0.5)).to(x.dtype)
    return (values * torch.rsqrt(square + eps)).to(x.dtype)


class _RMSNormalize(torch.autograd.Function):
    """x -> (y, r). Since r is a result, the derivative is a formula in results alone, to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        values = x.to(dtype)
        inverse = values.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()  # (..., 1)
        y = (values * inverse).to(x.dtype)
        ctx.save_for_backward(y, inverse)
        ctx.set_materialize_grads(False)
        return y, inverse

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, g_inverse: Tensor | None) -> tuple[Tensor | None, None, None]:
        y, inverse = ctx.saved_tensors
        values = y.to(inverse.dtype)
        if g is not None and g_inverse is None and not torch.is_grad_enabled():
            upstream = g.to(inverse.dtype)
            dx = upstream * values
            mean = dx.mean(dim=-1, keepdim=True)
            torch.addcmul(upstream, values, mean, value=-1, out=dx)
            return dx.mul_(inverse).to(y.dtype), None, None
        dx = torch.zeros_like(values)
        if g is not None:
            upstream = g.to(inverse.dtype)
            dx = inverse * (upstream - values * (upstream * values).mean(dim=-1, keepdim=True))
        if g_inverse is not None:  # from a second derivative
            dx = dx - g_inverse * inverse.square() * values / y.shape[-1]
        return dx.to(y.dtype), None, None
