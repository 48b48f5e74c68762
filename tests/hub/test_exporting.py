"""The exported folder: what is in it, that the package opens it as its own, and what is refused."""

import json
import os

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.image_processing_utils import BaseImageProcessor

import hf_seqmix.models.mixers
from hf_seqmix import FDTNNConfig, FDTNNForImageClassification, SeqMixImageProcessor, TNNConfig, TNNForCausalLM
from hf_seqmix.data import train_bpe
from hf_seqmix.hub import check_repository, export
from hf_seqmix.models.mixers import MIXERS, register_mixer
from tests.hub.conftest import TEXT
from tests.markers import needs_no_torchvision

# The exports of that worker have made the code of every family.
pytestmark = pytest.mark.xdist_group("exported")


@pytest.fixture
def model():
    return TNNForCausalLM(TNNConfig(**TEXT))


def test_what_is_in_it(exported):
    folder = exported["tnn"].folder
    names = {path.name for path in folder.iterdir()}
    assert {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert {"configuration_tnn.py", "modeling_tnn.py"} <= names
    assert not any(name.endswith((".bin", ".pt", ".pyc")) or name.startswith(".") for name in names)
    config = json.loads((folder / "config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_tnn.TNNForCausalLM"
    assert config["architectures"] == ["TNNForCausalLM"]
    assert not exported["tnn"].model.config.auto_map  # the exported model is as it was
    umask = os.umask(0)
    os.umask(umask)
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask
    assert "Nothing is recorded" in (folder / "README.md").read_text()


def test_weights_are_sharded_above_a_size(exported):
    folder, model, _ = exported["ipa"]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 2
    stored = {}
    for file in files:
        with safe_open(folder / file, "pt") as tensors:
            stored |= {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 (no mapping)
    assert all(
        torch.equal(stored[name], value) for name, value in model.state_dict().items() if name != "lm_head.weight"
    )


@pytest.mark.parametrize("trust", [{}, {"trust_remote_code": False}, {"trust_remote_code": True}], ids=str)
@pytest.mark.parametrize("name", ["tnn", "ipa", "seqmix_hybrid"])
def test_the_package_opens_it_as_its_own_class(exported, name, trust):
    folder, model, _ = exported[name]
    opened = AutoModelForCausalLM.from_pretrained(folder, **trust)
    assert type(opened) is type(model) and type(opened.config) is type(model.config)
    ids = torch.arange(2, 11)[None]
    assert torch.equal(opened(ids).logits, model(ids).logits)
    assert type(AutoModel.from_pretrained(folder, **trust)).__module__.startswith("hf_seqmix.")
    assert type(AutoConfig.from_pretrained(folder, **trust)) is type(model.config)


def test_what_the_package_saves_names_no_code_that_is_not_there(exported, tmp_path):
    opened = AutoModelForCausalLM.from_pretrained(exported["tnn"].folder)
    opened.save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    assert opened.config.auto_map["AutoModel"] == "modeling_tnn.TNNModel"  # as other tools want it
    opened.config.auto_map = {"AutoModel": "someone/tnn--modeling_tnn.TNNModel", "AutoConfig": "configuration_tnn.X"}
    opened.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == {
        "AutoModel": "someone/tnn--modeling_tnn.TNNModel"
    }


@needs_no_torchvision
@pytest.mark.parametrize("trust", [{}, {"trust_remote_code": True}], ids=str)
def test_the_package_opens_its_image_processor(exported, trust):
    assert type(AutoImageProcessor.from_pretrained(exported["fd_tnn"].folder, **trust)) is SeqMixImageProcessor


def test_the_tokenizer_is_in_it(exported):
    folder, _, tokenizer = exported["tnn"]
    assert AutoTokenizer.from_pretrained(folder)("x = 1")["input_ids"] == tokenizer("x = 1")["input_ids"]


def test_pictures_that_the_card_shows_are_copied(model, tmp_path):
    picture = tmp_path / "curve.png"
    picture.write_bytes(b"any bytes")
    folder = export(model, None, tmp_path / "out", pictures=[picture])
    assert (folder / "curve.png").read_bytes() == b"any bytes"
    code = tmp_path / "modeling_tnn.py"
    code.write_text("not ours")
    for wrong in (tmp_path / "missing.png", code):
        with pytest.raises(ValueError, match="is no picture, or missing"):
            export(model, None, tmp_path / "other", pictures=[wrong])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "curve.png").write_bytes(b"another")
    with pytest.raises(ValueError, match=r"two pictures 'curve\.png', which would be one file: rename one"):
        export(model, None, tmp_path / "other", pictures=[picture, tmp_path / "run" / "curve.png"])
    assert not (tmp_path / "other").exists()


def test_a_folder_with_content_is_refused_and_left_alone(model, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is not empty"):
        export(model, None, tmp_path / "full")
    for name in ("file", "link"):
        with pytest.raises(ValueError, match="is a file or a link"):
            export(model, None, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert (export(model, None, tmp_path / "empty") / "config.json").is_file()


def test_a_failure_leaves_nothing(model, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_seqmix.hub.exporting._add_auto_map", full)
    with pytest.raises(OSError, match="No space"):
        export(model, None, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused(model, tmp_path, exported):
    small = train_bpe(["x"], 258)
    small.add_tokens([f"<{number}>" for number in range(60)])
    with pytest.raises(ValueError, match="the tokenizer has ids up to 317, but vocab_size is 300"):
        export(model, small, tmp_path / "a")
    with pytest.raises(ValueError, match="this is a model of text"):
        export(model, exported["fd_tnn"].processor, tmp_path / "a")
    images = FDTNNForImageClassification(
        FDTNNConfig(hidden_size=8, num_hidden_layers=1, is_causal=False, image_size=4)
    )
    with pytest.raises(ValueError, match="this is a model of images"):
        export(images, PreTrainedTokenizerFast(tokenizer_object=small._tokenizer), tmp_path / "a")
    with pytest.raises(ValueError, match="this is a model of images, but the processor is a BaseImageProcessor"):
        export(images, BaseImageProcessor(), tmp_path / "a")
    with pytest.raises(ValueError, match=r"channels \(8, 8, 3\), but the model reads \(4, 4, 3\)"):
        export(images, exported["fd_tnn"].processor, tmp_path / "a")
    with pytest.raises(ValueError, match=r"channels \(4, 4, 1\), but the model reads \(4, 4, 3\)"):
        export(images, SeqMixImageProcessor.for_model(images.config, num_channels=1), tmp_path / "a")
    with torch.device("meta"):
        empty = TNNForCausalLM(TNNConfig(**TEXT))
    with pytest.raises(ValueError, match="weights are not in memory"):
        export(empty, None, tmp_path / "a")
    with pytest.raises(ValueError, match="the card has blanks"):
        export(model, None, tmp_path / "a", card="---\nlicense: mit\n---\n\n# X\n\n[More Information Needed]\n")
    with pytest.raises(ValueError, match="open the model with hf_seqmix imported"):
        export(torch.nn.Linear(1, 1), None, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def adapted(model):
    from peft import LoraConfig

    model.add_adapter(LoraConfig(target_modules=["o_proj"], r=2))


def adapted_inside(model):
    from peft import LoraConfig, get_peft_model

    get_peft_model(model, LoraConfig(target_modules=["o_proj"], r=2))


def foreign_mixer(model):
    model.model.layers[1].mixer = torch.nn.Linear(16, 16)


def foreign_registration(model):
    register_mixer("tnn", TNNConfig, lambda config, layer_idx: torch.nn.Linear(16, 16))
    model.model.layers[0].mixer = torch.nn.Linear(16, 16)


def untied(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight + 1)


class Packed(torch.Tensor):
    """Stands for the weights of a quantized model."""


def packed(model):
    weight = model.model.layers[0].mixer.o_proj.weight
    model.model.layers[0].mixer.o_proj.weight = torch.nn.Parameter(weight.detach().as_subclass(Packed))


@pytest.mark.ecosystem("peft")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (adapted, "the model has adapters: merge them first"),
        (adapted_inside, "the model has adapters: merge them first"),
        (foreign_mixer, r"layers\.1\.mixer is a torch\.nn\.modules\.linear\.Linear, so the model is not"),
        (foreign_registration, "the mixer 'tnn' was registered from outside the package"),
        (untied, "lm_head.weight is not model.embed_tokens.weight, though tie_word_embeddings is True"),
        (lambda model: setattr(model.config, "vocab_size", 32), r"has shape \(300, 16\), and by the configuration"),
        (packed, r"the model is quantized or split over devices \(.*o_proj.weight is a Packed\)"),
        (
            lambda model: setattr(model.config, "quantization_config", {"quant_method": "x"}),
            r"the model is quantized or split over devices \(the configuration says so\)",
        ),
    ],
    ids=["add_adapter", "peft", "module", "registered", "untied", "config", "packed", "quantized"],
)
def test_what_would_not_open_again_is_refused(model, tmp_path, monkeypatch, change, message):
    monkeypatch.setattr("hf_seqmix.models.mixers.MIXERS", MIXERS.copy())
    monkeypatch.setattr("hf_seqmix.hub.exporting.MIXERS", hf_seqmix.models.mixers.MIXERS)
    change(model)
    with pytest.raises(ValueError, match=message):
        export(model, None, tmp_path / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.ecosystem("peft")
def test_merged_adapters_are_exported(model, tmp_path):
    from peft import LoraConfig, get_peft_model

    merged = get_peft_model(model, LoraConfig(target_modules=["o_proj"], r=2)).merge_and_unload()
    assert (export(merged, None, tmp_path / "a") / "model.safetensors").is_file()


def test_what_other_tools_put_into_a_configuration_is_left_out(model, tmp_path):
    known = json.loads((export(model, None, tmp_path / "a") / "config.json").read_text())
    for name, value in (
        ("unsloth_version", "1"),
        ("tokenizer_class", "X"),
        ("task_specific_params", {}),
        ("finetuning_task", "x"),
        ("prefix", "x"),
        ("attn_implementation", "sdpa"),
        ("_name_or_path", "/somewhere/here"),
    ):
        setattr(model.config, name, value)
    folder = export(model, None, tmp_path / "b")
    assert json.loads((folder / "config.json").read_text()) == known
    assert check_repository(folder).model_type == "tnn"


def test_what_the_check_refuses_is_not_exported(model, tmp_path, monkeypatch):
    def refuse(folder):
        raise ValueError("something is wrong")

    monkeypatch.setattr("hf_seqmix.hub.checking.check_repository", refuse)
    with pytest.raises(ValueError, match="something is wrong"):
        export(model, None, tmp_path / "a" / "b" / "c")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["", ".", "..", "x/..", "../here", "/", None, 5], ids=str)
def test_folders_that_cannot_be_made_are_refused(model, tmp_path, monkeypatch, folder):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match=r"is the current one, or one around it|it must be the name of a folder"):
        export(model, None, folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


@pytest.mark.parametrize("size", [0, -1, True, 1.5, None, "", "0GB", "-5GB", "GB", "5XB", "5", "nanGB"], ids=repr)
def test_sizes_of_weight_files_that_are_none_are_refused(model, tmp_path, size):
    with pytest.raises(ValueError, match=r"max_shard_size is .*; it must be a number of bytes above 0"):
        export(model, None, tmp_path / "p" / "q", max_shard_size=size)
    assert not list(tmp_path.iterdir())


# The hybrid has the operators and layers of all.
@pytest.mark.parametrize(
    "name", ["tnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ipa", "seqmix_hybrid"))]
)
def test_package_and_repository_work_in_one_process(exported, name, tmp_path, modules_cache):
    """Each has its own operators and cache layers; two copies of the same code share theirs."""
    folder, native, _ = exported[name]
    config = json.loads((folder / "config.json").read_text())
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    models = [native]
    ids = torch.arange(2, 11)[None]
    logits, generated = native(ids).logits.detach(), generate(native, ids)
    for place in (folder, copy):
        config_class, model_class = (
            get_class_from_dynamic_module(config["auto_map"][auto], place)
            for auto in ("AutoConfig", "AutoModelForCausalLM")
        )
        remote = model_class.from_pretrained(place, config=config_class.from_pretrained(place))
        assert type(remote) is not type(native) and type(remote).__module__.startswith("transformers_modules.")
        models.append(remote)
        for each in models:
            assert torch.equal(each(ids).logits, logits)
            assert torch.equal(generate(each, ids), generated)
    if name != "ipa":
        check_operators(models)


def check_operators(models):
    """The operators and their derivatives, as traced code calls them."""
    torch._dynamo.reset()
    hidden, gradients = torch.randn(1, 9, 16), []
    for model in models:
        mixer = model.model.layers[0].mixer
        torch.compile(mixer, backend="aot_eager")(hidden).square().sum().backward()
        gradients.append(mixer.o_proj.weight.grad.clone())
        model.zero_grad(set_to_none=True)
    assert gradients[0].abs().sum() > 0 and all(torch.equal(gradient, gradients[0]) for gradient in gradients)
    names = {str(name) for name in dir(torch.ops)}
    assert len([name for name in names if name.startswith("hf_seqmix")]) >= 2


def generate(model, ids):
    return model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(ids))
