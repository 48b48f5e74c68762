"""Hybrids and the attention control: their classes, and their row of the table of families."""

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
from ..mixers import register_mixer
from ..pretrained import SeqMixPreTrainedModel
from ..toeplitz.distilled import DistillableDecoder
from .attention import SoftmaxAttention
from .configuration_hybrid import AttentionConfig, SeqMixHybridConfig

__all__ = [
    "HYBRID_FAMILY",
    "SeqMixHybridForCausalLM",
    "SeqMixHybridForImageClassification",
    "SeqMixHybridForMaskedLM",
    "SeqMixHybridForQuestionAnswering",
    "SeqMixHybridForSequenceClassification",
    "SeqMixHybridForTokenClassification",
    "SeqMixHybridModel",
    "SeqMixHybridPreTrainedModel",
    "build_attention_mixer",
]


def build_attention_mixer(config: AttentionConfig, layer_idx: int) -> SoftmaxAttention:
    """Build the attention of one layer from a configuration."""
    return SoftmaxAttention(
        config.hidden_size, config.num_heads, config.is_causal, config.rope_theta, layer_idx, config.head_dim
    )


class SeqMixHybridPreTrainedModel(SeqMixPreTrainedModel):
    """What the models of hybrids share: their configuration."""

    config: SeqMixHybridConfig
    config_class = SeqMixHybridConfig

    def _configure_context_length(self, length: int) -> None:
        kept = self.config.mixer_configs_at(length)
        super()._configure_context_length(length)
        self.config.mixer_configs = kept


class SeqMixHybridModel(SeqMixModel, SeqMixHybridPreTrainedModel):
    """Backbone of hybrids, without a head; see `SeqMixHybridConfig`."""


class SeqMixHybridForCausalLM(DistillableDecoder, SeqMixForCausalLM, SeqMixHybridPreTrainedModel, GenerationMixin):
    """Causal language model of hybrids: the logits at each position are for the next token."""

    base_model_class = SeqMixHybridModel


class SeqMixHybridForMaskedLM(SeqMixForMaskedLM, SeqMixHybridPreTrainedModel):
    """Masked language model of hybrids: the logits at each position are for the token that was there."""

    base_model_class = SeqMixHybridModel


class SeqMixHybridForSequenceClassification(SeqMixForSequenceClassification, SeqMixHybridPreTrainedModel):
    """Classifier or regressor of whole sequences on hybrids."""

    base_model_class = SeqMixHybridModel


class SeqMixHybridForTokenClassification(SeqMixForTokenClassification, SeqMixHybridPreTrainedModel):
    """Classifier of each token on hybrids."""

    base_model_class = SeqMixHybridModel


class SeqMixHybridForQuestionAnswering(SeqMixForQuestionAnswering, SeqMixHybridPreTrainedModel):
    """Extractive question answering on hybrids."""

    base_model_class = SeqMixHybridModel


class SeqMixHybridForImageClassification(SeqMixForImageClassification, SeqMixHybridPreTrainedModel):
    """Classifier or regressor of images on hybrids."""

    base_model_class = SeqMixHybridModel


register_mixer("attention", AttentionConfig, build_attention_mixer)

HYBRID_FAMILY = Family(SeqMixHybridPreTrainedModel, None)
