"""SKI-TNN: its classes, and its row of the table of families."""

from ..backbone import SeqMixModel
from ..family import Family
from ..heads import (
    SeqMixForImageClassification,
    SeqMixForMaskedLM,
    SeqMixForQuestionAnswering,
    SeqMixForSequenceClassification,
    SeqMixForTokenClassification,
)
from ..pretrained import SeqMixPreTrainedModel
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
        channel_decays=config.channel_decays,
        scale_kernel=config.scale_kernel,
        layer_idx=layer_idx,
        **config.mixer_arguments,
    )


class SKITNNPreTrainedModel(SeqMixPreTrainedModel):
    """What the models of SKI-TNN share: their configuration."""

    config: SKITNNConfig
    config_class = SKITNNConfig


class SKITNNModel(SeqMixModel, SKITNNPreTrainedModel):
    """Backbone of SKI-TNN, without a head; see `SKITNNConfig`."""


class SKITNNForMaskedLM(SeqMixForMaskedLM, SKITNNPreTrainedModel):
    """Masked language model of SKI-TNN: the logits at each position are for the token that was there."""

    base_model_class = SKITNNModel


class SKITNNForSequenceClassification(SeqMixForSequenceClassification, SKITNNPreTrainedModel):
    """Classifier or regressor of whole sequences on SKI-TNN."""

    base_model_class = SKITNNModel


class SKITNNForTokenClassification(SeqMixForTokenClassification, SKITNNPreTrainedModel):
    """Classifier of each token on SKI-TNN."""

    base_model_class = SKITNNModel


class SKITNNForQuestionAnswering(SeqMixForQuestionAnswering, SKITNNPreTrainedModel):
    """Extractive question answering on SKI-TNN."""

    base_model_class = SKITNNModel


class SKITNNForImageClassification(SeqMixForImageClassification, SKITNNPreTrainedModel):
    """Classifier or regressor of images on SKI-TNN."""

    base_model_class = SKITNNModel


SKITNN_FAMILY = Family(SKITNNPreTrainedModel, build_ski_tnn_mixer)
