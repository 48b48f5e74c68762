"""Sequence mixers other than softmax attention, as ordinary Hugging Face models.

Importing the package registers its configurations with the library's `Auto` classes, and its models the moment the first
configuration is made, which is before anything could be built from one: the library's own modelling code takes two seconds
to import, which who only wants a function or a configuration need not wait for. For the same reason everything but the
configurations is loaded when it is first asked for.
"""

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from ._lazy import after_import
from ._version import __version__
from .models.configuration import SeqMixConfig, before_first_config
from .models.fd_tnn.configuration_fd_tnn import FDTNNConfig
from .models.hybrid.configuration_hybrid import AttentionConfig, SeqMixHybridConfig
from .models.image_registration import register_image_processor
from .models.ipa.configuration_ipa import IPAConfig
from .models.mixers import register_mixer
from .models.poly_transformer.configuration_poly_transformer import PolyTransformerConfig
from .models.ski_tnn.configuration_ski_tnn import SKITNNConfig
from .models.tnn.configuration_tnn import TNNConfig

if TYPE_CHECKING:
    from .models.auto import register_family
    from .models.family import IMAGE_HEADS, TEXT_HEADS, Family
    from .models.fd_tnn.kernel import FrequencyKernel
    from .models.fd_tnn.mixer import FDTNNMixer
    from .models.fd_tnn.modeling_fd_tnn import (
        FDTNNForCausalLM,
        FDTNNForImageClassification,
        FDTNNForMaskedLM,
        FDTNNForQuestionAnswering,
        FDTNNForSequenceClassification,
        FDTNNForTokenClassification,
        FDTNNModel,
        FDTNNPreTrainedModel,
    )
    from .models.hybrid.attention import SoftmaxAttention
    from .models.hybrid.modeling_hybrid import (
        SeqMixHybridForCausalLM,
        SeqMixHybridForImageClassification,
        SeqMixHybridForMaskedLM,
        SeqMixHybridForQuestionAnswering,
        SeqMixHybridForSequenceClassification,
        SeqMixHybridForTokenClassification,
        SeqMixHybridModel,
        SeqMixHybridPreTrainedModel,
    )
    from .models.image_processing import SeqMixImageProcessor
    from .models.ipa.copy_head import CopyHead
    from .models.ipa.mixer import IPAMixer
    from .models.ipa.modeling_ipa import (
        IPAForCausalLM,
        IPAForImageClassification,
        IPAForMaskedLM,
        IPAForQuestionAnswering,
        IPAForSequenceClassification,
        IPAForTokenClassification,
        IPAModel,
        IPAPreTrainedModel,
    )
    from .models.ipa.row import PiecewiseRow
    from .models.ipa.token_shift import TokenShift
    from .models.poly_transformer.mixer import PolynomialMixer
    from .models.poly_transformer.mlp import PolynomialMLP
    from .models.poly_transformer.modeling_poly_transformer import (
        PolyTransformerForCausalLM,
        PolyTransformerForImageClassification,
        PolyTransformerForMaskedLM,
        PolyTransformerForQuestionAnswering,
        PolyTransformerForSequenceClassification,
        PolyTransformerForTokenClassification,
        PolyTransformerModel,
        PolyTransformerPreTrainedModel,
    )
    from .models.ski_tnn.kernel import InverseTimeWarpKernel
    from .models.ski_tnn.mixer import SKITNNMixer
    from .models.ski_tnn.modeling_ski_tnn import (
        SKITNNForImageClassification,
        SKITNNForMaskedLM,
        SKITNNForQuestionAnswering,
        SKITNNForSequenceClassification,
        SKITNNForTokenClassification,
        SKITNNModel,
        SKITNNPreTrainedModel,
    )
    from .models.ski_tnn.operator import SKIOperator
    from .models.tnn.kernel import ToeplitzKernel
    from .models.tnn.mixer import TNNMixer
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
    from .models.toeplitz.encoder import RelativePositionEncoder
    from .models.toeplitz.gated_unit import GatedToeplitzUnit
    from .models.toeplitz.operator import ToeplitzOperator
    from .modules import GatedLinearUnit, MaskedBatchNorm, SimpleRMSNorm, StaticNorm, calibrate_static_norms
    from .ops import (
        InducingGrid,
        causal_taps,
        linear_attention,
        piecewise_column,
        piecewise_column_dense,
        ski_matmul,
        ski_matmul_dense,
        toeplitz_matmul,
        toeplitz_matmul_dense,
        two_sided_taps,
    )
    from .ops.polynomial import product as polynomial_product
    from .ops.ski import short_conv

__all__ = [
    "IMAGE_HEADS",
    "TEXT_HEADS",
    "AttentionConfig",
    "CopyHead",
    "FDTNNConfig",
    "FDTNNForCausalLM",
    "FDTNNForImageClassification",
    "FDTNNForMaskedLM",
    "FDTNNForQuestionAnswering",
    "FDTNNForSequenceClassification",
    "FDTNNForTokenClassification",
    "FDTNNMixer",
    "FDTNNModel",
    "FDTNNPreTrainedModel",
    "Family",
    "FrequencyKernel",
    "GatedLinearUnit",
    "GatedToeplitzUnit",
    "IPAConfig",
    "IPAForCausalLM",
    "IPAForImageClassification",
    "IPAForMaskedLM",
    "IPAForQuestionAnswering",
    "IPAForSequenceClassification",
    "IPAForTokenClassification",
    "IPAMixer",
    "IPAModel",
    "IPAPreTrainedModel",
    "InducingGrid",
    "InverseTimeWarpKernel",
    "MaskedBatchNorm",
    "PiecewiseRow",
    "PolyTransformerConfig",
    "PolyTransformerForCausalLM",
    "PolyTransformerForImageClassification",
    "PolyTransformerForMaskedLM",
    "PolyTransformerForQuestionAnswering",
    "PolyTransformerForSequenceClassification",
    "PolyTransformerForTokenClassification",
    "PolyTransformerModel",
    "PolyTransformerPreTrainedModel",
    "PolynomialMLP",
    "PolynomialMixer",
    "RelativePositionEncoder",
    "SKIOperator",
    "SKITNNConfig",
    "SKITNNForImageClassification",
    "SKITNNForMaskedLM",
    "SKITNNForQuestionAnswering",
    "SKITNNForSequenceClassification",
    "SKITNNForTokenClassification",
    "SKITNNMixer",
    "SKITNNModel",
    "SKITNNPreTrainedModel",
    "SeqMixConfig",
    "SeqMixHybridConfig",
    "SeqMixHybridForCausalLM",
    "SeqMixHybridForImageClassification",
    "SeqMixHybridForMaskedLM",
    "SeqMixHybridForQuestionAnswering",
    "SeqMixHybridForSequenceClassification",
    "SeqMixHybridForTokenClassification",
    "SeqMixHybridModel",
    "SeqMixHybridPreTrainedModel",
    "SeqMixImageProcessor",
    "SimpleRMSNorm",
    "SoftmaxAttention",
    "StaticNorm",
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
    "TokenShift",
    "__version__",
    "calibrate_static_norms",
    "causal_taps",
    "linear_attention",
    "piecewise_column",
    "piecewise_column_dense",
    "polynomial_product",
    "register_family",
    "register_mixer",
    "short_conv",
    "ski_matmul",
    "ski_matmul_dense",
    "toeplitz_matmul",
    "toeplitz_matmul_dense",
    "two_sided_taps",
]

_LAZY = {
    "analysis": None,
    "data": None,
    "hub": None,
    "metrics": None,
    "training": None,
    "models.auto": ("register_family",),
    "models.family": ("Family", "IMAGE_HEADS", "TEXT_HEADS"),
    "models.fd_tnn.modeling_fd_tnn": (
        "FDTNNForCausalLM",
        "FDTNNForImageClassification",
        "FDTNNForMaskedLM",
        "FDTNNForQuestionAnswering",
        "FDTNNForSequenceClassification",
        "FDTNNForTokenClassification",
        "FDTNNModel",
        "FDTNNPreTrainedModel",
    ),
    "models.hybrid.modeling_hybrid": (
        "SeqMixHybridForCausalLM",
        "SeqMixHybridForImageClassification",
        "SeqMixHybridForMaskedLM",
        "SeqMixHybridForQuestionAnswering",
        "SeqMixHybridForSequenceClassification",
        "SeqMixHybridForTokenClassification",
        "SeqMixHybridModel",
        "SeqMixHybridPreTrainedModel",
    ),
    "models.poly_transformer.modeling_poly_transformer": (
        "PolyTransformerForCausalLM",
        "PolyTransformerForImageClassification",
        "PolyTransformerForMaskedLM",
        "PolyTransformerForQuestionAnswering",
        "PolyTransformerForSequenceClassification",
        "PolyTransformerForTokenClassification",
        "PolyTransformerModel",
        "PolyTransformerPreTrainedModel",
    ),
    "models.ipa.modeling_ipa": (
        "IPAForCausalLM",
        "IPAForImageClassification",
        "IPAForMaskedLM",
        "IPAForQuestionAnswering",
        "IPAForSequenceClassification",
        "IPAForTokenClassification",
        "IPAModel",
        "IPAPreTrainedModel",
    ),
    "models.ski_tnn.modeling_ski_tnn": (
        "SKITNNForImageClassification",
        "SKITNNForMaskedLM",
        "SKITNNForQuestionAnswering",
        "SKITNNForSequenceClassification",
        "SKITNNForTokenClassification",
        "SKITNNModel",
        "SKITNNPreTrainedModel",
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
    "models.hybrid.attention": ("SoftmaxAttention",),
    "models.ipa.copy_head": ("CopyHead",),
    "models.fd_tnn.kernel": ("FrequencyKernel",),
    "models.fd_tnn.mixer": ("FDTNNMixer",),
    "modules.glu": ("GatedLinearUnit",),
    "models.toeplitz.gated_unit": ("GatedToeplitzUnit",),
    "models.ipa.mixer": ("IPAMixer",),
    "models.ipa.row": ("PiecewiseRow",),
    "modules.norms": (
        "MaskedBatchNorm",
        "SimpleRMSNorm",
        "StaticNorm",
        "calibrate_static_norms",
    ),
    "models.poly_transformer.mixer": ("PolynomialMixer",),
    "models.poly_transformer.mlp": ("PolynomialMLP",),
    "models.toeplitz.encoder": ("RelativePositionEncoder",),
    "models.ski_tnn.kernel": ("InverseTimeWarpKernel",),
    "models.ski_tnn.operator": ("SKIOperator",),
    "models.ski_tnn.mixer": ("SKITNNMixer",),
    "models.tnn.mixer": ("TNNMixer",),
    "models.tnn.kernel": ("ToeplitzKernel",),
    "models.toeplitz.operator": ("ToeplitzOperator",),
    "models.ipa.token_shift": ("TokenShift",),
    "models.image_processing": ("SeqMixImageProcessor",),
    "ops": (
        "InducingGrid",
        "causal_taps",
        "linear_attention",
        "piecewise_column",
        "piecewise_column_dense",
        "polynomial_product",
        "short_conv",
        "ski_matmul",
        "ski_matmul_dense",
        "toeplitz_matmul",
        "toeplitz_matmul_dense",
        "two_sided_taps",
    ),
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


for _config_class in (TNNConfig, FDTNNConfig, SKITNNConfig, IPAConfig, PolyTransformerConfig, SeqMixHybridConfig):
    AutoConfig.register(_config_class.model_type, _config_class, exist_ok=True)
    # An image processor is loaded without any configuration.
    after_import("transformers.models.auto.image_processing_auto", partial(register_image_processor, _config_class))
before_first_config(lambda: importlib.import_module(".models.auto", __name__))
