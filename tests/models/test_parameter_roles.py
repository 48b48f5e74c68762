"""Which parameters are hidden matrices, for every family and for a model of transformers."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_seqmix.models.parameter_roles import hidden_matrices, kernel_parameters
from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model

IN_EACH_BLOCK: dict[str, set[str]] = {
    "tnn": {"mixer.u_proj", "mixer.v_proj", "mixer.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
    "ipa": {"mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj"}
    | {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
}


@pytest.mark.parametrize("model_type", EVERY)
def test_hidden_matrices_are_the_linear_layers_of_blocks(model_type: str) -> None:
    model = tiny_model(model_type, "ForCausalLM" if model_type in CAUSAL else "ForMaskedLM")
    parameters = dict(model.named_parameters())
    matrices, kernels = hidden_matrices(model), kernel_parameters(model)
    assert matrices <= parameters.keys() and not matrices & kernels
    assert all(name.startswith("model.layers.") and parameters[name].ndim == 2 for name in matrices)
    # What is left of a block has one dimension, or is a table of offsets or taps.
    left = {n for n, p in parameters.items() if ".layers." in n and p.ndim >= 2} - matrices - kernels
    assert all(name.endswith(("relative_bias", "conv_weight")) for name in left), left
    if model_type in IN_EACH_BLOCK:
        own = {name.split(".", 3)[3].removesuffix(".weight") for name in matrices}
        assert own == IN_EACH_BLOCK[model_type]
    assert bool(kernels) == (model_type in ("tnn", "fd_tnn", "ski_tnn", "seqmix_hybrid"))


def test_of_another_model_and_inside_a_wrapper() -> None:
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    names = hidden_matrices(model)
    assert len(names) == 2 * 7
    assert names == {name for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2}
    assert not kernel_parameters(model)
    wrapped = torch.nn.ModuleDict({"inner": model})
    assert hidden_matrices(wrapped) == {f"inner.{name}" for name in names}


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Linear has no hidden matrices.*names none"):
        hidden_matrices(torch.nn.Linear(4, 4))
