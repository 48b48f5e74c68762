"""Toeplitz kernels: those that a model has learned, as numbers and as plots, and the theorems of SKI and FD-TNN."""

from .learned import (
    LearnedKernels,
    learned_kernels,
    plot_kernels,
    ski_taps,
    toeplitz_operators,
    typical_channels,
)
from .live_units import LiveUnits, dead_encoders, live_units

__all__ = [
    "LearnedKernels",
    "LiveUnits",
    "dead_encoders",
    "learned_kernels",
    "live_units",
    "plot_kernels",
    "ski_taps",
    "toeplitz_operators",
    "typical_channels",
]
