"""Repositories that lie: each is refused, by its files alone, with what is wrong."""

import json
import os
import resource
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_seqmix.hub import check_repo_id, check_repository, weight_files
from tests.hub.test_safetensors_header import write_header


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
        ({"num_hidden_layers": 1024}, "the weights have 2 blocks, but config.json describes 1024"),
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
        ({**tensors, name: tensors[name].to(torch.int32)}, "is of type I32; the model's own is torch.float32"),
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
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="names"):
        check_repository(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
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
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer"):
        check_repository(folder)
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["a.B", null]}}')
    with pytest.raises(ValueError, match=r"tokenizer_config\.json has an auto_map"):
        check_repository(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tokenizer.json", {"added_tokens": 5}, r"tokenizer\.json is no tokenizer"),
        ("tokenizer.json", {"added_tokens": {"a": {"id": 10**6}}}, r"tokenizer\.json is no tokenizer"),
        ("tokenizer.json", {"model": {"vocab": 5}}, r"tokenizer\.json is no tokenizer"),
        ("tokenizer.json", {"model": "x"}, r"tokenizer\.json is no tokenizer"),
        ("tokenizer.json", {"model": None}, r"tokenizer\.json is no tokenizer"),
        ("tokenizer_config.json", {"extra_special_tokens": {f"t{i}": f"<e{i}>" for i in range(60)}}, "has ids up to"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {str(i): {"content": f"<e{i}>"} for i in range(999, 1060)}},
            "has ids up to",
        ),
        ("tokenizer_config.json", {"tokenizer_class": 5}, r"tokenizer_config\.json: AttributeError"),
        ("generation_config.json", "[", r"generation_config\.json is not JSON"),
        ("generation_config.json", "[]", r"generation_config\.json holds a list"),
        (
            "generation_config.json",
            " " * 2**20 + "{}",
            r"generation_config\.json has 1,048,578 bytes; at most 1,048,576",
        ),
        ("results.json", "[" * 2**22, r"results\.json is not JSON: it has more than"),
        (
            "preprocessor_config.json",
            '{"auto_map": {"AutoImageProcessor": "evil/x--a.B"}}',
            "'evil/x--a.B'; it must name",
        ),
        (
            "other_config.json",
            '{"auto_map": {"AutoProcessor": "modeling_tnn.B"}}',
            r"other_config\.json: auto_map has",
        ),
        ("config.json", '{"vocab_size": ' + "9" * 5000 + "}", r"config\.json is not JSON: Exceeds the limit"),
        ("custom_generate/generate.py", "", r"custom_generate/generate\.py is code in a folder of its own"),
        ("x.gguf", "", r"x\.gguf is of a kind that has no place here"),
        ("sub/x.so", "", r"sub/x\.so is of a kind"),
        ("model.pt2", "", r"model\.pt2 is of a kind"),
        ("optimizer.pt", "", r"optimizer\.pt may run code"),
        ("adapter_config.json", "{}", r"adapter_config\.json: an adapter beside the weights"),
        ("adapter_model.safetensors", "", r"adapter_model\.safetensors: an adapter beside the weights"),
        ("sub/model.safetensors", "", r"sub/model\.safetensors holds weights that are not the model's"),
    ],
)
def test_files_that_have_no_place_or_are_broken(folder, name, change, message):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if isinstance(change, dict):
        change = json.dumps({**json.loads(path.read_text()), **change})
    path.write_text(change)
    with pytest.raises(ValueError, match=message):
        check_repository(folder)


def test_what_a_repository_may_have(folder):
    for name in ("LICENSE", ".gitattributes", "loss.png", "chat_template.jinja", "results.json"):
        (folder / name).write_text("[1]")
    for name in (".git", ".cache/huggingface"):
        (folder / name).mkdir(parents=True)
        (folder / name / "index").write_bytes(b"")
    assert check_repository(folder).model_type == "tnn"
    (folder / "modeling_tnn.py").write_text("import os; os.system('id')")
    check_repository(folder)  # may be that of another version: not looked at, and so it says


def test_weights_beside_those_that_are_opened(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, folder / "a.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"a\.safetensors holds weights that are not the model's"):
        check_repository(folder)
    index = {"weight_map": dict.fromkeys(tensors, "a.safetensors"), "metadata": {}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"there are both model\.safetensors and model\.safetensors\.index\.json"):
        check_repository(folder)
    (folder / "model.safetensors").unlink()
    assert check_repository(folder).model_type == "tnn"
    del index["metadata"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="metadata is missing or no object; it must be"):
        check_repository(folder)
    for odd in (5, None, ["x"], "x" * 5000 + ".safetensors", "mod\0el.safetensors", ".safetensors"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": odd}}))
        with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json names"):
            check_repository(folder)


def test_no_more_is_built_than_a_file_holds(folder, monkeypatch):
    """Tensors without numbers cost a file nothing, so that they must not make blocks."""
    built = []
    block = weight_files.SeqMixBlock
    monkeypatch.setattr(
        weight_files, "SeqMixBlock", lambda config, number: built.append(number) or block(config, number)
    )
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    write_header(folder / "model.safetensors", {f"model.layers.{i}.x": entry for i in range(1000)})
    change_config(folder, num_hidden_layers=1000)
    with pytest.raises(ValueError, match=r"the weights lack 'model\.layers\.0\."):
        check_repository(folder)
    assert built == [0]
    write_header(folder / "model.safetensors", {f"model.layers.{i}.x": entry for i in (0, 2)})
    change_config(folder, num_hidden_layers=2)
    with pytest.raises(ValueError, match="the weights have blocks 0, 2"):
        check_repository(folder)


def test_a_model_too_large_for_pytorch(folder, monkeypatch):
    def fail(*_):
        raise RuntimeError("Storage size calculation overflowed")

    monkeypatch.setattr(weight_files, "SeqMixBlock", fail)
    with pytest.raises(ValueError, match=r"config\.json describes a model too large to be built: Storage"):
        check_repository(folder)


def test_integers_where_the_model_has_numbers(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for dtype in (torch.int64, torch.int32, torch.uint8):
        save_file({**tensors, "model.embed_tokens.weight": tensors["model.embed_tokens.weight"].to(dtype)}, path)
        with pytest.raises(ValueError, match="of type"):
            check_repository(folder)


def test_links_and_what_is_no_file(folder, tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "secret").write_text("x")
    (tmp_path / "blobs" / "0123456789abcdef").write_text("x")
    for target in ("secret", "0123456789abcdef", "gone", ""):
        os.symlink(tmp_path / "blobs" / target, folder / "notes.txt")
        with pytest.raises(ValueError, match=r"notes\.txt is a link to"):
            check_repository(folder)
        (folder / "notes.txt").unlink()
    os.symlink(folder / "b.txt", folder / "a.txt")
    os.symlink(folder / "a.txt", folder / "b.txt")
    with pytest.raises(ValueError, match=r"a\.txt is a link to"):
        check_repository(folder)
    (folder / "a.txt").unlink()
    (folder / "b.txt").unlink()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "README.md"):
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(ValueError, match=f"{name} is a pipe, a device"):
            check_repository(folder)
        (folder / name).unlink()
        (folder / name).write_bytes(kept)
    for no_folder in (folder / "config.json", None, 0, "\0", "x" * 5000, tmp_path / "gone"):
        with pytest.raises(ValueError, match="is not a folder"):
            check_repository(no_folder)


def test_the_links_of_the_hubs_cache(folder, tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0f", tmp_path / "models--a--b" / "blobs"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    blobs.mkdir()
    (snapshot / "model.safetensors").rename(blobs / "0123456789abcdef")
    os.symlink("../../blobs/0123456789abcdef", snapshot / "model.safetensors")
    assert check_repository(snapshot).model_type == "tnn"
    for target in ("../../blobs/secret", "../../blobs/../0123456789abcdef", "../0f/config.json"):
        os.symlink(target, snapshot / "notes.txt")
        with pytest.raises(ValueError, match=r"notes\.txt is a link to"):
            check_repository(snapshot)
        (snapshot / "notes.txt").unlink()
    os.symlink("0123456789abcdef", blobs / "fedcba98")
    os.symlink("../../blobs/fedcba98", snapshot / "notes.txt")
    with pytest.raises(ValueError, match=r"notes\.txt is a pipe, a device, or a link"):
        check_repository(snapshot)


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
