"""Causality, order and degree of models, told by their outputs."""

from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from hf_seqmix import PolynomialMixer, SeqMixHybridConfig, SeqMixHybridModel
from hf_seqmix.analysis import check_causal, check_equivariance, polynomial_degree
from hf_seqmix.analysis.properties import Degree
from tests.models.suite import perturb


def make(mixer: str, is_causal: bool, **own: Any) -> SeqMixHybridModel:
    config = SeqMixHybridConfig(
        vocab_size=3, hidden_size=16, mixer_types=[mixer] * 2, mixer_configs={mixer: own}, is_causal=is_causal
    )
    return perturb(SeqMixHybridModel(config))


@pytest.mark.parametrize("mixer", ["attention", "tnn", "fd_tnn", "ipa", "poly_transformer", "short_conv"])
def test_causal_models_are_causal_and_others_are_not(mixer):
    assert check_causal(make(mixer, True))
    leaks = check_causal(make(mixer, False, **({"taps": 3} if mixer == "short_conv" else {})))
    assert not leaks
    assert leaks.largest > 1e-3


@pytest.mark.parametrize("check", [check_causal, check_equivariance])
def test_one_token_says_nothing(check):
    with pytest.raises(ValueError, match="length is 1 and batch 2: give at least 2 tokens"):
        check(make("tnn", False), length=1)


@pytest.mark.parametrize("check", [check_causal, check_equivariance])
def test_outputs_that_are_no_numbers_prove_nothing(check):
    model = make("attention", True)
    model.layers[0].mixer.o_proj.weight.data.fill_(float("nan"))
    assert not check(model, length=3)


def test_models_of_the_library():
    sizes = {"vocab_size": 3, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert check_causal(LlamaModel(LlamaConfig(intermediate_size=8, **sizes)))
    assert not check_causal(BertModel(BertConfig(intermediate_size=8, **sizes)))


def test_a_leak_into_one_place_is_found():
    model = make("tnn", True)

    class Peek(torch.nn.Module):
        def forward(self, hidden_states: torch.Tensor, mask: Any = None) -> torch.Tensor:
            hidden_states = hidden_states.clone()
            hidden_states[:, 5] += 1e-6 * hidden_states[:, 9]
            return hidden_states

    model.norm = Peek()
    leak = check_causal(model)
    assert not leak
    assert leak.output == 5


def test_encoders_without_positions_do_not_know_the_order():
    assert check_equivariance(make("attention", False, rope_theta=None))
    assert not check_equivariance(make("attention", False))
    assert not check_equivariance(make("tnn", False))
    assert not check_equivariance(make("attention", True, rope_theta=None))  # the mask is an order


@pytest.mark.parametrize("degree", [2, 3, 4, 5])
def test_the_degree_of_a_mixer(degree):
    options = {"degree": degree, "num_heads": 2, "normalization": "none"}
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    homogeneous = perturb(PolynomialMixer(8, use_bias=False, **options)).double()
    measured = polynomial_degree(homogeneous, x)
    assert measured.degree == degree
    assert max(abs(slope - degree) for slope in measured.slopes) < 1e-6
    assert polynomial_degree(perturb(PolynomialMixer(8, **options)).double(), x).degree == degree


def test_layers_multiply_degrees():
    config = SeqMixHybridConfig(
        vocab_size=3,
        hidden_size=8,
        mixer_types=["poly_transformer"] * 2,
        mixer_configs={"poly_transformer": {"degree": 3, "num_attention_heads": 2, "normalization": "none"}},
        norm_type="none",
    )
    model = perturb(SeqMixHybridModel(config)).double().eval()
    for block in model.layers:
        block.mlp = None
    model.norm = None
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    assert polynomial_degree(lambda embeddings: model(inputs_embeds=embeddings).last_hidden_state, x).degree == 9


def test_what_is_no_polynomial_has_no_degree():
    x = torch.randn(5, dtype=torch.float64)
    assert polynomial_degree(lambda x: x.abs().sqrt(), x).degree is None
    assert polynomial_degree(torch.tanh, x).degree == 0
    assert polynomial_degree(lambda x: x**3 + 1e3 * x, x).degree == 3
    assert polynomial_degree(lambda x: x**200, x).degree == 200  # overflows on the way
    assert [Degree(2.0, slopes).degree for slopes in ([1.0, 2.0, 2.0], [2.0, 1.9, 2.0])] == [2, None]
    with pytest.raises(ValueError, match="f is zero or not finite along this ray"):
        polynomial_degree(torch.zeros_like, x)


@pytest.mark.parametrize("largest", [1.0, 0, -2.0, float("inf"), float("nan")])
def test_a_slope_takes_two_scales(largest):
    x = torch.randn(5, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"largest is {largest}; it must be a finite number of at least 2"):
        polynomial_degree(torch.square, x, largest)
    assert polynomial_degree(torch.square, x, largest=2).slopes == pytest.approx([2])
