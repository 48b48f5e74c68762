"""Hybrids and the attention control: the backbone with a mixer of any family in each layer."""

from ..family import IMAGE_HEADS, TEXT_HEADS, Family
from ..mixers import register_mixer
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
    return SoftmaxAttention(config.hidden_size, config.num_heads, config.is_causal, config.rope_theta, layer_idx)


register_mixer("attention", AttentionConfig, build_attention_mixer)

HYBRID_FAMILY = Family("SeqMixHybrid", SeqMixHybridConfig, None, TEXT_HEADS + IMAGE_HEADS)

(
    SeqMixHybridPreTrainedModel,
    SeqMixHybridModel,
    SeqMixHybridForCausalLM,
    SeqMixHybridForMaskedLM,
    SeqMixHybridForSequenceClassification,
    SeqMixHybridForTokenClassification,
    SeqMixHybridForQuestionAnswering,
    SeqMixHybridForImageClassification,
) = HYBRID_FAMILY.build(__name__)
