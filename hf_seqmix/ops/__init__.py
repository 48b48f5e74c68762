"""Pure functions of tensors; plain torch is the definition."""

from .backend import forced, real_valued
from .crossovers import use_crossovers
from .gated_toeplitz import gated_toeplitz_matmul
from .hilbert import causal_taps, two_sided_taps
from .piecewise import piecewise_column, piecewise_column_dense
from .polynomial import linear_attention
from .polynomial_product import polynomial_product
from .short_conv import short_conv
from .ski import InducingGrid, ski_matmul, ski_matmul_dense
from .toeplitz import toeplitz_matmul, toeplitz_matmul_dense, toeplitz_matrix, toeplitz_step

__all__ = [
    "InducingGrid",
    "causal_taps",
    "forced",
    "gated_toeplitz_matmul",
    "linear_attention",
    "piecewise_column",
    "piecewise_column_dense",
    "polynomial_product",
    "real_valued",
    "short_conv",
    "ski_matmul",
    "ski_matmul_dense",
    "toeplitz_matmul",
    "toeplitz_matmul_dense",
    "toeplitz_matrix",
    "toeplitz_step",
    "two_sided_taps",
    "use_crossovers",
]
