"""Products with Toeplitz matrices: y[i] = sum_j k[i - j] x[j], one matrix a channel.

`toeplitz_matmul` is the fast product and `toeplitz_matmul_dense` the definition. `derivatives.py` says how the fast
product is computed and differentiated.
"""

import torch
from torch import Tensor

from ..common.dispatch import ORDINARY, can_be_read, check_real, dispatch, without_autocast
from ..common.invariance import is_batch_invariant
from .derivatives import toeplitz_product
from .real_transform import convolution_product, real_product

__all__ = ["toeplitz_matmul", "toeplitz_matmul_dense", "toeplitz_matrix", "toeplitz_step"]


def toeplitz_matmul(x: Tensor, kernel: Tensor, causal: bool = True) -> Tensor:
    """Multiply each channel of `x` by its own Toeplitz matrix, in O(n log n).

    y[b, c, i] = sum_j k[c, i - j] x[b, c, j], over 0 <= j <= i when causal and over all j otherwise.

    Computed in float32 (float64 for float64 `x`) whatever autocast says, in general by transforms of a fast length of
    at least 2n - 1. On GPUs, Triton kernels may serve half-precision `x`. These kernels multiply in half precision and
    sum in float32, with an error of up to about 1e-3 of the norms (`kernels/monarch.py`, `kernels/tiles.py`). Backward
    keeps `x` and `kernel` and nothing else. The rounding error of a transform is relative to the largest values of the
    whole row, later values included. A NaN or infinity anywhere in a row may reach all of the row.

    Source: Qin et al. 2023 (arXiv 2305.04749), section 3.2.

    Args:
        x: (batch, channels, length) of any floating dtype; length 0 gives an empty result.
        kernel: (channels, length), lags 0 to length - 1, when `causal`; else (channels, 2 length - 1), lags
            -(length - 1) to length - 1. Best in float32 (float64 for float64 `x`): it is cast to that.
        causal: whether outputs see the past and the present only.

    Returns:
        (batch, channels, length) in the dtype of `x`.

    Raises:
        ValueError: for shapes, dtypes or devices that do not fit.
    """
    _check(x, kernel, causal)
    route, dtype = dispatch(x)
    kernel = kernel.to(dtype)
    if x.numel() == 0:
        # The sum keeps the result attached to both inputs.
        return x.clone() + kernel.sum().to(x.dtype) * 0
    if route in ORDINARY:
        # Autocast would multiply in half precision.
        with without_autocast(x.device.type):
            # Earlier tracers cannot prove what transforms ask of lengths that have bounds.
            by_real_numbers = real_product if torch.__version__ >= "2.11" else convolution_product
            return by_real_numbers(x, kernel, causal).to(x.dtype)
    if is_batch_invariant():
        if causal:
            return _in_order(x, kernel)
        if len(x) > 1:  # which a library of transforms may do in another way than one row
            return torch.cat([toeplitz_matmul(row, kernel, causal) for row in x.split(1)])
    y: Tensor = toeplitz_product(route == "operator", x, kernel, "output", causal)
    return y


def _in_order(x: Tensor, kernel: Tensor) -> Tensor:
    """Compute the causal product input by input, O(n^2): an output does not depend on how many follow it."""
    values = x.to(kernel.dtype)
    y = torch.zeros_like(values)
    for j in range(x.shape[-1]):
        y[..., j:] += kernel[:, : x.shape[-1] - j] * values[..., j : j + 1]
    return y.to(x.dtype)


def toeplitz_matrix(kernel: Tensor, length: int, causal: bool = True) -> Tensor:
    """Build the dense matrices T[c, i, j] = k[c, i - j].

    Args:
        kernel: (channels, length) or more taps when `causal`, else (channels, 2 length - 1).
        length: number of rows and columns.
        causal: whether entries above the diagonal are zero.

    Returns:
        (channels, length, length).

    Raises:
        ValueError: for a kernel of another shape.
    """
    if kernel.ndim != 2 or (kernel.shape[1] < length if causal else kernel.shape[1] != max(2 * length - 1, 0)):
        taps = f"length taps or more, {length}" if causal else f"2 length - 1 taps, {2 * length - 1}"
        raise ValueError(
            f"kernel has shape {tuple(kernel.shape)}; a {'causal' if causal else 'bidirectional'} matrix of length "
            f"{length} needs (channels, taps) with {taps}."
        )
    positions = torch.arange(length, device=kernel.device)
    lags = positions[:, None] - positions[None, :]  # (length, length)
    if causal:
        return kernel[:, lags.clamp(min=0)] * (lags >= 0)
    return kernel[:, lags + length - 1]


def toeplitz_matmul_dense(x: Tensor, kernel: Tensor, causal: bool = True) -> Tensor:
    """Compute `toeplitz_matmul` by building the matrices: the definition, O(n^2) in time and memory.

    Takes and returns what `toeplitz_matmul` does, in the dtype of the promoted inputs.
    """
    _check(x, kernel, causal)
    dtype = torch.promote_types(x.dtype, kernel.dtype)
    matrix = toeplitz_matrix(kernel.to(dtype), x.shape[-1], causal)
    return torch.einsum("cij,bcj->bci", matrix, x.to(dtype))


def toeplitz_step(history: Tensor, kernel: Tensor, position: Tensor | None = None) -> Tensor:
    """Compute one output of a causal product from the history of inputs: one step of decoding, O(n).

    y[b, c] = sum_(j <= p) kernel[c, p - j] history[b, j, c], accumulated in the dtype of the kernel.

    Args:
        history: (batch, length, channels).
        kernel: (channels, taps) with taps >= length, lags from 0.
        position: (1,) long, p, for a preallocated history with unused places after it; the last place by default.

    Returns:
        (batch, 1, channels) in the dtype of `history`.

    Raises:
        ValueError: for shapes that do not fit, integers or complex numbers, and, on a CPU, a position outside the
            history.
    """
    one = position is None or torch.compiler.is_compiling() or position.numel() == 1
    if history.ndim != 3 or kernel.ndim != 2 or not one:
        raise ValueError(
            "expected history of shape (batch, length, channels), kernel (channels, taps) and position (1,), got "
            f"{tuple(history.shape)}, {tuple(kernel.shape)} and {None if position is None else tuple(position.shape)}."
        )
    check_real(history=history, kernel=kernel)
    length = history.shape[1]
    if not torch.compiler.is_compiling() and (kernel.shape[0] != history.shape[2] or kernel.shape[1] < length):
        raise ValueError(
            f"the kernel has shape {tuple(kernel.shape)}; a history of {length} tokens of {history.shape[2]} channels "
            f"needs ({history.shape[2]}, {length}) or more taps."
        )
    if position is None:
        taps = kernel[:, :length].flip(-1)  # (channels, length)
    else:
        if can_be_read(position) and not 0 <= int(position) < length:
            raise ValueError(f"position is {int(position)}; the history has positions 0 to {length - 1}.")
        lags = position - torch.arange(length, device=history.device)
        taps = kernel[:, lags.clamp(min=0)] * (lags >= 0)
    # A history in which the tokens of a channel lie side by side is read once, and nothing of it is copied.
    products = history.permute(2, 0, 1) * taps.unsqueeze(1)  # (channels, batch, length)
    return products.sum(dim=2).t().unsqueeze(1).to(history.dtype)


def _check(x: Tensor, kernel: Tensor, causal: bool) -> None:
    if x.ndim != 3 or kernel.ndim != 2:
        raise ValueError(
            f"expected x of shape (batch, channels, length) and kernel of shape (channels, taps), got "
            f"{tuple(x.shape)} and {tuple(kernel.shape)}."
        )
    length = x.shape[-1]
    taps = length if causal or length == 0 else 2 * length - 1
    if kernel.shape[0] != x.shape[1] or kernel.shape[1] != taps:
        kind = "a causal kernel has length" if causal else "a bidirectional kernel has 2 length - 1"
        raise ValueError(
            f"kernel has shape {tuple(kernel.shape)} but x has {x.shape[1]} channels and length {length}: {kind} taps "
            f"a channel, so ({x.shape[1]}, {taps}) is needed."
        )
    check_real(x=x, kernel=kernel)
    if x.device != kernel.device:
        raise ValueError(f"x is on {x.device} but kernel on {kernel.device}: move them to one device.")
