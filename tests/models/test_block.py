"""Blocks whose branches begin as zeros: identities at first, for every family, and only where weights are drawn."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import initialization as init

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.models.block import SeqMixBlock
from hf_seqmix.models.mixers import MIXERS
from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model


def head_of(model_type: str) -> str:
    return "ForCausalLM" if model_type in CAUSAL else "ForMaskedLM"


def fresh(model_type: str, **fields: Any) -> Any:
    """Return a model as it is drawn."""
    moved = tiny_model(model_type, head_of(model_type), **fields)
    torch.manual_seed(0)
    return type(moved)(moved.config)


@pytest.mark.parametrize("model_type", EVERY)
def test_each_block_is_the_identity_at_first(model_type: str, tmp_path: Path) -> None:
    fields = {"norm_position": "pre"}  # after a norm no block is the identity
    plain, zeros = (fresh(model_type, **fields, zero_init_outputs=flag) for flag in (False, True))
    torch.manual_seed(1)
    hidden = torch.randn(2, 7, zeros.config.hidden_size)
    for block in zeros.modules():
        if isinstance(block, SeqMixBlock):
            assert torch.equal(block.eval()(hidden), hidden)
    assert not torch.equal(next(b for b in plain.modules() if isinstance(b, SeqMixBlock)).eval()(hidden), hidden)
    # Nothing else is drawn otherwise, and what was learned comes back.
    ends = ("o_proj.weight", "o_proj.bias", "down_proj.weight", "down_proj.bias")
    assert any(name.endswith(ends) for name, _ in zeros.named_parameters())
    for name, parameter in zeros.named_parameters():
        assert (not parameter.any()) == (name.endswith(ends) or not dict(plain.named_parameters())[name].any()), name
        nn.init.normal_(parameter)
    zeros.save_pretrained(tmp_path)
    loaded = type(zeros).from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(zeros.parameters(), loaded.parameters(), strict=True))


def test_a_block_that_begins_as_zeros_learns() -> None:
    torch.manual_seed(0)
    config = TNNConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, rpe_hidden_size=8, zero_init_outputs=True)
    model = TNNForCausalLM(config).eval()
    ids = torch.randint(30, (2, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):  # the ends in the first update, what precedes them in the second
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_blocks_without_a_residual_are_refused() -> None:
    with pytest.raises(ValueError, match="zero_init_outputs is True, but use_residual is False"):
        TNNConfig(zero_init_outputs=True, use_residual=False)


def test_a_mixer_that_ends_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(nn.Module):
        def __init__(self, *args: Any) -> None:
            super().__init__()
            self.out = nn.Linear(4, 4)
            init.zeros_(self.out.weight)

    monkeypatch.setitem(MIXERS, "tnn", Other)
    with pytest.raises(ValueError, match="Other ends in no linear layer o_proj"):
        TNNForCausalLM(TNNConfig(vocab_size=8, hidden_size=4, num_hidden_layers=1, zero_init_outputs=True))
