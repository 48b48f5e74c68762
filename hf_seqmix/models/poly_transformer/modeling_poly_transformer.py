"""The polynomial-degree transformer: its classes, and its row of the table of families."""

from transformers import GenerationMixin

from ...modules.glu import GatedLinearUnit
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
        forget_gate=config.forget_gate,
        kernel_power=config.kernel_power,
        denominator=config.denominator,
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


class PolyTransformerPreTrainedModel(SeqMixPreTrainedModel):
    """What the models of the polynomial-degree transformer share: their configuration."""

    config: PolyTransformerConfig
    config_class = PolyTransformerConfig


class PolyTransformerModel(SeqMixModel, PolyTransformerPreTrainedModel):
    """Backbone of the polynomial-degree transformer, without a head; see `PolyTransformerConfig`."""


class PolyTransformerForCausalLM(SeqMixForCausalLM, PolyTransformerPreTrainedModel, GenerationMixin):
    """Causal language model of polynomials: the logits at each position are for the next token."""

    base_model_class = PolyTransformerModel


class PolyTransformerForMaskedLM(SeqMixForMaskedLM, PolyTransformerPreTrainedModel):
    """Masked language model of polynomials: the logits at each position are for the token that was there."""

    base_model_class = PolyTransformerModel


class PolyTransformerForSequenceClassification(SeqMixForSequenceClassification, PolyTransformerPreTrainedModel):
    """Classifier or regressor of whole sequences on the polynomial-degree transformer."""

    base_model_class = PolyTransformerModel


class PolyTransformerForTokenClassification(SeqMixForTokenClassification, PolyTransformerPreTrainedModel):
    """Classifier of each token on the polynomial-degree transformer."""

    base_model_class = PolyTransformerModel


class PolyTransformerForQuestionAnswering(SeqMixForQuestionAnswering, PolyTransformerPreTrainedModel):
    """Extractive question answering on the polynomial-degree transformer."""

    base_model_class = PolyTransformerModel


class PolyTransformerForImageClassification(SeqMixForImageClassification, PolyTransformerPreTrainedModel):
    """Classifier or regressor of images on the polynomial-degree transformer."""

    base_model_class = PolyTransformerModel


POLY_TRANSFORMER_FAMILY = Family(
    PolyTransformerPreTrainedModel, build_poly_mixer, build_feed_forward=build_poly_feed_forward
)
