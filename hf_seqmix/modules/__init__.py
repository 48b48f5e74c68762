"""Layers with parameters, each usable alone as an `nn.Module`."""

from .attention import SoftmaxAttention
from .fd_kernel import FrequencyKernel
from .fd_tnn import FDTNNMixer
from .glu import GatedLinearUnit
from .gtu import GatedToeplitzUnit
from .norms import MaskedBatchNorm, SimpleRMSNorm, StaticNorm, calibrate_static_norms
from .polynomial_mlp import PolynomialMLP
from .position_encoder import RelativePositionEncoder
from .ski_kernel import InverseTimeWarpKernel
from .ski_operator import SKIOperator
from .ski_tnn import SKITNNMixer
from .tnn import TNNMixer
from .toeplitz_kernel import ToeplitzKernel
from .toeplitz_operator import ToeplitzOperator

__all__ = [
    "FDTNNMixer",
    "FrequencyKernel",
    "GatedLinearUnit",
    "GatedToeplitzUnit",
    "InverseTimeWarpKernel",
    "MaskedBatchNorm",
    "PolynomialMLP",
    "RelativePositionEncoder",
    "SKIOperator",
    "SKITNNMixer",
    "SimpleRMSNorm",
    "SoftmaxAttention",
    "StaticNorm",
    "TNNMixer",
    "ToeplitzKernel",
    "ToeplitzOperator",
    "calibrate_static_norms",
]
