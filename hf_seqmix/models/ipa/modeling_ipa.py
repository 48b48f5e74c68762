"""IPA: its classes, and its row of the table of families."""

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
from .configuration_ipa import IPAConfig
from .mixer import IPAMixer
from .row import PiecewiseRow

__all__ = [
    "IPA_FAMILY",
    "IPAForCausalLM",
    "IPAForImageClassification",
    "IPAForMaskedLM",
    "IPAForQuestionAnswering",
    "IPAForSequenceClassification",
    "IPAForTokenClassification",
    "IPAModel",
    "IPAPreTrainedModel",
    "build_ipa_mixer",
    "build_ipa_row",
]


def build_ipa_mixer(config: IPAConfig, layer_idx: int) -> IPAMixer:
    """Build the column operation of one layer from a configuration."""
    assert config.max_relative_distance is not None
    return IPAMixer(
        config.hidden_size,
        config.num_centers,
        rank=config.rank,
        kernel_rank=config.kernel_rank,
        coupling=config.coupling,
        kernel_norm=config.kernel_norm,
        max_relative_distance=config.max_relative_distance,
        token_shift=config.token_shift,
        output_norm=config.output_norm,
        norm_eps=config.norm_eps,
        is_causal=config.is_causal,
        layer_idx=layer_idx,
    )


def build_ipa_row(config: IPAConfig) -> PiecewiseRow:
    """Build the row operation of one layer from a configuration."""
    assert config.intermediate_size is not None and config.num_row_centers is not None
    return PiecewiseRow(config.hidden_size, config.intermediate_size, config.num_row_centers)


class IPAPreTrainedModel(SeqMixPreTrainedModel):
    """What the models of IPA share: their configuration."""

    config: IPAConfig
    config_class = IPAConfig


class IPAModel(SeqMixModel, IPAPreTrainedModel):
    """Backbone of IPA, without a head; see `IPAConfig`."""


class IPAForCausalLM(SeqMixForCausalLM, IPAPreTrainedModel, GenerationMixin):
    """Causal language model of IPA: the logits at each position are for the next token."""

    base_model_class = IPAModel


class IPAForMaskedLM(SeqMixForMaskedLM, IPAPreTrainedModel):
    """Masked language model of IPA: the logits at each position are for the token that was there."""

    base_model_class = IPAModel


class IPAForSequenceClassification(SeqMixForSequenceClassification, IPAPreTrainedModel):
    """Classifier or regressor of whole sequences on IPA."""

    base_model_class = IPAModel


class IPAForTokenClassification(SeqMixForTokenClassification, IPAPreTrainedModel):
    """Classifier of each token on IPA."""

    base_model_class = IPAModel


class IPAForQuestionAnswering(SeqMixForQuestionAnswering, IPAPreTrainedModel):
    """Extractive question answering on IPA."""

    base_model_class = IPAModel


class IPAForImageClassification(SeqMixForImageClassification, IPAPreTrainedModel):
    """Classifier or regressor of images on IPA."""

    base_model_class = IPAModel


IPA_FAMILY = Family(IPAPreTrainedModel, build_ipa_mixer, build_feed_forward=build_ipa_row)
