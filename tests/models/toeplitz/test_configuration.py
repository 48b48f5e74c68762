"""The fields that the Toeplitz families share."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.models.suite import VOCAB


@pytest.mark.parametrize("model_type", ["tnn", "fd_tnn"])
def test_an_encoder_without_a_norm_trains_and_is_saved(model_type, tmp_path):
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "rpe_hidden_size": 8}
    config = AutoConfig.for_model(model_type, **fields, max_position_embeddings=12, rpe_norm_type="none")
    model, ids = AutoModelForCausalLM.from_config(config), torch.randint(VOCAB, (2, 9))
    assert not [name for name, _ in model.named_parameters() if "encoder" in name and "norm" in name]
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert {name for name in before if "encoder" in name} <= moved
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.rpe_norm_type == "none"
    assert torch.equal(loaded(ids).logits, model(ids).logits)
