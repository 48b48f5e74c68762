"""Why a saved model cannot be opened: which file, and in one line."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from hf_seqmix import SKITNNConfig
from hf_seqmix._files import write_json
from hf_seqmix.training.load_errors import explain_model_error, fault_of_model, without_lists


def test_the_fault_of_a_model_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert fault_of_model(folder) == "there is no such folder"
    assert fault_of_model("./model") == "there is no such folder"
    assert fault_of_model("someone/model") is None
    folder.mkdir()
    assert "config.json is missing" in str(fault_of_model(folder))
    write_json(folder / "config.json", {})
    assert "it is a file" in str(fault_of_model(folder / "config.json"))
    assert fault_of_model(folder) == "model.safetensors is missing"
    save_file({"weight": torch.ones(9)}, folder / "model.safetensors")
    assert fault_of_model(folder) is None
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-5])
    assert "model.safetensors is cut short" in str(fault_of_model(folder))


def test_an_adapter_has_no_configuration_of_a_model(tmp_path: Path) -> None:
    write_json(tmp_path / "adapter_config.json", {})
    save_file({"weight": torch.ones(9)}, tmp_path / "adapter_model.safetensors")
    assert fault_of_model(tmp_path) is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("We couldn't connect to 'https://hub' to load\nthe files", "is no folder here .*the Hub cannot be reached"),
        (
            "Couldn't instantiate the backend tokenizer from one of: \n(1) a file",
            "nowhere/model: it has no tokenizer$",
        ),
        ("Unrecognized class X.\nModel type should be one of A, B", r"nowhere/model: Unrecognized class X\.$"),
    ],
)
def test_what_the_library_says_is_told_in_a_line(said: str, told: str) -> None:
    text = explain_model_error("nowhere/model", ValueError(said))
    assert "\n" not in text and re.search(told, text)


def test_a_model_of_another_kind_is_named_without_a_list_of_all() -> None:
    with pytest.raises(ValueError, match="Unrecognized configuration class") as refused:
        AutoModelForCausalLM.from_config(SKITNNConfig(vocab_size=9, hidden_size=8))
    expected = "the checkpoint has a SKITNNConfig, of which there is no AutoModelForCausalLM; give a causal language"
    assert without_lists(str(refused.value)) == f"{expected} model."
    assert explain_model_error("some/name", refused.value) == f"some/name: {expected} model."
    assert without_lists("--rounds is 0\nor less") == "--rounds is 0\nor less"
