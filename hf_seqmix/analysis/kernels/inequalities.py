r"""Both sides of what theorems 3 and 4 and proposition 4 of Moreno, Mei, Walters 2023 (arXiv 2305.09028) claim.

A causal kernel k with the real response R has the even part $e(t) = \frac{1}{2\pi} \int R(\omega) \cos(\omega t)
d\omega$, k(0) at 0 and k(|t|) / 2 elsewhere. They claim $|e(t)| \le \|R^{(N)}\|_1 / (2 \pi |t|^N)$ for each N where
the activation is smooth (proposition 4, theorem 3), and a finite $\sum_t e(t)^2$, which is $\|R\|_2^2 / 2 \pi$
(theorem 4). The proofs integrate by parts N times over the circle, so $R$ has to be N times differentiable there: an
encoder of $\omega$ on $[0, \pi]$ that is mirrored has a kink at both ends, whatever its activation.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...models.toeplitz.encoder import RelativePositionEncoder
from .decay import kernel_taps
from .response_tails import response_at

__all__ = ["INEQUALITY_COLUMNS", "inequality_rows", "response_derivatives"]

INEQUALITY_COLUMNS = {
    "frequency_input": "input",
    "activation": "activation",
    "order": "N",
    "left_over_right": "left side / right side:.2g",
    "left_over_right_worst": "worst:.2g",
    "share_that_hold": "kernels that it holds for:.1%",
    "square_sum_ratio": "squares of taps / of response:.6f",
}
"""Columns of `inequality_rows` for `markdown_table`."""

_LAGS = 1024
_FFT_LENGTH = 2**16  # of kernels
_POINTS = 2**10  # of the integral, over [0, pi]
_ROUNDING = 1e-13  # of a kernel's largest tap, below which taps are rounding of the transform


def response_derivatives(
    encoder: RelativePositionEncoder, frequencies: Tensor, frequency_input: str, order: int
) -> Tensor:
    """Return d^n R / dw^n of a causal encoder for n from 0 to N, by automatic differentiation.

    Args:
        encoder: in float64.
        frequencies: (points,), in [0, pi]; derivatives are those inside of it, without kinks.
        frequency_input: "omega" or "cosine".
        order: N, from 0.

    Returns:
        (N + 1, channels, points).

    Raises:
        ValueError: `order` is below 0.
    """
    if order < 0:
        raise ValueError(f"order is {order}; give 0 or more.")

    leaf = frequencies.detach().requires_grad_()
    channels = []
    for response in response_at(encoder, leaf, frequency_input)[0]:
        found = [response]
        for left in reversed(range(order)):
            # A value depends on its own frequency alone, so the gradient of the sum is the derivative.
            found += torch.autograd.grad(found[-1].sum(), leaf, create_graph=left > 0, retain_graph=True)
        channels.append(torch.stack(found).detach())
    return torch.stack(channels, 1)


def inequality_rows(
    encoders: Sequence[RelativePositionEncoder],
    frequency_input: str,
    orders: Sequence[int] = (0, 1, 2, 3, 4),
) -> list[dict[str, Any]]:
    r"""Return a row for each N: the largest $2 \pi |t|^N |e(t)| / \|R^{(N)}\|_1$ to lag 1,024, claimed to be <= 1.

    Taps below 1e-13 of a kernel's largest are left out as rounding. The norm is an integral over the circle by the
    midpoint rule.

    Args:
        encoders: causal ones, in float64.
        frequency_input: "omega" or "cosine".
        orders: N.

    Returns:
        Rows with `order`, `left_over_right` (median over encoders and channels), `left_over_right_worst`,
        `share_that_hold`, and `square_sum_ratio`, the median of sum over t of e(t)^2 over |R|_2^2 / 2 pi.
    """
    middles = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) * math.pi / _POINTS
    t = torch.arange(1, _LAGS + 1, dtype=torch.float64)
    whole = [kernel_taps(encoder, frequency_input, _FFT_LENGTH) for encoder in encoders]
    even = [torch.cat([taps[:, :1], taps[:, 1:] / 2], 1) for taps in whole]  # e, at lags from 0 on
    derivatives = [response_derivatives(encoder, middles, frequency_input, max(orders)) for encoder in encoders]
    squares = []
    for found, taps in zip(derivatives, even, strict=True):
        total = taps[:, 0].square() + 2 * taps[:, 1:].square().sum(1)
        squares.append(total / found[0].square().mean(1))  # |R|_2^2 / 2 pi is the mean over the circle
    rows = []
    for order in orders:
        largest = []
        for found, taps in zip(derivatives, even, strict=True):
            norm = 2 * math.pi * found[order].abs().mean(1)
            tail = taps[:, 1 : _LAGS + 1].abs()
            tail = tail.where(tail > _ROUNDING * taps.abs().amax(1, keepdim=True), 0.0)
            largest.append((2 * math.pi * tail * t**order).amax(1) / norm)
        pooled = torch.cat(largest)
        rows.append(
            {
                "frequency_input": frequency_input,
                "order": order,
                "encoders": len(encoders),
                "left_over_right": pooled.median().item(),
                "left_over_right_worst": pooled.max().item(),
                "share_that_hold": (pooled <= 1 + 1e-9).double().mean().item(),
                "square_sum_ratio": torch.cat(squares).median().item(),
            }
        )
    return rows
