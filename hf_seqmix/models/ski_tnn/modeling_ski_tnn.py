"""SKI-TNN: its row of the table of families, and the classes that follow from it."""

from ..family import IMAGE_HEADS, TEXT_HEADS, Family
from ..heads import SeqMixForCausalLM
from .configuration_ski_tnn import SKITNNConfig
from .mixer import SKITNNMixer

__all__ = [
    "SKITNN_FAMILY",
    "SKITNNForImageClassification",
    "SKITNNForMaskedLM",
    "SKITNNForQuestionAnswering",
    "SKITNNForSequenceClassification",
    "SKITNNForTokenClassification",
    "SKITNNModel",
    "SKITNNPreTrainedModel",
    "build_ski_tnn_mixer",
]


def build_ski_tnn_mixer(config: SKITNNConfig, layer_idx: int) -> SKITNNMixer:
    """Build the mixer of one layer from a configuration."""
    return SKITNNMixer(
        config.hidden_size,
        config.max_position_embeddings,
        config.mixer_size,
        num_inducing_points=config.num_inducing_points,
        conv_kernel_size=config.conv_kernel_size,
        interpolation=config.interpolation,
        decay=config.decay,
        layer_idx=layer_idx,
        **config.mixer_arguments,
    )


_BIDIRECTIONAL_HEADS = tuple(head for head in TEXT_HEADS if head is not SeqMixForCausalLM) + IMAGE_HEADS

SKITNN_FAMILY = Family("SKITNN", SKITNNConfig, build_ski_tnn_mixer, _BIDIRECTIONAL_HEADS)

(
    SKITNNPreTrainedModel,
    SKITNNModel,
    SKITNNForMaskedLM,
    SKITNNForSequenceClassification,
    SKITNNForTokenClassification,
    SKITNNForQuestionAnswering,
    SKITNNForImageClassification,
) = SKITNN_FAMILY.build(__name__)
