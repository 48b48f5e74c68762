"""FD-TNN: its classes, and its row of the table of families."""

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
    mixer = FDTNNMixer(
        config.hidden_size,
        config.max_position_embeddings,
        config.mixer_size,
        frequency_input=config.frequency_input,
        layer_idx=layer_idx,
        **config.mixer_arguments,
    )
    attach_tail(mixer.operator, config, layer_idx)
    return mixer


class FDTNNPreTrainedModel(SeqMixPreTrainedModel):
    """What the models of FD-TNN share: their configuration."""

    config: FDTNNConfig
    config_class = FDTNNConfig


class FDTNNModel(SeqMixModel, FDTNNPreTrainedModel):
    """Backbone of FD-TNN, without a head; see `FDTNNConfig`."""


class FDTNNForCausalLM(DistillableDecoder, SeqMixForCausalLM, FDTNNPreTrainedModel, GenerationMixin):
    """Causal language model of FD-TNN: the logits at each position are for the next token."""

    base_model_class = FDTNNModel


class FDTNNForMaskedLM(SeqMixForMaskedLM, FDTNNPreTrainedModel):
    """Masked language model of FD-TNN: the logits at each position are for the token that was there."""

    base_model_class = FDTNNModel


class FDTNNForSequenceClassification(SeqMixForSequenceClassification, FDTNNPreTrainedModel):
    """Classifier or regressor of whole sequences on FD-TNN."""

    base_model_class = FDTNNModel


class FDTNNForTokenClassification(SeqMixForTokenClassification, FDTNNPreTrainedModel):
    """Classifier of each token on FD-TNN."""

    base_model_class = FDTNNModel


class FDTNNForQuestionAnswering(SeqMixForQuestionAnswering, FDTNNPreTrainedModel):
    """Extractive question answering on FD-TNN."""

    base_model_class = FDTNNModel


class FDTNNForImageClassification(SeqMixForImageClassification, FDTNNPreTrainedModel):
    """Classifier or regressor of images on FD-TNN."""

    base_model_class = FDTNNModel


FDTNN_FAMILY = Family(FDTNNPreTrainedModel, build_fd_tnn_mixer)
