"""Pure functions of tensors; plain torch is the definition."""

from .common.backend import forced, real_valued
from .common.crossovers import use_crossovers
from .piecewise.column import piecewise_column, piecewise_column_dense
from .polynomial.product import polynomial_product
from .polynomial.stages import linear_attention
from .ski.interpolation import InducingGrid, ski_matmul, ski_matmul_dense
from .ski.short_conv import short_conv
from .toeplitz.gated import gated_toeplitz_matmul
from .toeplitz.hilbert import causal_taps, two_sided_taps
from .toeplitz.product import toeplitz_matmul, toeplitz_matmul_dense, toeplitz_matrix, toeplitz_step

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
