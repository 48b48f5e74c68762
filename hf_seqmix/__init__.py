"""Sequence mixers other than softmax attention, as ordinary Hugging Face models.

Importing the package registers its configurations with the library's `Auto` classes, and its models the moment the first
configuration is made, which is before anything could be built from one: the library's own modelling code takes two seconds
to import, which who only wants a function or a configuration need not wait for. For the same reason everything but the
configurations is loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from ._lazy import after_import
from ._version import __version__
from .models.configuration import SeqMixConfig, before_first_config
from .models.hybrid.configuration_hybrid import AttentionConfig, SeqMixHybridConfig
from .models.mixers import register_mixer
from .models.tnn.configuration_tnn import TNNConfig

if TYPE_CHECKING:
    from .models.auto import register_family
    from .models.family import IMAGE_HEADS, TEXT_HEADS, Family
    from .models.hybrid.modeling_hybrid import (
        SeqMixHybridForCausalLM,
        SeqMixHybridForMaskedLM,
        SeqMixHybridForQuestionAnswering,
        SeqMixHybridForSequenceClassification,
        SeqMixHybridForTokenClassification,
        SeqMixHybridModel,
        SeqMixHybridPreTrainedModel,
    )
    from .models.image_processing import SeqMixImageProcessor
    from .models.tnn.modeling_tnn import (
        TNNForCausalLM,
        TNNForImageClassification,
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
    "IMAGE_HEADS",
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
    "SeqMixImageProcessor",
    "SimpleRMSNorm",
    "SoftmaxAttention",
    "TNNConfig",
    "TNNForCausalLM",
    "TNNForImageClassification",
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

_LAZY = {
    "analysis": None,
    "data": None,
    "hub": None,
    "metrics": None,
    "models.auto": ("register_family",),
    "models.family": ("Family", "IMAGE_HEADS", "TEXT_HEADS"),
    "models.hybrid.modeling_hybrid": (
        "SeqMixHybridForCausalLM",
        "SeqMixHybridForMaskedLM",
        "SeqMixHybridForQuestionAnswering",
        "SeqMixHybridForSequenceClassification",
        "SeqMixHybridForTokenClassification",
        "SeqMixHybridModel",
        "SeqMixHybridPreTrainedModel",
    ),
    "models.tnn.modeling_tnn": (
        "TNNForCausalLM",
        "TNNForImageClassification",
        "TNNForMaskedLM",
        "TNNForQuestionAnswering",
        "TNNForSequenceClassification",
        "TNNForTokenClassification",
        "TNNModel",
        "TNNPreTrainedModel",
    ),
    "modules": (
        "GatedLinearUnit",
        "GatedToeplitzUnit",
        "MaskedBatchNorm",
        "RelativePositionEncoder",
        "SimpleRMSNorm",
        "SoftmaxAttention",
        "TNNMixer",
        "ToeplitzKernel",
        "ToeplitzOperator",
    ),
    "models.image_processing": ("SeqMixImageProcessor",),
    "ops": ("toeplitz_matmul", "toeplitz_matmul_dense"),
}
"""Module -> the public names that are loaded from it when first asked for; None for the module itself."""


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in (names or (module,)):
            loaded = importlib.import_module(f".{module}", __name__)
            value = loaded if names is None else getattr(loaded, name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


for _config_class in (TNNConfig, SeqMixHybridConfig):
    AutoConfig.register(_config_class.model_type, _config_class, exist_ok=True)
before_first_config(lambda: importlib.import_module(".models.auto", __name__))
# Image processors are made without any configuration.
after_import(
    "transformers.models.auto.image_processing_auto", lambda: importlib.import_module(".models.auto", __name__)
)
