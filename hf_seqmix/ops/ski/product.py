"""Structured kernel interpolation (SKI): T x = conv(x) + W A W^T x, a sparse part and a low-rank part.

* conv is a short convolution of each channel (`../short_convolution`).
* W holds the interpolation weights from few inducing points to the tokens (`interpolation.py`).
* A[i, j] = k(h (i - j)) is a Toeplitz matrix over the inducing points at spacing h.

`ski_matmul` is the low-rank part and `sparse_low_rank_matmul` the sum. `ski_matmul_dense` and `short_conv_dense` are
their definitions. `derivatives.py` says how the sum is computed in one step and differentiated.
"""

import torch
from torch import Tensor

from ..common.backend import kernel_module
from ..common.crossovers import implementation
from ..common.dispatch import ORDINARY, check_real, dispatch, without_autocast
from ..common.invariance import is_batch_invariant
from ..short_convolution.product import short_conv
from ..toeplitz.product import toeplitz_matmul, toeplitz_matrix
from ..toeplitz.real_transform import convolution_product
from .derivatives import fused_product, fused_takes, native_product, torch_product
from .interpolation import InducingGrid, interpolate, interpolate_adjoint, interpolation_matrix

__all__ = ["ski_matmul", "ski_matmul_dense", "sparse_low_rank_matmul"]


def ski_matmul(x: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Multiply each channel by W A W^T, in O(n + r log r).

    A[i, j] = k(h (i - j)) over the points of the grid, a Toeplitz matrix itself. Source: Moreno, Mei, Walters 2023
    (arXiv 2305.09028), section 3.2 and algorithm 1. Departure: the published code multiplies by dense W; see
    `InducingGrid` for its weights.

    Args:
        x: (batch, channels, length) of any floating dtype; length 0 gives an empty result.
        kernel: (channels, 2 points - 1) with points = grid.points(length): k at lags -(points - 1) h to (points - 1)
            h.
        grid: where the points lie.

    Returns:
        (batch, channels, length) in the dtype of `x`, channels contiguous.

    Raises:
        ValueError: for shapes, dtypes or devices that do not fit, or more points than the grid covers tokens.
    """
    _check(x, kernel, grid)
    length = x.shape[-1]
    if x.numel() == 0:
        return x.clone() + kernel.sum().to(x.dtype) * 0
    route, _ = dispatch(x)
    collected = interpolate_adjoint(x, grid, route)
    if route in ORDINARY:
        with without_autocast(x.device.type):
            mixed = convolution_product(collected, kernel.to(collected.dtype), causal=False)
    else:
        mixed = toeplitz_matmul(collected.contiguous(), kernel, causal=False)
    return interpolate(mixed, length, grid, route).to(x.dtype)


def ski_matmul_dense(x: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Compute `ski_matmul` from dense W and A: the definition. Takes and returns what `ski_matmul` does."""
    _check(x, kernel, grid)
    if x.numel() == 0:
        return x.clone() + kernel.sum().to(x.dtype) * 0
    matrix = interpolation_matrix(x.shape[-1], grid, x.dtype).to(x.device)
    inducing = toeplitz_matrix(kernel.to(x.dtype), matrix.shape[1], causal=False)
    return torch.einsum("ip,cpq,jq,bcj->bci", matrix, inducing, matrix, x)


def sparse_low_rank_matmul(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    """Compute `short_conv(x, taps) + ski_matmul(x, kernel, grid)`.

    Source: Moreno, Mei, Walters 2023 (arXiv 2305.09028), algorithm 1.

    Args:
        x: (batch, channels, length) of any floating dtype, fastest when channels are contiguous in memory.
        taps: (channels, m), m odd, of the convolution.
        kernel: (channels, 2 points - 1) with points = grid.points(length), of the low-rank part.
        grid: where the inducing points lie.

    Returns:
        (batch, channels, length) in the dtype of `x`, channels contiguous.

    Raises:
        ValueError: for shapes that do not fit.
    """
    if is_batch_invariant() and len(x) > 1:  # one row after another, as in `toeplitz_matmul`
        return torch.cat([sparse_low_rank_matmul(row, taps, kernel, grid) for row in x.split(1)])
    route, dtype = dispatch(x)
    # Shapes that do not fit are left to the two parts, which say what is wrong.
    by_parts = route in ORDINARY or not _fit(x, taps, kernel, grid)
    if route == "operator" and not by_parts and x.device.type == "cuda":
        return fused_product(True, x, taps, kernel, *grid)[0]
    if by_parts or route == "operator":
        return short_conv(x, taps) + ski_matmul(x, kernel, grid)
    chosen = implementation("ski", x, x.shape[-1])
    if chosen == "fused" and fused_takes(taps, kernel):
        return fused_product(False, x, taps, kernel, *grid)[0]
    if chosen == "native" and kernel_module("ski.native").serves(x, taps, kernel, points=grid.points(x.shape[-1])):
        return native_product(x, taps, kernel, grid)
    if x.dtype == taps.dtype == kernel.dtype == dtype:
        return torch_product(x, taps, kernel, grid)
    return short_conv(x, taps) + ski_matmul(x, kernel, grid)


def _fit(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> bool:
    if not 2 <= grid.num_points <= grid.max_length:
        return False
    if x.ndim != 3 or taps.ndim != 2 or taps.shape[0] != x.shape[1] or taps.shape[1] % 2 == 0 or x.numel() == 0:
        return False
    return kernel.shape == (x.shape[1], 2 * grid.points(x.shape[-1]) - 1)


def _check(x: Tensor, kernel: Tensor, grid: InducingGrid) -> None:
    grid.check()
    if x.ndim != 3 or kernel.ndim != 2 or kernel.shape[0] != x.shape[1]:
        raise ValueError(
            "expected x of shape (batch, channels, length) and kernel of shape (channels, 2 points - 1), got "
            f"{tuple(x.shape)} and {tuple(kernel.shape)}."
        )
    length = x.shape[-1]
    if x.numel() > 0 and kernel.shape[1] != 2 * grid.points(length) - 1:
        raise ValueError(
            f"kernel has shape {tuple(kernel.shape)}, but {length} tokens meet {grid.points(length)} inducing points: "
            f"({x.shape[1]}, {2 * grid.points(length) - 1}) is needed, lags from -{grid.points(length) - 1} to "
            f"{grid.points(length) - 1} spacings."
        )
    check_real(x=x, kernel=kernel)
    if x.device != kernel.device:
        raise ValueError(f"x is on {x.device} but kernel on {kernel.device}: move them to one device.")
