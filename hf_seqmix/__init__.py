"""Sequence mixers other than softmax attention, as ordinary Hugging Face models.

Importing the package registers its models with the library's `Auto` classes. Data, metrics, hub and analysis are loaded
when they are first asked for.
"""

import importlib
from types import ModuleType

from ._version import __version__
from .models.auto import register_family
from .models.configuration import SeqMixConfig
from .models.family import TEXT_HEADS, Family
from .models.hybrid.configuration_hybrid import AttentionConfig, SeqMixHybridConfig
from .models.hybrid.modeling_hybrid import (
    SeqMixHybridForCausalLM,
    SeqMixHybridForMaskedLM,
    SeqMixHybridForQuestionAnswering,
    SeqMixHybridForSequenceClassification,
    SeqMixHybridForTokenClassification,
    SeqMixHybridModel,
    SeqMixHybridPreTrainedModel,
)
from .models.mixers import register_mixer
from .models.tnn.configuration_tnn import TNNConfig
from .models.tnn.modeling_tnn import (
    TNNForCausalLM,
    TNNForMaskedLM,
    TNNForQuestionAnswering,
    TNNForSequenceClassification,
    TNNForTokenClassification,
    TNNModel,
    TNNPreTrainedModel,
)
from .modules import (
    GatedLinearUnit,
    GatedToeplitzUnit,
    MaskedBatchNorm,
    RelativePositionEncoder,
    SimpleRMSNorm,
    SoftmaxAttention,
    TNNMixer,
    ToeplitzKernel,
    ToeplitzOperator,
)
from .ops import toeplitz_matmul, toeplitz_matmul_dense

__all__ = [
    "TEXT_HEADS",
    "AttentionConfig",
    "Family",
    "GatedLinearUnit",
    "GatedToeplitzUnit",
    "MaskedBatchNorm",
    "RelativePositionEncoder",
    "SeqMixConfig",
    "SeqMixHybridConfig",
    "SeqMixHybridForCausalLM",
    "SeqMixHybridForMaskedLM",
    "SeqMixHybridForQuestionAnswering",
    "SeqMixHybridForSequenceClassification",
    "SeqMixHybridForTokenClassification",
    "SeqMixHybridModel",
    "SeqMixHybridPreTrainedModel",
    "SimpleRMSNorm",
    "SoftmaxAttention",
    "TNNConfig",
    "TNNForCausalLM",
    "TNNForMaskedLM",
    "TNNForQuestionAnswering",
    "TNNForSequenceClassification",
    "TNNForTokenClassification",
    "TNNMixer",
    "TNNModel",
    "TNNPreTrainedModel",
    "ToeplitzKernel",
    "ToeplitzOperator",
    "__version__",
    "register_family",
    "register_mixer",
    "toeplitz_matmul",
    "toeplitz_matmul_dense",
]

_LAZY = ("analysis", "data", "hub", "metrics")


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
