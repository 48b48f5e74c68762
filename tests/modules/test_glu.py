"""An activated gate."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

import hf_seqmix.modules.glu as glu_module
from hf_seqmix.modules.glu import activate_and_gate


def test_silu_of_either_library_is_one_step(monkeypatch):
    gate, values = torch.randn(2, 3, 5)
    called = []
    whole = glu_module.silu_gate
    monkeypatch.setattr(glu_module, "silu_gate", lambda a, b: called.append(a) or whole(a, b))
    for activation in (nn.SiLU(), ACT2FN["silu"], ACT2FN["swish"]):
        assert torch.equal(activate_and_gate(activation, gate, values), F.silu(gate) * values)
    assert len(called) == 3


def test_other_activations_are_called(monkeypatch):
    monkeypatch.setattr(glu_module, "silu_gate", None)
    gate, values = torch.randn(2, 3, 5)
    for activation in (nn.GELU(), nn.Tanh()):
        assert torch.equal(activate_and_gate(activation, gate, values), activation(gate) * values)
