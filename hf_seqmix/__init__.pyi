"""Every public name, and where it is defined: `__init__.py` reads this file, and loads a name on demand."""

from . import analysis as analysis
from . import cache as cache
from . import data as data
from . import hub as hub
from . import metrics as metrics
from . import models as models
from . import modules as modules
from . import ops as ops
from . import serving as serving
from . import training as training
from ._version import __version__ as __version__
from .models.auto import IMAGE_HEADS as IMAGE_HEADS
from .models.auto import TEXT_HEADS as TEXT_HEADS
from .models.auto import register_family as register_family
from .models.configuration import SeqMixConfig as SeqMixConfig
from .models.family import Family as Family
from .models.fd_tnn.configuration_fd_tnn import FDTNNConfig as FDTNNConfig
from .models.fd_tnn.kernel import FrequencyKernel as FrequencyKernel
from .models.fd_tnn.mixer import FDTNNMixer as FDTNNMixer
from .models.fd_tnn.modeling_fd_tnn import FDTNNForCausalLM as FDTNNForCausalLM
from .models.fd_tnn.modeling_fd_tnn import FDTNNForImageClassification as FDTNNForImageClassification
from .models.fd_tnn.modeling_fd_tnn import FDTNNForMaskedLM as FDTNNForMaskedLM
from .models.fd_tnn.modeling_fd_tnn import FDTNNForQuestionAnswering as FDTNNForQuestionAnswering
from .models.fd_tnn.modeling_fd_tnn import FDTNNForSequenceClassification as FDTNNForSequenceClassification
from .models.fd_tnn.modeling_fd_tnn import FDTNNForTokenClassification as FDTNNForTokenClassification
from .models.fd_tnn.modeling_fd_tnn import FDTNNModel as FDTNNModel
from .models.fd_tnn.modeling_fd_tnn import FDTNNPreTrainedModel as FDTNNPreTrainedModel
from .models.heads.copy_head import CopyHead as CopyHead
from .models.hybrid.attention import SoftmaxAttention as SoftmaxAttention
from .models.hybrid.configuration_hybrid import AttentionConfig as AttentionConfig
from .models.hybrid.configuration_hybrid import SeqMixHybridConfig as SeqMixHybridConfig
from .models.hybrid.conversion import from_hybrid as from_hybrid
from .models.hybrid.conversion import replace_mixers as replace_mixers
from .models.hybrid.conversion import to_hybrid as to_hybrid
from .models.hybrid.modeling_hybrid import SeqMixHybridForCausalLM as SeqMixHybridForCausalLM
from .models.hybrid.modeling_hybrid import SeqMixHybridForImageClassification as SeqMixHybridForImageClassification
from .models.hybrid.modeling_hybrid import SeqMixHybridForMaskedLM as SeqMixHybridForMaskedLM
from .models.hybrid.modeling_hybrid import SeqMixHybridForQuestionAnswering as SeqMixHybridForQuestionAnswering
from .models.hybrid.modeling_hybrid import (
    SeqMixHybridForSequenceClassification as SeqMixHybridForSequenceClassification,
)
from .models.hybrid.modeling_hybrid import SeqMixHybridForTokenClassification as SeqMixHybridForTokenClassification
from .models.hybrid.modeling_hybrid import SeqMixHybridModel as SeqMixHybridModel
from .models.hybrid.modeling_hybrid import SeqMixHybridPreTrainedModel as SeqMixHybridPreTrainedModel
from .models.images.processing import SeqMixImageProcessor as SeqMixImageProcessor
from .models.ipa.configuration_ipa import IPAConfig as IPAConfig
from .models.ipa.mixer import IPAMixer as IPAMixer
from .models.ipa.modeling_ipa import IPAForCausalLM as IPAForCausalLM
from .models.ipa.modeling_ipa import IPAForImageClassification as IPAForImageClassification
from .models.ipa.modeling_ipa import IPAForMaskedLM as IPAForMaskedLM
from .models.ipa.modeling_ipa import IPAForQuestionAnswering as IPAForQuestionAnswering
from .models.ipa.modeling_ipa import IPAForSequenceClassification as IPAForSequenceClassification
from .models.ipa.modeling_ipa import IPAForTokenClassification as IPAForTokenClassification
from .models.ipa.modeling_ipa import IPAModel as IPAModel
from .models.ipa.modeling_ipa import IPAPreTrainedModel as IPAPreTrainedModel
from .models.ipa.row import PiecewiseRow as PiecewiseRow
from .models.mixers import register_mixer as register_mixer
from .models.poly_transformer.configuration_poly_transformer import PolyTransformerConfig as PolyTransformerConfig
from .models.poly_transformer.mixer import PolynomialMixer as PolynomialMixer
from .models.poly_transformer.mlp import PolynomialMLP as PolynomialMLP
from .models.poly_transformer.modeling_poly_transformer import PolyTransformerForCausalLM as PolyTransformerForCausalLM
from .models.poly_transformer.modeling_poly_transformer import (
    PolyTransformerForImageClassification as PolyTransformerForImageClassification,
)
from .models.poly_transformer.modeling_poly_transformer import PolyTransformerForMaskedLM as PolyTransformerForMaskedLM
from .models.poly_transformer.modeling_poly_transformer import (
    PolyTransformerForQuestionAnswering as PolyTransformerForQuestionAnswering,
)
from .models.poly_transformer.modeling_poly_transformer import (
    PolyTransformerForSequenceClassification as PolyTransformerForSequenceClassification,
)
from .models.poly_transformer.modeling_poly_transformer import (
    PolyTransformerForTokenClassification as PolyTransformerForTokenClassification,
)
from .models.poly_transformer.modeling_poly_transformer import PolyTransformerModel as PolyTransformerModel
from .models.poly_transformer.modeling_poly_transformer import (
    PolyTransformerPreTrainedModel as PolyTransformerPreTrainedModel,
)
from .models.ski_tnn.configuration_ski_tnn import SKITNNConfig as SKITNNConfig
from .models.ski_tnn.kernel import InverseTimeWarpKernel as InverseTimeWarpKernel
from .models.ski_tnn.mixer import SKITNNMixer as SKITNNMixer
from .models.ski_tnn.modeling_ski_tnn import SKITNNForImageClassification as SKITNNForImageClassification
from .models.ski_tnn.modeling_ski_tnn import SKITNNForMaskedLM as SKITNNForMaskedLM
from .models.ski_tnn.modeling_ski_tnn import SKITNNForQuestionAnswering as SKITNNForQuestionAnswering
from .models.ski_tnn.modeling_ski_tnn import SKITNNForSequenceClassification as SKITNNForSequenceClassification
from .models.ski_tnn.modeling_ski_tnn import SKITNNForTokenClassification as SKITNNForTokenClassification
from .models.ski_tnn.modeling_ski_tnn import SKITNNModel as SKITNNModel
from .models.ski_tnn.modeling_ski_tnn import SKITNNPreTrainedModel as SKITNNPreTrainedModel
from .models.ski_tnn.operator import SKIOperator as SKIOperator
from .models.tnn.configuration_tnn import TNNConfig as TNNConfig
from .models.tnn.kernel import ToeplitzKernel as ToeplitzKernel
from .models.tnn.mixer import TNNMixer as TNNMixer
from .models.tnn.modeling_tnn import TNNForCausalLM as TNNForCausalLM
from .models.tnn.modeling_tnn import TNNForImageClassification as TNNForImageClassification
from .models.tnn.modeling_tnn import TNNForMaskedLM as TNNForMaskedLM
from .models.tnn.modeling_tnn import TNNForQuestionAnswering as TNNForQuestionAnswering
from .models.tnn.modeling_tnn import TNNForSequenceClassification as TNNForSequenceClassification
from .models.tnn.modeling_tnn import TNNForTokenClassification as TNNForTokenClassification
from .models.tnn.modeling_tnn import TNNModel as TNNModel
from .models.tnn.modeling_tnn import TNNPreTrainedModel as TNNPreTrainedModel
from .models.toeplitz.encoder import RelativePositionEncoder as RelativePositionEncoder
from .models.toeplitz.gated_unit import GatedToeplitzUnit as GatedToeplitzUnit
from .models.toeplitz.operator import ToeplitzOperator as ToeplitzOperator
from .modules.glu import GatedLinearUnit as GatedLinearUnit
from .modules.norms import MaskedBatchNorm as MaskedBatchNorm
from .modules.norms import SimpleRMSNorm as SimpleRMSNorm
from .modules.norms import StaticNorm as StaticNorm
from .modules.norms import calibrate_static_norms as calibrate_static_norms
from .modules.short_convolution import ShortConvolution as ShortConvolution
from .ops import InducingGrid as InducingGrid
from .ops import causal_taps as causal_taps
from .ops import linear_attention as linear_attention
from .ops import piecewise_column as piecewise_column
from .ops import piecewise_column_dense as piecewise_column_dense
from .ops import polynomial_product as polynomial_product
from .ops import power_attention as power_attention
from .ops import power_attention_dense as power_attention_dense
from .ops import short_conv as short_conv
from .ops import ski_matmul as ski_matmul
from .ops import ski_matmul_dense as ski_matmul_dense
from .ops import toeplitz_matmul as toeplitz_matmul
from .ops import toeplitz_matmul_dense as toeplitz_matmul_dense
from .ops import two_sided_taps as two_sided_taps
