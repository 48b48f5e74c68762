"""Checkpoints that are not what they say are refused by `open_checkpoint`, whatever is wrong, with a `ValueError`."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.hub import open_checkpoint, opening
from tests.hub.test_checking import change_config


@pytest.fixture
def folder(exported, tmp_path):
    shutil.copytree(exported["tnn"].folder, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", ["tnn", "fd_tnn", "ski_tnn", "ipa", "poly_transformer", "seqmix_hybrid", "attention"])
def test_what_was_exported_opens(exported, name):
    place, model, processor = exported[name]
    opened, its_processor = open_checkpoint(place)
    assert type(opened) is type(model) and not opened.training
    assert all(torch.equal(value, opened.state_dict()[key]) for key, value in model.state_dict().items())
    assert (its_processor is None) == (processor is None)


def test_a_checkpoint_of_a_training_run_opens(folder):
    for name in ("optimizer.pt", "training_args.bin", "pytorch_model.bin"):
        (folder / name).write_bytes(b"not read")
    for code in folder.glob("*.py"):
        code.unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    (folder / "config.json").write_text(json.dumps({**config, "unsloth_version": "1"}))
    assert open_checkpoint(str(folder))[1] is not None


@pytest.mark.parametrize("change", ["missing", "extra", "shape", "block"])
def test_no_weight_is_drawn_or_dropped(folder, change, monkeypatch):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mixer.u_proj.weight"
    wrong = {
        "missing": {key: value for key, value in tensors.items() if key != name},
        "extra": {**tensors, "model.layers.1.mixer.more": torch.ones(3)},
        "shape": {**tensors, name: torch.ones(3)},
        "block": {key: value for key, value in tensors.items() if ".layers.1." not in key},
    }[change]
    save_file(wrong, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"copy cannot be opened: the weights|copy cannot be opened: the tensor"):
        open_checkpoint(folder)
    # And what the headers would not have shown, the library says after reading.
    monkeypatch.setattr(opening, "check_checkpoint", lambda folder: TNNConfig.from_pretrained(folder))
    with pytest.raises(ValueError, match=r"cannot be opened: the weights (lack|have|are of other shapes)"):
        open_checkpoint(folder)


def test_nothing_is_unpickled_and_nobody_asked(folder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the library asks whether to run code"))
    (folder / "configuration_tnn.py").write_text("raise SystemExit")
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text("raise SystemExit")
    assert isinstance(open_checkpoint(folder)[0], TNNForCausalLM)
    change_config(folder, model_type="other")
    with pytest.raises(ValueError, match="model_type is 'other'"):
        open_checkpoint(folder)
    change_config(folder, model_type="tnn")
    (folder / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": ["a.B", null]}, "tokenizer_class": "B"}'
    )
    with pytest.raises(ValueError, match="cannot be opened"):
        open_checkpoint(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="there are no weights"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", [b"\x80\x04" + b"x" * 500, b"PK\x03\x04" + bytes(300), b""])
def test_a_weight_file_that_is_none(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot be opened: model\.safetensors is cut short"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"auto_map": 5},
        {"auto_map": None},
        {"model_type": [1]},
        {"rope_parameters": "x"},
        {"hidden_size": "16"},
        {"quantization_config": {"quant_method": "torchao"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_configurations_that_the_library_chokes_on(folder, fields):
    change_config(folder, **fields)
    with pytest.raises(ValueError, match=r"copy cannot be opened: config\.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "null"),
        ("config.json", "[" * 100_000),
        ("config.json", '{"model_type": "tnn", "id2label": {"0": ' + "[" * 950 + "]" * 950 + "}}"),
        ("config.json", '{"vocab_size": ' + "9" * 5000 + "}"),
        ("generation_config.json", "["),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer_config.json", '{"tokenizer_class": 5}'),
        (
            "tokenizer_config.json",
            '{"extra_special_tokens": {' + ",".join(f'"t{i}": "<e{i}>"' for i in range(60)) + "}}",
        ),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", '{"model": "x"}'),
        ("tokenizer.json", '{"added_tokens": 5}'),
        ("special_tokens_map.json", "5"),
    ],
)
def test_files_that_the_library_chokes_on(folder, name, content):
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=f"copy cannot be opened: .*{name}"):
        open_checkpoint(folder)


def test_an_adapter_beside_the_weights(folder):
    for name, content in (("adapter_config.json", "{}"), ("adapter_model.safetensors", "")):
        (folder / name).write_text(content)
        with pytest.raises(ValueError, match=f"{name}: an adapter beside .* Merge it first"):
            open_checkpoint(folder)
        (folder / name).unlink()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"])
def test_pipes_are_not_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=f"{name} cannot be read: it is a folder, a pipe or a device"):
        open_checkpoint(folder)


def test_what_is_not_there_and_types_that_are_none(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="gone cannot be opened: it is neither a folder nor"):
        open_checkpoint(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"someone/gone is no folder here .* and the Hub cannot be reached"):
        open_checkpoint("someone/gone")
    with pytest.raises(ValueError, match="cannot be opened"):
        open_checkpoint(folder, dtype="floaty")
    with pytest.raises(ValueError, match="revision is 'v1', and a folder has none: leave it out"):
        open_checkpoint(folder, revision="v1")


def test_a_repository_on_the_hub(folder, monkeypatch, tmp_path):
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(opening, "snapshot_download", download)
    model, tokenizer = open_checkpoint("someone/tnn", revision="v1")
    assert asked["name"] == "someone/tnn" and asked["revision"] == "v1"
    assert not any(Path("modeling_tnn.py").match(pattern) for pattern in asked["allow_patterns"])
    assert model.name_or_path == model.config.name_or_path == "someone/tnn" and tokenizer is not None
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"someone/tnn cannot be opened: adapter_config\.json"):
        open_checkpoint("someone/tnn")


def test_settings_of_another_image_processor_are_refused(exported, tmp_path):
    folder = tmp_path / "repository"
    shutil.copytree(exported["fd_tnn"].folder, folder)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(
        json.dumps({**settings, "image_processor_type": "ViTImageProcessor"})
    )
    with pytest.raises(ValueError, match="image_processor_type is 'ViTImageProcessor'"):
        open_checkpoint(folder)
