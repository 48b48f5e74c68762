"""The Toeplitz neural network: its row of the table of families, and the classes that follow from it."""

from ..family import IMAGE_HEADS, TEXT_HEADS, Family
from .configuration_tnn import TNNConfig
from .mixer import TNNMixer

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
        config.hidden_size, config.mixer_size, decay=config.decay, layer_idx=layer_idx, **config.mixer_arguments
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
