"""The polynomial-degree transformer: the common suite, and what is its own."""

from typing import Any

from hf_seqmix import PolyTransformerConfig
from hf_seqmix.models.poly_transformer.modeling_poly_transformer import POLY_TRANSFORMER_FAMILY
from tests.models.suite import VOCAB, ModelSuite


class TestPolyTransformer(ModelSuite):
    family = POLY_TRANSFORMER_FAMILY

    def config(self, is_causal: bool = True, **kwargs: Any) -> PolyTransformerConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
        fields |= {"max_position_embeddings": 24, "intermediate_size": 32}
        return PolyTransformerConfig(**{**fields, "is_causal": is_causal, **kwargs})
