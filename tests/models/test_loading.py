"""A saved model that is cut short is refused, and the file named."""

import os
from pathlib import Path

import pytest
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
