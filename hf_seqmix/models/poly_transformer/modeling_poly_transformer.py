"""The polynomial-degree transformer: its row of the table of families, and the classes that follow from it."""

from ...modules.glu import GatedLinearUnit
from ..family import IMAGE_HEADS, TEXT_HEADS, Family
from .configuration_poly_transformer import PolyTransformerConfig
from .mixer import PolynomialMixer

__all__ = [
    "POLY_TRANSFORMER_FAMILY",
    "PolyTransformerForCausalLM",
    "PolyTransformerForImageClassification",
    "PolyTransformerForMaskedLM",
    "PolyTransformerForQuestionAnswering",
    "PolyTransformerForSequenceClassification",
    "PolyTransformerForTokenClassification",
    "PolyTransformerModel",
    "PolyTransformerPreTrainedModel",
    "build_poly_feed_forward",
    "build_poly_mixer",
]


def build_poly_mixer(config: PolyTransformerConfig, layer_idx: int) -> PolynomialMixer:
    """Build the mixer of one layer from a configuration."""
    return PolynomialMixer(
        config.hidden_size,
        num_heads=config.num_attention_heads,
        head_degrees=config.degrees_of(layer_idx),
        degree_form=config.form_of(layer_idx),
        mixing=config.mixing,
        max_positions=config.max_position_embeddings,
        is_causal=config.is_causal,
        use_bias=config.use_bias,
        normalization=config.normalization,
        norm_eps=config.norm_eps,
        degree_target=config.soft_degree_target,
        degree_penalty=config.degree_penalty,
        layer_idx=layer_idx,
    )


def build_poly_feed_forward(config: PolyTransformerConfig) -> GatedLinearUnit | None:
    """Build the feed-forward of a block, if it has one."""
    if config.feed_forward == "none":
        return None
    assert config.intermediate_size is not None
    return GatedLinearUnit(config.hidden_size, config.intermediate_size, config.hidden_act)


POLY_TRANSFORMER_FAMILY = Family(
    "PolyTransformer",
    PolyTransformerConfig,
    build_poly_mixer,
    TEXT_HEADS + IMAGE_HEADS,
    build_feed_forward=build_poly_feed_forward,
)

(
    PolyTransformerPreTrainedModel,
    PolyTransformerModel,
    PolyTransformerForCausalLM,
    PolyTransformerForMaskedLM,
    PolyTransformerForSequenceClassification,
    PolyTransformerForTokenClassification,
    PolyTransformerForQuestionAnswering,
    PolyTransformerForImageClassification,
) = POLY_TRANSFORMER_FAMILY.build(__name__)
