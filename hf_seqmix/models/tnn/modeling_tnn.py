"""The Toeplitz neural network: its row of the table of families, and the classes that follow from it."""

from ...modules.tnn import TNNMixer
from ..family import IMAGE_HEADS, TEXT_HEADS, Family
from .configuration_tnn import TNNConfig

__all__ = [
    "TNN_FAMILY",
    "TNNForCausalLM",
    "TNNForImageClassification",
    "TNNForMaskedLM",
    "TNNForQuestionAnswering",
    "TNNForSequenceClassification",
    "TNNForTokenClassification",
    "TNNModel",
    "TNNPreTrainedModel",
    "build_tnn_mixer",
]


def build_tnn_mixer(config: TNNConfig, layer_idx: int) -> TNNMixer:
    """Build the mixer of one layer from a configuration."""
    return TNNMixer(
        config.hidden_size,
        config.mixer_size,
        decay=config.decay,
        is_causal=config.is_causal,
        activation=config.hidden_act,
        rpe_hidden_size=config.rpe_hidden_size,
        rpe_num_layers=config.rpe_num_layers,
        rpe_activation=config.rpe_activation,
        rpe_norm_type=config.rpe_norm_type,
        norm_eps=config.norm_eps,
        kernel_max_lag=config.kernel_max_lag,
        layer_idx=layer_idx,
        grid_size=config.mixing_grid,
    )


TNN_FAMILY = Family("TNN", TNNConfig, build_tnn_mixer, TEXT_HEADS + IMAGE_HEADS)

(
    TNNPreTrainedModel,
    TNNModel,
    TNNForCausalLM,
    TNNForMaskedLM,
    TNNForSequenceClassification,
    TNNForTokenClassification,
    TNNForQuestionAnswering,
    TNNForImageClassification,
) = TNN_FAMILY.build(__name__)
