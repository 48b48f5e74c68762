"""Pure functions of tensors; plain torch is the definition."""

from .hilbert import causal_taps, two_sided_taps
from .short_conv import short_conv
from .ski import InducingGrid, ski_matmul, ski_matmul_dense
from .toeplitz import toeplitz_matmul, toeplitz_matmul_dense, toeplitz_matrix, toeplitz_step

__all__ = [
    "InducingGrid",
    "causal_taps",
    "short_conv",
    "ski_matmul",
    "ski_matmul_dense",
    "toeplitz_matmul",
    "toeplitz_matmul_dense",
    "toeplitz_matrix",
    "toeplitz_step",
    "two_sided_taps",
]
