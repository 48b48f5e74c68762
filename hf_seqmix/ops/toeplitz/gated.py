"""Toeplitz products with a gate, y = u * (T x), in one step."""

from typing import Any

import torch
from torch import Tensor

from ..common.backend import implementation, kernel_module, route
from ..common.fft import compute_dtype
from .derivatives import toeplitz_gradients
from .product import toeplitz_matmul

__all__ = ["gated_toeplitz_matmul"]


def gated_toeplitz_matmul(x: Tensor, kernel: Tensor, gate: Tensor, causal: bool = True) -> Tensor:
    """Multiply each channel of `x` by its Toeplitz matrix and the result by a gate: y[b, c, i] = u[b, c, i] (T_c x[b, c])[i].

    Where tiles compute the product (see `crossovers.py`), the gate is applied before anything is written, and backward keeps
    `x`, `kernel` and `gate` but not T x, which it computes again for the gradient of the gate: itself such a product, with
    the upstream gradient as its gate. Elsewhere this is `gate * toeplitz_matmul(x, kernel, causal)`. It pays where all three
    have positions contiguous, as the tiles want them; `GatedToeplitzUnit`, whose projections leave channels contiguous, would
    have to transpose its gate for it, and multiplies instead.

    Args:
        x: (batch, channels, length) of any floating dtype.
        kernel: as `toeplitz_matmul` takes it.
        gate: u, (batch, channels, length) in the dtype of `x`.
        causal: whether outputs see the past and the present only.

    Returns:
        (batch, channels, length) in the dtype of `x`.

    Raises:
        ValueError: for shapes, dtypes or devices that do not fit.
    """
    if gate.shape != x.shape or gate.dtype != x.dtype or gate.device != x.device:
        raise ValueError(
            f"gate is {tuple(gate.shape)} {gate.dtype} on {gate.device}; it must be as x is: {tuple(x.shape)} {x.dtype} on "
            f"{x.device}."
        )
    if route(x) != "eager" or x.numel() == 0 or _implementation(x, causal) != "tiles":
        return gate * toeplitz_matmul(x, kernel, causal)
    return _Gated.apply(x, kernel.to(compute_dtype(x.dtype)), gate, causal)


def _implementation(x: Tensor, causal: bool) -> str:
    return implementation("toeplitz_causal" if causal else "toeplitz_bidirectional", x, x.shape[-1])


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, gate: Tensor, causal: bool) -> Tensor:
        ctx.save_for_backward(x, kernel, gate)
        ctx.causal = causal
        return kernel_module("toeplitz.kernels.tiles").toeplitz_tiles(x, kernel, causal, gate=gate)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel, gate = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx = dkernel = None
        if needs[0] or needs[1]:
            dx, dkernel = toeplitz_gradients(g * gate, x, kernel, ctx.causal)
        dgate = _Gated.apply(x, kernel, g, ctx.causal) if needs[2] else None
        return dx if needs[0] else None, dkernel if needs[1] else None, dgate, None
