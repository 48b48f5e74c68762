"""SKI-TNN: the common suite, and what is its own."""

from typing import Any

import pytest
import torch

from hf_seqmix import SKITNNConfig, SKITNNForMaskedLM
from hf_seqmix.models.ski_tnn.modeling_ski_tnn import SKITNN_FAMILY
from tests.models.suite import VOCAB, ModelSuite


class TestSKITNN(ModelSuite):
    family = SKITNN_FAMILY
    directions = (False,)

    def config(self, is_causal: bool = False, **kwargs: Any) -> SKITNNConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "expand_ratio": 1.5}
        fields |= {"num_inducing_points": 5, "conv_kernel_size": 3, "max_position_embeddings": 20}
        return SKITNNConfig(**{**fields, "is_causal": is_causal, **kwargs})
