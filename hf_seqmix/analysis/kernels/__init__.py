"""Toeplitz kernels: those that a model has learned, as numbers and as plots, and the theorems of SKI and FD-TNN."""

from .learned import (
    LearnedKernels,
    learned_kernels,
    plot_kernels,
    ski_taps,
    toeplitz_operators,
    typical_channels,
)

__all__ = [
    "LearnedKernels",
    "learned_kernels",
    "plot_kernels",
    "ski_taps",
    "toeplitz_operators",
    "typical_channels",
]
