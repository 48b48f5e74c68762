"""What cannot hand on states, refused by name."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM, TrainingArguments

from hf_seqmix import (
    PolyTransformerConfig,
    PolyTransformerForCausalLM,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
    TNNConfig,
    TNNForCausalLM,
    TNNForMaskedLM,
)
from hf_seqmix.training.segments import state_checks
from hf_seqmix.training.segments.state_checks import refuse_arguments, refuse_model

SHARED = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2}
POLYNOMIAL = {**SHARED, "num_attention_heads": 2}


def test_models_with_a_state_are_taken() -> None:
    mixers = ["attention", "tnn", "poly_transformer", "short_conv", "ipa", "fd_tnn"]
    hybrid = SeqMixHybridConfig(vocab_size=9, hidden_size=16, mixer_types=mixers, max_position_embeddings=16)
    refuse_model(SeqMixHybridForCausalLM(hybrid), 64)
    refuse_model(
        TNNForCausalLM(TNNConfig(**SHARED, max_position_embeddings=64, position_embedding_type="learned")), 64
    )
    refuse_model(GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=64)), 64)


def test_models_without_a_state_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="TNNForMaskedLM takes no past_key_values"):
        refuse_model(TNNForMaskedLM(TNNConfig(**SHARED, is_causal=False)), 64)
    with pytest.raises(ValueError, match=r"sees both sides \(is_causal=False\)"):
        refuse_model(TNNForMaskedLM(TNNConfig(**SHARED, is_causal=False)).model, 64)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, state_size=2))
    with pytest.raises(ValueError, match=r"MambaForCausalLM (takes no past_key_values|keeps a LinearAttentionLayer)"):
        refuse_model(mamba, 64)


def test_a_layer_without_a_state_is_refused_by_its_number_and_mixer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TNNForCausalLM(TNNConfig(**SHARED))
    layers = [SimpleNamespace(detach=None), SimpleNamespace()]
    monkeypatch.setattr(state_checks, "DynamicCache", lambda config: SimpleNamespace(layers=layers))
    message = r"layer 1 \(tnn\) of TNNForCausalLM keeps a SimpleNamespace, which training cannot hand on"
    with pytest.raises(ValueError, match=message):
        refuse_model(model, 64)


@pytest.mark.parametrize(
    "model",
    [
        TNNForCausalLM(TNNConfig(**SHARED, max_position_embeddings=63, position_embedding_type="learned")),
        PolyTransformerForCausalLM(
            PolyTransformerConfig(**POLYNOMIAL, max_position_embeddings=63, mixing="triangular")
        ),
        GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=63)),
    ],
    ids=["learned", "triangular", "gpt2"],
)
def test_streams_beyond_the_last_position_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match=r"a stream has 64 tokens, but .* has positions for 63"):
        refuse_model(model, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auto_find_batch_size": True}, "--auto-find-batch-size changes which rows belong together"),
        ({"ignore_data_skip": True}, "--ignore-data-skip reads other data after a resume"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches deals rows out anew"),
        ({"train_sampling_strategy": "group_by_length"}, "--train-sampling-strategy group_by_length is another order"),
    ],
)
def test_arguments_that_part_segments_from_states_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refuse_arguments(TrainingArguments(output_dir=str(tmp_path), use_cpu=True))
    with pytest.raises(ValueError, match=f"--state-segments: {message}"):
        refuse_arguments(TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **options))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gradient_checkpointing", True, "--activation-checkpointing computes blocks again"),
        ("activation_checkpointing", True, "--activation-checkpointing computes blocks again"),
        ("torch_compile", True, "--torch-compile makes graphs"),
        ("deepspeed", "zero.json", "--deepspeed is not supported: start processes by torchrun alone"),
        ("fsdp", True, "--fsdp is not supported"),
        ("_n_gpu", 2, "one process would train on 2 GPUs and deal rows out anew"),
    ],
)
def test_other_ways_to_run_are_refused(field: str, value: Any, message: str, tmp_path: Path) -> None:
    """Set on finished arguments: the library would look for devices, and has two names for one of them."""
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert arguments.n_gpu < 2
    vars(arguments)[field] = value
    with pytest.raises(ValueError, match=message):
        refuse_arguments(arguments)
