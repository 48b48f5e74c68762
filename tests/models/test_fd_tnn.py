"""FD-TNN: the common suite, and what is its own."""

from typing import Any

import pytest
import torch

from hf_seqmix import FDTNNConfig, FDTNNForCausalLM, FDTNNForMaskedLM
from hf_seqmix.models.fd_tnn.modeling_fd_tnn import FDTNN_FAMILY
from tests.models.suite import VOCAB, ModelSuite


class TestFDTNN(ModelSuite):
    family = FDTNN_FAMILY

    def config(self, is_causal: bool = True, **kwargs: Any) -> FDTNNConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "expand_ratio": 1.5}
        fields |= {"rpe_hidden_size": 8, "max_position_embeddings": 24, "frequency_input": "cosine"}
        return FDTNNConfig(**{**fields, "rpe_activation": "gelu", "is_causal": is_causal, **kwargs})
