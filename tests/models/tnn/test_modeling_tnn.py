"""The Toeplitz neural network."""

from typing import Any

import pytest
import torch

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForMaskedLM
from hf_seqmix.models.tnn.modeling_tnn import TNN_FAMILY
from tests.models.suite import VOCAB, CompiledModelSuite


class TestTNN(CompiledModelSuite):
    family = TNN_FAMILY

    def config(self, is_causal: bool = True, **kwargs: Any) -> TNNConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "expand_ratio": 1.5, "decay": 0.95}
        return TNNConfig(**{**fields, "rpe_hidden_size": 8, "is_causal": is_causal, **kwargs})


@pytest.mark.parametrize(
    ("model_class", "fields", "parameters"),
    [
        (TNNForCausalLM, {"vocab_size": 50264, "rpe_num_layers": 6}, 48_666_624),
        (TNNForCausalLM, {"vocab_size": 50264}, 48_579_264),
        (
            TNNForMaskedLM,
            {
                "vocab_size": 50265,
                "hidden_size": 768,
                "num_hidden_layers": 12,
                "rpe_num_layers": 6,
                "norm_position": "post",
                "is_causal": False,
            },
            126_372_441,
        ),
    ],
)
def test_parameters_of_the_published_models(model_class, fields, parameters):
    with torch.device("meta"):
        model = model_class(TNNConfig(**fields))
    assert sum(p.numel() for p in model.parameters()) == parameters
