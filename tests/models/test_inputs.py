"""What a model refuses to be called with, and what it then says."""

import pytest
import torch
from transformers import DynamicCache

from hf_seqmix import IPAConfig, SeqMixHybridConfig, SeqMixHybridForCausalLM, TNNConfig, TNNForCausalLM, TNNModel
from tests.models.suite import PADS

VOCAB = 31
SMALL = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 12}
IDS = torch.randint(VOCAB, (2, 9))


@pytest.fixture(params=["tnn", "hybrid"])
def model(request: pytest.FixtureRequest) -> TNNForCausalLM | SeqMixHybridForCausalLM:
    if request.param == "tnn":
        return TNNForCausalLM(TNNConfig(**SMALL)).eval()
    mixers = {"mixer_types": ["tnn", "attention"], "mixer_configs": {"attention": {"num_heads": 2}}}
    return SeqMixHybridForCausalLM(SeqMixHybridConfig(**SMALL, **mixers)).eval()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"input_ids": [[1, 2]]}, TypeError, "input_ids is a list; it must be a tensor"),
        ({"input_ids": IDS.float()}, TypeError, r"input_ids has torch.float32; .* input_ids.long\(\)"),
        ({"input_ids": IDS[0]}, ValueError, r"input_ids has shape \(9,\); .* input_ids.unsqueeze\(0\)"),
        ({"inputs_embeds": IDS}, ValueError, r"shape \(2, 9\); it must be \(batch, length, 16\).*given as input_ids"),
        ({"inputs_embeds": torch.randn(2, 9, 15)}, ValueError, r"\(2, 9, 15\); it must be \(batch, length, 16\)"),
        ({"inputs_embeds": torch.ones(2, 9, 16).long()}, TypeError, "inputs_embeds has torch.int64"),
        ({"input_ids": IDS, "past_key_values": ((IDS, IDS),)}, TypeError, "is a tuple; it must be a cache of the"),
        ({"input_ids": IDS, "past_key_values": "a"}, TypeError, "is a str; it must be a cache of the"),
        ({"input_ids": IDS, "position_ids": [[0, 1]]}, TypeError, "position_ids is a list; it must be a tensor"),
        (
            {"input_ids": IDS, "position_ids": torch.ones(2, 9)},
            TypeError,
            "position_ids has torch.float32; .*integers",
        ),
        ({"input_ids": IDS, "cu_seq_lens_q": [0, 18]}, TypeError, "cu_seq_lens_q is a list; it must be a tensor"),
        ({"input_ids": IDS, "seq_idx": [[0, 1]]}, TypeError, "seq_idx is a list; it must be a tensor"),
        ({"input_ids": IDS, "attention_mask": IDS.numpy()}, TypeError, "attention_mask is a ndarray; it must be a te"),
        ({"input_ids": IDS, "attention_mask": "a"}, TypeError, "attention_mask is a str; it must be a tensor"),
    ],
)
def test_other_inputs_are_refused(model, given, error, message):
    with pytest.raises(error, match=message):
        model(**given)


@pytest.mark.parametrize("cls", [TNNModel, TNNForCausalLM])
def test_the_configuration_of_another_family_is_refused(cls):
    with pytest.raises(TypeError, match="is built from a TNNConfig; given IPAConfig"):
        cls(IPAConfig(**SMALL))


def test_ids_of_either_integer_type_are_the_same(model):
    assert torch.equal(model(IDS.int()).logits, model(IDS).logits)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_a_mask_that_hides_cached_pads_is_refused(kind):
    model = TNNModel(TNNConfig(**SMALL, position_embedding_type=kind)).eval()
    cache = DynamicCache(config=model.config)
    model(IDS, torch.tensor(PADS["left"]), past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="give a mask of 11 columns"):
        model(IDS[:, :2], torch.ones(2, 2), past_key_values=cache, use_cache=True)
