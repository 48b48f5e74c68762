"""Tensor-parallel plans: they name what there is, hybrids agree on one, and exported repositories have them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.dataclasses import strict

from hf_seqmix import SeqMixHybridConfig, TNNConfig, hub
from hf_seqmix.models.configuration import MIXER_CONFIGS, SeqMixConfig
from hf_seqmix.modules.sharding import number_of_devices, own_part, own_values, split_heads, whole_values
from tests.ecosystem.distributed_worker import VARIANTS
from tests.ecosystem.tiny import BIDIRECTIONAL_HEADS, EVERY, tiny_config, tiny_model

STYLES = {"colwise", "rowwise", "colwise_gather_output", "rowwise_split_input", "embedding_rowwise"}


def generic(name: str) -> str:
    """A name as plans have it, with a star for each number."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def check(model: Any) -> None:
    modules = {generic(name): module for name, module in model.named_modules()}
    parameters = {generic(name): parameter for name, parameter in model.named_parameters()}
    assert set(model.tp_plan.values()) <= STYLES
    for name, style in model.tp_plan.items():
        if name in parameters:
            assert style == "colwise" and parameters[name].ndim == 2
        elif style.startswith("embedding"):
            assert isinstance(modules[name], torch.nn.Embedding)
        else:
            assert isinstance(modules[name], torch.nn.Linear), name


@pytest.mark.parametrize("model_type", EVERY)
@pytest.mark.parametrize("suffix", ["ForCausalLM", *BIDIRECTIONAL_HEADS])
def test_plans_name_layers_that_there_are(model_type: str, suffix: str) -> None:
    if (model_type, suffix) != ("ski_tnn", "ForCausalLM"):
        check(tiny_model(model_type, suffix))


@pytest.mark.parametrize("name", VARIANTS)
def test_plans_of_other_forms(name: str) -> None:
    model_type, suffix, fields = VARIANTS[name]
    check(tiny_model(model_type, suffix, **fields))


def plan(*mixer_types: str, **configs: Any) -> dict[str, str]:
    config = SeqMixHybridConfig(hidden_size=16, mixer_types=list(mixer_types), mixer_configs=configs)
    prefix = "layers.*.mixer."
    return {k.removeprefix(prefix): v for k, v in config.base_model_tp_plan.items() if k.startswith(prefix)}


def test_hybrids_split_the_mixing_where_their_mixers_agree() -> None:
    both = plan("tnn", "attention", attention={"num_heads": 2})
    assert both["v_proj"] == both["q_proj"] == both["operator.kernel.encoder.out_proj"] == "colwise"
    assert both["o_proj"] == "rowwise"


def test_hybrids_split_only_projections_where_mixers_disagree() -> None:
    both = plan("tnn", "ipa", ipa={"num_centers": 2})
    assert set(both.values()) == {"colwise_gather_output", "rowwise_split_input"}
    assert not any(name.startswith("operator") for name in both)


def test_hybrids_with_a_mixer_without_a_plan_split_no_mixer(monkeypatch: pytest.MonkeyPatch) -> None:
    @strict
    class OwnConfig(SeqMixConfig):
        model_type = "own"

    monkeypatch.setitem(MIXER_CONFIGS, "own", OwnConfig)
    assert plan("tnn", "own") == {}


def test_a_plan_can_be_set_and_is_not_saved(tmp_path: Path) -> None:
    config = tiny_config("tnn")
    config.base_model_tp_plan = {"layers.*.mlp.up_proj": "colwise_gather_output"}
    assert config.base_model_tp_plan == {"layers.*.mlp.up_proj": "colwise_gather_output"}
    config.save_pretrained(tmp_path)
    assert "base_model_tp_plan" not in json.loads((tmp_path / "config.json").read_text())
    assert TNNConfig.from_pretrained(tmp_path).base_model_tp_plan == tiny_config("tnn").base_model_tp_plan


@pytest.mark.xdist_group("exported")  # that worker has the code
@pytest.mark.parametrize("model_type", ["tnn", pytest.param("seqmix_hybrid", marks=pytest.mark.slow)])
def test_exported_code_brings_the_plan(tmp_path: Path, model_type: str) -> None:
    model = tiny_model(model_type)
    code = hub.export(model, None, tmp_path / "repository")
    family = "hybrid" if model_type == "seqmix_hybrid" else model_type
    configuration = (code / f"configuration_{family}.py").read_text()
    assert "def tensor_parallel_plan(" in configuration and "def base_model_tp_plan(" in configuration
    assert '_tp_plan = {"lm_head"' in (code / f"modeling_{family}.py").read_text()


def test_nothing_happens_to_whole_weights() -> None:
    weight, x = torch.randn(6, 4), torch.randn(2, 6)
    assert own_values(weight) is whole_values(weight) is weight
    assert own_part(x, weight, dim=-1) is x
    assert number_of_devices(weight) == 1


def test_heads_in_parts_are_refused() -> None:
    assert split_heads(torch.zeros(2, 3, 8), 4).shape == (2, 3, 2, 4)
    with pytest.raises(ValueError, match="6 channels, which are no whole heads of 4: choose a tensor-parallel size"):
        split_heads(torch.zeros(2, 3, 6), 4)
