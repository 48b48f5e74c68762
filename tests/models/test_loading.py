"""A saved model that is cut short is refused, and the file named; a saved model replaces the one before it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForSequenceClassification


@pytest.fixture
def model() -> TNNForCausalLM:
    return TNNForCausalLM(TNNConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, rpe_hidden_size=8))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("size", [0, 7, 300, None], ids=["empty", "no header", "in the header", "in the numbers"])
def test_weights_cut_short(model: TNNForCausalLM, tmp_path: Path, size: int | None) -> None:
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1 if size is None else size)
    for opened in (AutoModelForCausalLM, TNNForCausalLM):
        with pytest.raises(ValueError, match=f"{path} is cut short or damaged"):
            opened.from_pretrained(tmp_path)


def test_the_shard_or_the_index_is_named(model: TNNForCausalLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    TNNForCausalLM.from_pretrained(tmp_path)
    for path in (shards[1], tmp_path / "model.safetensors.index.json"):
        content = path.read_bytes()
        cut(path)
        with pytest.raises(ValueError, match=f"{path} is cut short or damaged"):
            TNNForCausalLM.from_pretrained(tmp_path)
        path.write_bytes(content)


def test_a_subfolder_is_looked_into(model: TNNForCausalLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "sub")
    cut(tmp_path / "sub" / "model.safetensors")
    with pytest.raises(ValueError, match=r"sub/model\.safetensors is cut short or damaged"):
        TNNForCausalLM.from_pretrained(tmp_path, subfolder="sub")


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_weights_of_other_shapes(model: TNNForCausalLM, tmp_path: Path, kind: type[Exception]) -> None:
    """The library raises a `RuntimeError`."""
    config = TNNConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, rpe_hidden_size=8, num_labels=3)
    TNNForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(kind, match=r"classifier.*: \[3.*\] in the file, \[42.*\] by the configuration"):
        TNNForSequenceClassification.from_pretrained(tmp_path, num_labels=42)


def test_other_errors_stay_what_they_are(model: TNNForCausalLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(OSError, match=r"config\.json' is not a valid JSON file"):
        TNNForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(OSError, match="no-such-folder"):
        TNNForCausalLM.from_pretrained(tmp_path / "no-such-folder")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: [], 'has no object "weight_map"; it must be {"metadata"'),
        (lambda index: None, 'has no object "weight_map"'),
        (lambda index: {"metadata": {}}, 'has no object "weight_map"'),
        (lambda index: {**index, "weight_map": list(index["weight_map"])}, 'has no object "weight_map"'),
        (lambda index: {**index, "weight_map": dict.fromkeys(index["weight_map"], 3)}, "names the file 3; it must be"),
        (lambda index: {"weight_map": index["weight_map"]}, 'has no object "metadata"; it must be'),
    ],
    ids=["list", "null", "no map", "map is a list", "numbers for files", "no metadata"],
)
def test_an_index_that_is_none(model: TNNForCausalLM, tmp_path: Path, change: Any, message: str) -> None:
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=f"the index {path} {message}"):
        TNNForCausalLM.from_pretrained(tmp_path)


def test_a_pointer_of_git_lfs(model: TNNForCausalLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 12345\n")
    with pytest.raises(ValueError, match=f"{path} is a pointer of Git LFS .*: run `git lfs pull`"):
        TNNForCausalLM.from_pretrained(tmp_path)


def test_errors_of_the_call_stay_what_they_are(model: TNNForCausalLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="no_such_option"):
        TNNForCausalLM.from_pretrained(tmp_path, no_such_option=1)


@pytest.mark.parametrize("variant", [None, "half"])
@pytest.mark.parametrize("sizes", [("5GB", "2KB"), ("2KB", "5GB"), ("2KB", "4KB"), ("5GB", "5GB")], ids="-".join)
def test_the_model_that_was_saved_last_is_opened(
    model: TNNForCausalLM, tmp_path: Path, sizes: tuple[str, str], variant: str | None
) -> None:
    last = TNNForCausalLM(model.config)
    for saved, size in zip((model, last), sizes, strict=True):
        saved.save_pretrained(tmp_path, max_shard_size=size, variant=variant)
    opened = TNNForCausalLM.from_pretrained(tmp_path, variant=variant)
    torch.testing.assert_close(opened.state_dict(), last.state_dict(), rtol=0, atol=0)
    alone = tmp_path / "alone"
    last.save_pretrained(alone, max_shard_size=sizes[1], variant=variant)
    files = {path.name for path in tmp_path.glob("*.safetensors*")}
    assert files == {path.name for path in alone.glob("*.safetensors*")}


def test_other_weights_stay_beside_a_saved_model(model: TNNForCausalLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, variant="half")
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    model.save_pretrained(tmp_path / "main", max_shard_size="2KB")
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (tmp_path / "main" / name).touch()
    model.save_pretrained(tmp_path / "main", is_main_process=False)
    assert (tmp_path / "model.half.safetensors").exists()
    assert (tmp_path / "main" / "model.safetensors").exists()
    assert (tmp_path / "main" / "model.safetensors.index.json").exists()
