"""The context length of hybrids: what each layer was made with, and calls that are refused."""

import copy
from typing import Any

import pytest
import torch

from hf_seqmix import SeqMixHybridConfig, SeqMixHybridForCausalLM, replace_mixers
from tests.models.suite import VOCAB, perturb

OWN: dict[str, dict[str, Any]] = {
    "fd_tnn": {"rpe_hidden_size": 8, "expand_ratio": 1.5},
    "tnn": {"rpe_hidden_size": 8, "expand_ratio": 1.5, "decay": 0.9},
    "ipa": {"num_centers": 2},
    "poly_transformer": {"num_attention_heads": 2},
}


def hybrid(*mixers: str, **own: dict[str, Any]) -> SeqMixHybridForCausalLM:
    configs = {name: {**OWN[name], **own.get(name, {})} for name in mixers}
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "max_position_embeddings": 8}
    torch.manual_seed(0)
    config = SeqMixHybridConfig(**fields, mixer_types=list(mixers), mixer_configs=configs)
    return perturb(SeqMixHybridForCausalLM(config)).eval()


def logits(model: SeqMixHybridForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, use_cache=False).logits


@pytest.mark.parametrize("length", [4, 20])
def test_a_saved_hybrid_with_ipa_has_as_many_offsets_as_before(length, tmp_path):
    model, ids = hybrid("fd_tnn", "ipa"), torch.randint(VOCAB, (2, 24))
    before = logits(model, ids)
    model.set_context_length(length)
    after = logits(model, ids)
    assert not torch.equal(after, before)
    assert model.config.mixer_configs == {
        "fd_tnn": OWN["fd_tnn"],
        "ipa": {"num_centers": 2, "max_relative_distance": 8},
    }
    model.save_pretrained(tmp_path)
    loaded = SeqMixHybridForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded, ids), after)
    assert loaded.config.max_position_embeddings == length
    loaded.set_context_length(8)
    assert torch.equal(logits(loaded, ids), before)


def test_offsets_that_were_given_stay(tmp_path):
    model, ids = hybrid("fd_tnn", "ipa", ipa={"max_relative_distance": 5}), torch.randint(VOCAB, (2, 24))
    model.set_context_length(20)
    assert model.config.mixer_configs["ipa"]["max_relative_distance"] == 5
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(SeqMixHybridForCausalLM.from_pretrained(tmp_path), ids), logits(model, ids))


def test_a_new_layer_of_ipa_has_the_offsets_of_those_that_stay():
    model = hybrid("tnn", "ipa")
    model.set_context_length(20)
    found = replace_mixers(model, {0: "ipa"})
    shapes = {layer.mixer.relative_bias.shape for layer in found.model.layers}
    assert shapes == {model.model.layers[1].mixer.relative_bias.shape}


@pytest.mark.parametrize("mixing", ["toeplitz", "triangular"])
def test_a_refused_length_changes_no_layer(mixing):
    model = hybrid("fd_tnn", "ipa", "poly_transformer", poly_transformer={"mixing": mixing})
    ids = torch.randint(VOCAB, (2, 8))
    before, config = logits(model, ids), copy.deepcopy(model.config.to_dict())
    for length in (4, 20):
        with pytest.raises(ValueError, match=f"was to be {length}, but mixing is '{mixing}'"):
            model.set_context_length(length)
        assert torch.equal(logits(model, ids), before)
        assert model.config.to_dict() == config
    model.set_context_length(8)
    assert torch.equal(logits(model, ids), before)


def test_centers_of_a_layer_need_not_divide_the_width_of_the_whole():
    """The row operation of an IPA model needs that, and hybrids have none."""
    config = SeqMixHybridConfig(
        vocab_size=9,
        hidden_size=12,
        num_hidden_layers=1,
        mixer_types=["ipa"],
        mixer_configs={"ipa": {"num_centers": 5, "rank": 10}},
    )
    assert config.mixer_config("ipa").num_centers == 5
    assert SeqMixHybridConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert SeqMixHybridForCausalLM(config)(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 9)
