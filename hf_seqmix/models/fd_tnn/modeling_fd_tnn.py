"""FD-TNN: its row of the table of families, and the classes that follow from it."""

from ..family import IMAGE_HEADS, TEXT_HEADS, Family
from .configuration_fd_tnn import FDTNNConfig
from .mixer import FDTNNMixer

__all__ = [
    "FDTNN_FAMILY",
    "FDTNNForCausalLM",
    "FDTNNForImageClassification",
    "FDTNNForMaskedLM",
    "FDTNNForQuestionAnswering",
    "FDTNNForSequenceClassification",
    "FDTNNForTokenClassification",
    "FDTNNModel",
    "FDTNNPreTrainedModel",
    "build_fd_tnn_mixer",
]


def build_fd_tnn_mixer(config: FDTNNConfig, layer_idx: int) -> FDTNNMixer:
    """Build the mixer of one layer from a configuration."""
    return FDTNNMixer(
        config.hidden_size,
        config.max_position_embeddings,
        config.mixer_size,
        frequency_input=config.frequency_input,
        layer_idx=layer_idx,
        **config.mixer_arguments,
    )


FDTNN_FAMILY = Family("FDTNN", FDTNNConfig, build_fd_tnn_mixer, TEXT_HEADS + IMAGE_HEADS)

(
    FDTNNPreTrainedModel,
    FDTNNModel,
    FDTNNForCausalLM,
    FDTNNForMaskedLM,
    FDTNNForSequenceClassification,
    FDTNNForTokenClassification,
    FDTNNForQuestionAnswering,
    FDTNNForImageClassification,
) = FDTNN_FAMILY.build(__name__)
