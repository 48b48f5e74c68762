"""Repositories that lie: each is refused, by its files alone, with what is wrong."""

import json
import os
import resource
import shutil
import struct
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_seqmix.hub import check_repo_id, check_repository
from hf_seqmix.hub.safetensors_header import read_header


@pytest.fixture
def folder(exported, tmp_path):
    shutil.copytree(exported["tnn"].folder, tmp_path / "copy")
    return tmp_path / "copy"


def change_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("name", ["tnn", "fd_tnn", "ski_tnn", "ipa", "poly_transformer", "seqmix_hybrid"])
def test_what_was_exported_is_in_order(exported, name):
    folder, model, _ = exported[name]
    assert check_repository(folder).to_diff_dict().keys() >= model.config.to_diff_dict().keys() - {"auto_map"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "bert"}, "model_type is 'bert'; it must be one of 'tnn'"),
        ({"model_type": ["tnn"]}, "model_type is "),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"hidden_size": 16.5}, "hidden_size"),
        ({"decay": 2}, "decay is 2"),
        ({"decays": 0.5}, "decays: a 'tnn' configuration has no such field"),
        ({"to_dict": 1}, "to_dict"),
        ({"dtype": "manual_seed"}, "dtype is 'manual_seed'; it must be a type of PyTorch"),
        ({"num_labels": 10**12}, "num_labels is 1000000000000; it must be at most"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be at most"),
        ({"num_hidden_layers": 4096}, "the weights have 2 blocks, but config.json describes 4096"),
        ({"num_hidden_layers": 10**300}, "num_hidden_layers is a number of 997 bits"),
        ({"hidden_size": 2**20}, "has shape"),
        ({"vocab_size": 2**31}, r"'model.embed_tokens.weight' has shape \[300, 16\], but by config.json it has"),
        (
            {"position_embedding_type": "learned", "max_position_embeddings": 2**31},
            "lack 'model.embed_positions.weight'",
        ),
        ({"architectures": ["BertModel"]}, "architectures is "),
        ({"architectures": None}, "architectures is None"),
        ({"architectures": ["TNNForSequenceClassification"]}, "the weights lack 'classifier"),
        ({"auto_map": {"AutoConfig": "../x.TNNConfig"}}, "it must name a class in a file of this repository"),
        ({"auto_map": {"AutoConfig": "other/repo--configuration_tnn.TNNConfig"}}, "a file of this repository"),
        ({"auto_map": {"AutoTokenizer": "modeling_tnn.X"}}, "auto_map has 'AutoTokenizer'"),
        ({"auto_map": {"AutoConfig": "elsewhere.X"}}, "elsewhere.py, which is not there"),
        ({"auto_map": "x"}, "auto_map is a str"),
        ({"vocab_size": 200, "tie_word_embeddings": False}, "has shape"),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
)
def test_configurations_that_lie(folder, fields, message):
    change_config(folder, **fields)
    begin = time.monotonic()
    with pytest.raises(ValueError, match=message):
        check_repository(folder)
    assert time.monotonic() - begin < 20  # seconds: it does not hang


@pytest.mark.parametrize(
    "content", ["", "[1]", "{", "\xff", '{"a": ' * 2000], ids=["empty", "list", "cut", "bytes", "deep"]
)
def test_a_configuration_that_is_no_object(folder, content):
    (folder / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"config\.json"):
        check_repository(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        check_repository(folder)


def write_header(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_weight_files_that_are_cut_short_or_no_weight_files(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(4), "b": torch.ones(2, 3, dtype=torch.bfloat16)}, path)
    assert read_header(path) == {"a": ("F32", (4,)), "b": ("BF16", (2, 3))}
    whole = path.read_bytes()
    for size in (0, 5, 8, 30, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"x\.safetensors is cut short"):
            read_header(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(ValueError, match="cut short or too long"):
        read_header(path)
    path.write_bytes(b"\xff" * 100)  # a header of 2^64 bytes
    with pytest.raises(ValueError, match="cut short"):
        read_header(path)
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for wrong in (
        b"[1, 2]",
        b"\x00\x01",
        b"{" * 3000,
        {"a": 1},
        {"a": {**entry, "shape": [-2]}},
        {"a": {**entry, "shape": [True, 2]}},
        {"a": {**entry, "shape": "ab"}},
        {"a": {**entry, "data_offsets": [0]}},
        {"a": {**entry, "dtype": 4}},
        {"a": {**entry, "shape": [10**30]}},
        {"a": entry, "b": entry},
        {"a": {**entry, "dtype": "X8"}},
    ):
        write_header(path, wrong, bytes(8))
        with pytest.raises(ValueError, match=r"x\.safetensors"):
            read_header(path)


def test_weights_of_other_shapes_names_and_types(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = (
        "model.layers.0.mlp.down_proj.weight"
        if "model.layers.0.mlp.down_proj.weight" in tensors
        else sorted(tensors)[5]
    )
    for wrong, message in (
        ({**tensors, name: tensors[name][..., :-1].contiguous()}, "has shape"),
        ({key: value for key, value in tensors.items() if key != name}, f"lack '{name}'"),
        ({**tensors, "extra": torch.ones(1)}, "have 'extra', which the model"),
        ({**tensors, name: tensors[name].to(torch.int32)}, "tensors of type I32"),
        (
            {key: value for key, value in tensors.items() if ".layers.1." not in key},
            "1 blocks, but config.json describes 2",
        ),
    ):
        save_file(wrong, path, {"format": "pt"})
        with pytest.raises(ValueError, match=message):
            check_repository(folder)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors is cut short"):
        check_repository(folder)
    path.unlink()
    with pytest.raises(ValueError, match="there are no weights"):
        check_repository(folder)


@pytest.mark.parametrize(
    "place", ["../copy/model.safetensors", "/etc/passwd", "a\\b.safetensors", "model.bin", "gone.safetensors"]
)
def test_an_index_that_points_elsewhere(folder, place):
    index = {"weight_map": {"model.embed_tokens.weight": place}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="names"):
        check_repository(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
    with pytest.raises(ValueError, match="does not hold the tensors"):
        check_repository(folder)


def test_a_tokenizer_of_another_model(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 300, "content": "<more>"})
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer\.json has ids up to 300, but vocab_size is 300"):
        check_repository(folder)
    content["added_tokens"][-1]["id"] = "300"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="not integers"):
        check_repository(folder)
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["a.B", null]}}')
    with pytest.raises(ValueError, match=r"tokenizer_config\.json has an auto_map"):
        check_repository(folder)


def test_files_that_run_code_and_links_out_of_the_folder(folder, tmp_path):
    (folder / "optimizer.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"optimizer\.pt may run code"):
        check_repository(folder)
    (folder / "optimizer.pt").unlink()
    (tmp_path / "secret").write_text("x")
    os.symlink(tmp_path / "secret", folder / "notes.txt")
    with pytest.raises(ValueError, match=r"notes\.txt is a link to"):
        check_repository(folder)
    with pytest.raises(ValueError, match="is not a folder"):
        check_repository(folder / "config.json")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 2**17, "vocab_size": 2**31}, "the weights are of other shapes"),
        ({"position_embedding_type": "learned", "max_position_embeddings": 2**31}, "128.0 GiB are missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"hidden_size": "16"}, "hidden_size"),
    ],
    ids=["shapes", "missing", "layers", "type"],
)
def test_opening_it_allocates_nothing_before_shapes_were_compared(folder, fields, message):
    change_config(folder, **fields)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Exception, match=message):
        AutoModelForCausalLM.from_pretrained(folder)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 2**18  # KiB; the models of these configurations have up to a petabyte


def test_shapes_may_still_differ_when_asked_for(folder, exported):
    opened = AutoModelForCausalLM.from_pretrained(folder, vocab_size=310, ignore_mismatched_sizes=True)
    assert opened.lm_head.out_features == 310
    kept = exported["tnn"].model.model.layers[1].state_dict()
    assert all(torch.equal(value, kept[key]) for key, value in opened.model.layers[1].state_dict().items())


def test_names_of_repositories():
    for name in ("someone/tnn-small", "a/b", "org.x/Model_1.5", "0x/7b"):
        assert check_repo_id(name) == name
    for name in (
        "../x",
        "a/../b",
        "a/..",
        "/etc/passwd",
        "a/b/c",
        "a",
        "a\\b/c",
        "a/b\n",
        "a/b.git",
        "a/.b",
        "-a/b",
        "a/b--c",
        "a/b..c",
        "https://x/y",
        "a/b?c",
        "ä/b",
        "a/" + "b" * 200,
        "",
        None,
        5,
    ):
        with pytest.raises(ValueError):
            check_repo_id(name)
