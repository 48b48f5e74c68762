"""Trials of the Triton kernels on the device at hand: a small problem, forward and backward, against the definitions.

The trials find a kernel that a compiler or a driver of another version gets wrong, before a training run does.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .common.crossovers import forced
from .common.dispatch import dispatch
from .polynomial.running_mean import running_product
from .polynomial.stages import linear_attention
from .short_convolution.product import short_conv, short_conv_dense
from .ski.interpolation import InducingGrid
from .ski.product import ski_matmul_dense, sparse_low_rank_matmul
from .toeplitz.product import toeplitz_matmul, toeplitz_matmul_dense

__all__ = ["fault"]

# Largest error relative to the root mean square of the exact result. Products in plain tf32 would exceed the last.
_BOUND = {torch.bfloat16: 4e-2, torch.float16: 6e-3, torch.float32: 1e-4}

_LONGEST = 16384  # of a product that is tried


class _Problem(NamedTuple):
    shapes: Sequence[tuple[int, ...]]
    """Shapes of the arguments; arguments of two dimensions are kernels, in float32."""
    call: Callable[..., Tensor]
    exact: Callable[..., Tensor]


def fault(
    op: str,
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    length: int,
    lengths: tuple[int, ...] = (97, 300),
) -> str | None:
    """Return what is wrong with an implementation, or None.

    Args:
        op: a key of `crossovers.IMPLEMENTATIONS`.
        name: one of its implementations.
        device: where to try it.
        dtype: of the data: float32, bfloat16 or float16.
        length: of a Toeplitz product, whose tiles depend on the length; ignored for others.
        lengths: at which other operations are tried; a Toeplitz product is tried at the first of them, too.
    """
    generator = torch.Generator().manual_seed(0)
    # Whatever the caller is in the middle of: inference, autocast, or a backward pass. Autograd's thread of the device
    # may wait for this trial then, and cannot differentiate it.
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        torch.autograd.set_multithreading_enabled(False),
    ):
        for problem in _problems(op, min(length, _LONGEST), lengths):
            drawn = [torch.randn(shape, generator=generator, device="cpu") for shape in problem.shapes]
            inputs = [x.to(device, torch.float32 if x.ndim == 2 else dtype) for x in drawn]
            upstream = torch.randn(inputs[0].shape, generator=generator, device="cpu").to(device, dtype)
            with forced(**{op: name}):
                ours = _values(problem.call, inputs, upstream)
            exact = _values(problem.exact, [x.double() for x in inputs], upstream.double())
            for what, actual, expected in zip(("result", *problem.shapes), ours, exact, strict=True):
                error = ((actual.double() - expected).abs().max() / expected.square().mean().sqrt()).item()
                if not error <= _BOUND[dtype]:
                    of_what = what if what == "result" else f"gradient of the argument of shape {what}"
                    return f"its {of_what} is off by {error:.2g} of the root mean square (bound {_BOUND[dtype]})"
    return None


def _values(function: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
    inputs = [x.detach().requires_grad_() for x in inputs]
    y = function(*inputs)
    return (y.detach(), *torch.autograd.grad(y, inputs, upstream.to(y.dtype)))


def _problems(op: str, length: int, lengths: tuple[int, ...]) -> Iterator[_Problem]:
    for n in (lengths[0], length) if op.startswith("toeplitz") else lengths:
        if op.startswith("toeplitz"):
            causal = op == "toeplitz_causal"
            # Long rows against transforms in float64, which no kernel computes.
            exact = toeplitz_matmul_dense if n < 1000 else toeplitz_matmul
            yield _Problem(
                [(3, 2, n), (2, n if causal else 2 * n - 1)],
                lambda x, kernel, causal=causal: toeplitz_matmul(x, kernel, causal),
                lambda x, kernel, causal=causal, exact=exact: exact(x, kernel, causal),
            )
        elif op == "ski":
            grid = InducingGrid(n, 20)
            yield _Problem(
                [(2, 5, n), (5, 9), (5, 2 * grid.points(n) - 1)],
                lambda x, taps, kernel, grid=grid: sparse_low_rank_matmul(x, taps, kernel, grid),
                lambda x, taps, kernel, grid=grid: short_conv_dense(x, taps) + ski_matmul_dense(x, kernel, grid),
            )
        elif op == "short_conv":
            for channels, number, back in ((5, 4, 3), (70, 5, 2)):
                yield _Problem(
                    [(2, channels, n), (channels, number)],
                    lambda x, taps, back=back: short_conv(x, taps, back),
                    lambda x, taps, back=back: short_conv_dense(x, taps, back),
                )
        else:
            yield _Problem(
                [(2, n, 2, 16)] * 3,
                linear_attention,
                lambda q, k, v: linear_attention(q, k, v, form="parallel"),
            )
            yield _Problem(
                [(2, n, 3, 16)] * 2,
                lambda p, x: running_product(dispatch(p)[0], p, x),
                lambda p, x: p * x.cumsum(dim=1),
            )
