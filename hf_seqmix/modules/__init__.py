"""Layers with parameters that families of different ideas share, each usable alone as an `nn.Module`."""

from .glu import GatedLinearUnit
from .norms import MaskedBatchNorm, SimpleRMSNorm, StaticNorm, calibrate_static_norms
from .short_convolution import ShortConvolution

__all__ = [
    "GatedLinearUnit",
    "MaskedBatchNorm",
    "ShortConvolution",
    "SimpleRMSNorm",
    "StaticNorm",
    "calibrate_static_norms",
]
