"""What compile_kernels.py launches: every Triton kernel of the package, on inputs of sizes that models have."""

from collections.abc import Callable

import torch
from torch import Tensor

from hf_seqmix.ops.common.backend import kernel_module
from hf_seqmix.ops.ski.interpolation import InducingGrid

__all__ = ["CASES"]


def compile_toeplitz(dtype: torch.dtype, length: int, causal: bool, batch: int = 8) -> None:
    """Compile direct tiles: product, transpose, gradient of the taps."""
    x, kernel = toeplitz_inputs(dtype, length, causal, batch)
    tiles = kernel_module("toeplitz.kernels.tiles")
    tiles.toeplitz_tiles(x, kernel, causal)
    tiles.toeplitz_tiles(x, kernel, causal, transpose=True)
    tiles.toeplitz_tiles_kernel_gradient(x, x, causal)


def compile_monarch(dtype: torch.dtype, length: int, causal: bool) -> None:
    """Compile the two-level transform: product and gradients."""
    x, kernel = toeplitz_inputs(dtype, length, causal, 2)
    monarch = kernel_module("toeplitz.kernels.monarch")
    if not monarch.monarch_suits(length, dtype):
        return  # float32 rows as long as that are torch's
    monarch.monarch_product(x, kernel, causal)
    monarch.monarch_gradients(x, x, kernel, causal)


def compile_ski(dtype: torch.dtype, length: int, degree: int) -> None:
    """Compile SKI forward and backward, 64 points and 33 taps."""
    grid = InducingGrid(length, 64, degree)
    x = torch.empty(8, length, 1024, dtype=dtype).transpose(1, 2)
    taps, kernel = torch.empty(1024, 33), torch.empty(1024, 2 * grid.points(length) - 1)
    ski = kernel_module("ski.kernels.operator")
    _, collected = ski.ski_forward(x, taps, kernel, grid)
    ski.ski_backward(x, x, taps, kernel, collected, grid, (True, True, True))


def compile_causal_sum(dtype: torch.dtype, width: int, reverse: bool) -> None:
    """Compile linear attention over 2048 positions and its gradients, whose upstream is in float32."""
    q = torch.empty(8, 2048, 1024 // width, width, dtype=dtype)
    g, scale = torch.empty(q.shape), torch.empty(8, 2048)
    kernels = kernel_module("polynomial.kernels.linear_attention")
    kernels.causal_sum(q, q, q, None, reverse, outer=scale)
    kernels.causal_sum(g, q, q, None, reverse, outer=scale, dtype=dtype)
    kernels.causal_sum_pair(q, q, q, g, not reverse, inner=scale, dtypes=(dtype, dtype))


def compile_running_sums(dtype: torch.dtype) -> None:
    """Compile means over the positions before, and their gradients."""
    x, scale = torch.empty(8, 2048, 1024, dtype=dtype), torch.empty(8, 2048)
    kernels = kernel_module("polynomial.kernels.running_mean")
    kernels.running_product(x, x, outer=scale, dtype=dtype)
    kernels.running_product(None, x, x, None, True, inner=scale, dtype=dtype)


def compile_short_conv(dtype: torch.dtype, taps: int) -> None:
    """Compile a short convolution and the gradient of its taps."""
    x = torch.empty(8, 2048, 1024, dtype=dtype).transpose(1, 2)
    kernels = kernel_module("short_convolution.kernels.streaming")
    kernels.short_conv(x, torch.empty(1024, taps), taps - 1)
    kernels.short_conv_weight_gradient(x, x, taps, taps - 1)


def toeplitz_inputs(dtype: torch.dtype, length: int, causal: bool, batch: int) -> tuple[Tensor, Tensor]:
    """Return inputs whose values do not matter, but sizes do: tiles are chosen to fill a GPU."""
    return torch.empty(batch, 1024, length, dtype=dtype), torch.empty(1024, length if causal else 2 * length - 1)


def directions(function: Callable[..., None], length: int) -> dict[str, Callable[[torch.dtype], None]]:
    """Return the case in both directions."""
    name = function.__name__.removeprefix("compile_")
    return {
        f"{name} causal {length}": lambda dtype: function(dtype, length, True),
        f"{name} bidirectional {length}": lambda dtype: function(dtype, length, False),
    }


CASES: dict[str, Callable[[torch.dtype], None]] = {
    **directions(compile_toeplitz, 512),
    **directions(compile_toeplitz, 2048),
    "toeplitz causal 512, batch 1": lambda dtype: compile_toeplitz(dtype, 512, True, 1),
    **directions(compile_monarch, 2048),
    **directions(compile_monarch, 4096),
    **directions(compile_monarch, 8192),
    "ski linear": lambda dtype: compile_ski(dtype, 2048, 1),
    "ski cubic": lambda dtype: compile_ski(dtype, 2048, 3),
    "causal sum, width 64": lambda dtype: compile_causal_sum(dtype, 64, False),
    "causal sum, width 128, reverse": lambda dtype: compile_causal_sum(dtype, 128, True),
    "running sums": compile_running_sums,
    "short convolution, 4 taps": lambda dtype: compile_short_conv(dtype, 4),
    "short convolution, 16 taps": lambda dtype: compile_short_conv(dtype, 16),
}
"""What is launched, by name."""
