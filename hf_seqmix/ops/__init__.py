"""Pure functions of tensors; plain torch is the definition."""

from .common.crossovers import forced, use_crossovers
from .common.dispatch import real_valued
from .common.invariance import batch_invariant
from .piecewise.column import piecewise_column, piecewise_column_dense
from .polynomial.power_attention import power_attention, power_attention_dense
from .polynomial.product import polynomial_product
from .polynomial.stages import linear_attention
from .short_convolution.product import short_conv
from .ski.interpolation import InducingGrid
from .ski.product import ski_matmul, ski_matmul_dense
from .toeplitz.hilbert import causal_taps, two_sided_taps
from .toeplitz.product import toeplitz_matmul, toeplitz_matmul_dense, toeplitz_matrix, toeplitz_step

__all__ = [
    "InducingGrid",
    "batch_invariant",
    "causal_taps",
    "forced",
    "linear_attention",
    "piecewise_column",
    "piecewise_column_dense",
    "polynomial_product",
    "power_attention",
    "power_attention_dense",
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
