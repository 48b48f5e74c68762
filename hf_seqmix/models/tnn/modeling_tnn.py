"""The Toeplitz neural network: its classes, and its row of the table of families."""

from transformers import GenerationMixin

from ..backbone import SeqMixModel
from ..family import Family
from ..heads import (
    SeqMixForCausalLM,
    SeqMixForImageClassification,
    SeqMixForMaskedLM,
    SeqMixForQuestionAnswering,
    SeqMixForSequenceClassification,
    SeqMixForTokenClassification,
)
from ..pretrained import SeqMixPreTrainedModel
from ..toeplitz.distilled import DistillableDecoder
from ..toeplitz.tail import attach_tail
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
    mixer = TNNMixer(
        config.hidden_size,
        config.mixer_size,
        decay=config.decay,
        channel_decays=config.channel_decays,
        layer_idx=layer_idx,
        **config.mixer_arguments,
    )
    attach_tail(mixer.operator, config, layer_idx)
    return mixer


class TNNPreTrainedModel(SeqMixPreTrainedModel):
    """What the models of TNN share: their configuration."""

    config: TNNConfig
    config_class = TNNConfig


class TNNModel(SeqMixModel, TNNPreTrainedModel):
    """Backbone of TNN, without a head; see `TNNConfig`."""


class TNNForCausalLM(DistillableDecoder, SeqMixForCausalLM, TNNPreTrainedModel, GenerationMixin):
    """Causal language model of TNN: the logits at each position are for the next token."""

    base_model_class = TNNModel


class TNNForMaskedLM(SeqMixForMaskedLM, TNNPreTrainedModel):
    """Masked language model of TNN: the logits at each position are for the token that was there."""

    base_model_class = TNNModel


class TNNForSequenceClassification(SeqMixForSequenceClassification, TNNPreTrainedModel):
    """Classifier or regressor of whole sequences on TNN."""

    base_model_class = TNNModel


class TNNForTokenClassification(SeqMixForTokenClassification, TNNPreTrainedModel):
    """Classifier of each token on TNN."""

    base_model_class = TNNModel


class TNNForQuestionAnswering(SeqMixForQuestionAnswering, TNNPreTrainedModel):
    """Extractive question answering on TNN."""

    base_model_class = TNNModel


class TNNForImageClassification(SeqMixForImageClassification, TNNPreTrainedModel):
    """Classifier or regressor of images on TNN."""

    base_model_class = TNNModel


TNN_FAMILY = Family(TNNPreTrainedModel, build_tnn_mixer)
