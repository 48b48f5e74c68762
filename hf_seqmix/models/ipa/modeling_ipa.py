"""IPA: its row of the table of families, and the classes that follow from it."""

from ..family import IMAGE_HEADS, TEXT_HEADS, Family
from .configuration_ipa import IPAConfig
from .copying import ForCausalLM
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


IPA_FAMILY = Family(
    "IPA", IPAConfig, build_ipa_mixer, (ForCausalLM, *TEXT_HEADS[1:], *IMAGE_HEADS), build_feed_forward=build_ipa_row
)

(
    IPAPreTrainedModel,
    IPAModel,
    IPAForCausalLM,
    IPAForMaskedLM,
    IPAForSequenceClassification,
    IPAForTokenClassification,
    IPAForQuestionAnswering,
    IPAForImageClassification,
) = IPA_FAMILY.build(__name__)
