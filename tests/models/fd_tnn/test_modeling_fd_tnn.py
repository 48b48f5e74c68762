"""FD-TNN: the common suite, and what is its own."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from hf_seqmix import FDTNNConfig, FDTNNForCausalLM, FDTNNForMaskedLM, SeqMixHybridConfig, SeqMixHybridModel
from hf_seqmix.models.fd_tnn.modeling_fd_tnn import FDTNN_FAMILY
from tests.models.suite import VOCAB, CompiledModelSuite, perturb
from tests.tolerances import assert_close, relative_error


class TestFDTNN(CompiledModelSuite):
    """Its cache and the place of a token in a packed row are TNN's, whose tests export them by default."""

    @pytest.mark.slow
    @pytest.mark.parametrize("static", [False, True])
    def test_the_librarys_exporter_takes_both_stages_of_generation(self, static):
        super().test_the_librarys_exporter_takes_both_stages_of_generation(static)

    @pytest.mark.slow
    def test_exports_with_positions(self, is_causal):
        super().test_exports_with_positions(is_causal)

    family = FDTNN_FAMILY

    def config(self, is_causal: bool = True, **kwargs: Any) -> FDTNNConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "expand_ratio": 1.5}
        fields |= {"rpe_hidden_size": 8, "max_position_embeddings": 24, "frequency_input": "cosine"}
        return FDTNNConfig(**{**fields, "rpe_activation": "gelu", "is_causal": is_causal, **kwargs})


@pytest.mark.parametrize(
    ("model_class", "fields", "parameters"),
    [
        (FDTNNForCausalLM, {"vocab_size": 50264}, 48_579_264),
        (
            FDTNNForMaskedLM,
            {
                "vocab_size": 50265,
                "hidden_size": 768,
                "num_hidden_layers": 12,
                "norm_position": "post",
                "is_causal": False,
            },
            128_019_801,
        ),
    ],
    ids=["causal", "masked"],
)
def test_parameter_counts_of_the_published_models(model_class, fields, parameters):
    with torch.device("meta"):
        model = model_class(FDTNNConfig(**fields))
    assert sum(p.numel() for p in model.parameters()) == parameters


def make(length: int = 8, **kwargs: Any) -> FDTNNForCausalLM:
    config = TestFDTNN().config(True, max_position_embeddings=length, **kwargs)
    return perturb(FDTNNForCausalLM(config)).double().eval()


@pytest.mark.parametrize("frequency_input", ["omega", "cosine"])
@pytest.mark.parametrize("length", [7, 8, 9, 13])
def test_lengths_around_the_grid_agree_cached_and_not(length, frequency_input):
    """A token's logits are those of the longest input, and of decoding token by token."""
    model = make(frequency_input=frequency_input)
    ids = torch.randint(VOCAB, (2, 20))
    longest = model(ids, use_cache=False).logits
    out = model(ids[:, :length], use_cache=False).logits
    assert_close(out, longest[:, :length])
    cache = DynamicCache(config=model.config)
    steps = [model(ids[:, i : i + 1], past_key_values=cache, use_cache=True).logits for i in range(length)]
    assert_close(torch.cat(steps, dim=1), out)


def test_context_length(tmp_path):
    model = make()
    ids = torch.randint(VOCAB, (2, 16))
    before = model(ids).logits
    model.set_context_length(16)
    after = model(ids).logits
    # The grid is finer: the first logits move, too, and later tokens see further back than 8.
    assert relative_error(after, before) > 1e-6
    assert model.model.layers[0].mixer.operator.kernel(16)[:, 9:].abs().max() > 0
    model.save_pretrained(tmp_path)
    assert torch.equal(FDTNNForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)(ids).logits, after)
    model.set_context_length(8)
    assert torch.equal(model(ids).logits, before)
    with pytest.raises(ValueError, match="the context length is 0"):
        model.set_context_length(0)
    with pytest.raises(ValueError, match="there are positions for 8 tokens and no more"):
        make(position_embedding_type="learned").set_context_length(16)


@pytest.mark.parametrize("wrong", [64.0, "64", None, True])
def test_a_context_length_is_an_integer(wrong):
    model = FDTNNForCausalLM(FDTNNConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, max_position_embeddings=32))
    with pytest.raises(TypeError, match=r"the context length is .*; give a number of tokens, an integer"):
        model.set_context_length(wrong)
    assert model.config.max_position_embeddings == 32


def test_context_length_of_layers_in_a_hybrid():
    config = SeqMixHybridConfig(
        vocab_size=VOCAB, hidden_size=16, max_position_embeddings=8, mixer_types=["fd_tnn", "attention", "tnn"]
    )
    model = SeqMixHybridModel(config).eval()
    model.set_context_length(32)
    assert model.layers[0].mixer.operator.kernel.max_length == 32
    assert model.config.max_position_embeddings == 32


@pytest.mark.parametrize("frequency_input", ["omega", "cosine"])
def test_zero_biases_give_finite_gradients(frequency_input):
    """With the masked model's initialization the encoder meets a zero vector at omega = 0, where a norm is steep."""
    for activation in ("relu", "silu", "gelu"):
        config = TestFDTNN().config(False, frequency_input=frequency_input, rpe_activation=activation)
        model = FDTNNForMaskedLM(config)
        ids = torch.randint(VOCAB, (2, 24))
        model(ids, labels=ids).loss.backward()
        norms = [p.grad.norm().item() for p in model.parameters()]
        assert max(norms) < 1e3, (activation, max(norms))


def test_bad_configurations_are_refused():
    with pytest.raises(ValueError, match="frequency_input is 'cos'; it must be one of 'omega', 'cosine'"):
        FDTNNConfig(frequency_input="cos")
