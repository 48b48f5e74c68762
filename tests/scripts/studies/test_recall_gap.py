"""The gap at recalled tokens between checkpoints, as its users measure it."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import datasets
import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForMaskedLM
from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.data import build_tokenizer
from hf_seqmix.training.result_files import read_results

TEXT = ["The red fox met a blue cat. " * 6, "Nobody met the green owl; the green owl met nobody. " * 3]


@pytest.fixture(scope="module")
def script(study: Callable[[str], ModuleType]) -> ModuleType:
    return study("recall_gap")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer("bpe:280", TEXT)


@pytest.fixture
def command(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "text").mkdir()
    for split, texts in {"train": ["A red fox. A blue owl."], "test": TEXT}.items():
        datasets.Dataset.from_dict({"text": texts}).to_parquet(tmp_path / "text" / f"{split}.parquet")
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        config = TNNConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, is_causal=True)
        TNNForCausalLM(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)

    def line(*names: str) -> list[str]:
        models = [str(tmp_path / name) for name in names]
        return ["--models", *models, "--dataset", str(tmp_path / "text"), "--output-dir", str(tmp_path / "out")]

    return line


@pytest.mark.usefixtures("pictures")
def test_losses_are_those_of_the_whole_text(
    script: ModuleType,
    command: Callable[..., list[str]],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
) -> None:
    rows = script.main([*command("first", "second"), "--context-lengths", "16", "64"])
    assert [(row["context_length"], row["model"]) for row in rows] == [
        (length, name) for length in (16, 64) for name in ("first", "second")
    ]
    for row in rows:
        model = TNNForCausalLM.from_pretrained(tmp_path / row["model"])
        [score] = evaluate_language_model(
            model, tokenizer, TEXT, context_lengths=[row["context_length"]], progress=False
        )
        assert row["loss"] == pytest.approx(score.nll / score.num_tokens, rel=1e-5)
        share = row["recalled_tokens"]
        assert row["loss"] == pytest.approx(share * row["recalled_loss"] + (1 - share) * row["other_loss"])
    assert rows[0]["gap"] == 0 and rows[0]["share_of_gap"] is None
    assert rows[1]["gap"] == pytest.approx(rows[1]["loss"] - rows[0]["loss"])
    assert rows[1]["recall_gap"] == pytest.approx(rows[1]["recalled_loss"] - rows[0]["recalled_loss"])
    assert rows[2]["recalled_tokens"] > rows[0]["recalled_tokens"] > 0  # a longer context repeats more
    kept = read_results(tmp_path / "out" / "recall-gap.jsonl")
    classes = [
        r for r in kept if r.model == "second" and "distance" in r.setting and r.setting["context_length"] == 16
    ]
    nats = sum(float(r.value or 0) * r.setting["num_tokens"] for r in classes)
    tokens = sum(r.setting["num_tokens"] for r in classes)
    assert nats / tokens == pytest.approx(rows[1]["loss"])
    assert str(tmp_path) not in (tmp_path / "out" / "recall-gap.jsonl").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "recall-gap.png").stat().st_size > 10_000


def test_a_data_set_without_training_text_is_refused(
    script: ModuleType, command: Callable[..., list[str]], tmp_path: Path
) -> None:
    line = command("first")
    (tmp_path / "text" / "train.parquet").unlink()
    with pytest.raises(SystemExit, match="has no split 'train'; it has test"):
        script.main(line)


def test_models_are_opened_before_text_is_read(
    script: ModuleType, command: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(script, "load_corpus")
    (tmp_path / "second" / "model.safetensors").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"second"):
        script.main(command("first", "second"))


def test_only_the_first_tokens_are_scored(script: ModuleType) -> None:
    documents = [np.arange(5), np.arange(9), np.arange(4)]
    kept = script.first_tokens(documents, 7)
    assert [len(ids) for ids in kept] == [5, 4]
    assert [len(ids) for ids in script.first_tokens(documents, 100)] == [5, 9, 4]
    assert [len(ids) for ids in script.first_tokens(documents, 4)] == [5]


@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        (["first", "nothing"], [], "nothing: there is no such folder"),
        (["first", "first"], [], "twice"),
        (["first", "other"], [], "have other tokens"),
        (["first", "masked"], [], "is_causal is False"),
        (["first"], ["--split", "dev"], "has no split 'dev'; it has"),
        (["first"], ["--context-lengths", "0"], "at least 1"),
        (["first", "begun"], [], "another token before a text"),
        (["small"], [], "use the tokenizer that the model was trained with"),
    ],
)
def test_bad_input_ends_with_a_message(
    script: ModuleType,
    command: Callable[..., list[str]],
    tmp_path: Path,
    names: list[str],
    more: list[str],
    message: str,
    tokenizer: PreTrainedTokenizerFast,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = command(*names)
    config = TNNConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, is_causal=False)
    TNNForMaskedLM(config).save_pretrained(tmp_path / "masked")
    tokenizer.save_pretrained(tmp_path / "masked")
    build_tokenizer("bpe:290", TEXT).save_pretrained(tmp_path / "other")
    begun = build_tokenizer("bpe:280", TEXT)
    begun.bos_token = begun.convert_ids_to_tokens(5)
    begun.save_pretrained(tmp_path / "begun")
    small = TNNConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, is_causal=True)
    TNNForCausalLM(small).save_pretrained(tmp_path / "small")
    tokenizer.save_pretrained(tmp_path / "small")
    with pytest.raises(SystemExit) as stop:
        script.main([*line, *more])
    assert message in f"{stop.value}{capsys.readouterr().err}"
