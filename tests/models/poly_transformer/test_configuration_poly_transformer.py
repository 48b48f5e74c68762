"""The configuration: what follows from it, and what it refuses."""

from typing import Any

import pytest
import torch

from hf_seqmix import PolyTransformerConfig, PolyTransformerModel
from tests.models.suite import VOCAB


def config(**kwargs: Any) -> PolyTransformerConfig:
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    return PolyTransformerConfig(**{**fields, "max_position_embeddings": 24, "intermediate_size": 32, **kwargs})


def test_norms_follow_the_normalization():
    assert config().norm_type == "simple_rms" and config(norm_type="layer").norm_type == "layer"
    for name in ("static", "batch", "none"):
        assert config(normalization=name).norm_type == name
    assert config(degree_form="soft").degree == 4 and config().degree == 3


def test_a_configuration_comes_back(tmp_path):
    own = config(head_degrees=[2, 3, 2.5, 4], normalization="static")
    own.save_pretrained(tmp_path)
    assert PolyTransformerConfig.from_pretrained(tmp_path).to_dict() == own.to_dict()
    assert own.num_attention_heads == 4 and own.head_dim == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"degree": 1}, "degree is 1; it must be at least 2"),
        ({"degree": 1.9}, "degree is 1.9; it must be at least 2"),
        ({"layer_degrees": [2, 1]}, "layer_degrees is 1; it must be at least 2"),
        ({"layer_degrees": [2, 3, 4]}, "layer_degrees has 3 entries, but num_hidden_layers is 2"),
        ({"head_degrees": [2, 3]}, "head_degrees has 2 entries, but num_attention_heads is 4"),
        ({"head_degrees": [2] * 4, "layer_degrees": [2] * 2}, "layer_degrees and head_degrees are both set"),
        ({"degree": 3, "layer_degrees": [2] * 2}, "degree and layer_degrees are both set"),
        ({"num_attention_heads": 3}, "num_attention_heads is 3; it must divide hidden_size 16"),
        ({"degree_form": "hard"}, "degree_form is 'hard'; it must be one of 'cumsum', 'gate', 'soft'"),
        ({"degree_form": "gate"}, "'gate', which only even degrees from 4 on have, but the degree is 3"),
        ({"degree_form": "soft", "degree": 3}, "'soft', which mixes degrees 2, 3 and 4, but the degree is 3"),
        ({"degree_form": "soft", "mixing": "toeplitz"}, "mixing 'toeplitz' has one form only"),
        ({"mixing": "fourier"}, "mixing is 'fourier'; it must be one of 'content', 'toeplitz', 'triangular'"),
        ({"feed_forward": "mlp"}, "feed_forward is 'mlp'; it must be one of 'glu', 'none'"),
        ({"normalization": "layer"}, "normalization is 'layer'; it must be one of 'rms', 'static', 'batch', 'none'"),
        ({"normalization": "static", "norm_type": "layer"}, "norm_type is 'layer', but normalization is 'static'"),
        ({"norm_type": "batch"}, "norm_type is 'batch', but normalization is 'rms': .* 'simple_rms' or 'layer'"),
        ({"soft_degree_target": 4.5}, "soft_degree_target is 4.5; it must be greater than 2 and less than 4"),
        ({"degree_penalty": -1}, "degree_penalty is -1; it must be at least 0"),
    ],
)
def test_bad_configurations_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        config(**fields)


def test_learned_positions_end():
    model = PolyTransformerModel(config(mixing="triangular", max_position_embeddings=8))
    with pytest.raises(ValueError, match=r"9 tokens, .* 0 to 7 \(max_position_embeddings\)"):
        model(torch.randint(VOCAB, (1, 9)))
    with pytest.raises(ValueError, match="the context length cannot be changed"):
        model.set_context_length(16)
    assert model.config.max_position_embeddings == 8
