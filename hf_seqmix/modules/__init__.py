"""Layers with parameters, each usable alone as an `nn.Module`."""

from .attention import SoftmaxAttention
from .copy_head import CopyHead
from .fd_kernel import FrequencyKernel
from .fd_tnn import FDTNNMixer
from .glu import GatedLinearUnit
from .gtu import GatedToeplitzUnit
from .ipa import IPAMixer
from .ipa_row import PiecewiseRow
from .norms import MaskedBatchNorm, SimpleRMSNorm, StaticNorm, calibrate_static_norms
from .polynomial import PolynomialMixer
from .polynomial_mlp import PolynomialMLP
from .position_encoder import RelativePositionEncoder
from .ski_kernel import InverseTimeWarpKernel
from .ski_operator import SKIOperator
from .ski_tnn import SKITNNMixer
from .tnn import TNNMixer
from .toeplitz_kernel import ToeplitzKernel
from .toeplitz_operator import ToeplitzOperator
from .token_shift import TokenShift

__all__ = [
    "CopyHead",
    "FDTNNMixer",
    "FrequencyKernel",
    "GatedLinearUnit",
    "GatedToeplitzUnit",
    "IPAMixer",
    "InverseTimeWarpKernel",
    "MaskedBatchNorm",
    "PiecewiseRow",
    "PolynomialMLP",
    "PolynomialMixer",
    "RelativePositionEncoder",
    "SKIOperator",
    "SKITNNMixer",
    "SimpleRMSNorm",
    "SoftmaxAttention",
    "StaticNorm",
    "TNNMixer",
    "ToeplitzKernel",
    "ToeplitzOperator",
    "TokenShift",
    "calibrate_static_norms",
]
