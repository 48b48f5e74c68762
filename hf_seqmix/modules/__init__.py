"""Layers with parameters, each usable alone as an `nn.Module`."""

from .attention import SoftmaxAttention
from .glu import GatedLinearUnit
from .gtu import GatedToeplitzUnit
from .norms import MaskedBatchNorm, SimpleRMSNorm
from .position_encoder import RelativePositionEncoder
from .tnn import TNNMixer
from .toeplitz_kernel import ToeplitzKernel
from .toeplitz_operator import ToeplitzOperator

__all__ = [
    "GatedLinearUnit",
    "GatedToeplitzUnit",
    "MaskedBatchNorm",
    "RelativePositionEncoder",
    "SimpleRMSNorm",
    "SoftmaxAttention",
    "TNNMixer",
    "ToeplitzKernel",
    "ToeplitzOperator",
]
