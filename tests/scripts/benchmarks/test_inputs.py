"""What benchmarks read: names of models in a log, texts of baselines, digests of the files that a run names."""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedConfig,
    PreTrainedModel,
)

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForSequenceClassification
from hf_seqmix.data import build_tokenizer
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture(scope="module")
def module() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield lambda name: importlib.import_module(f"benchmarks.{name}")


def test_a_model_has_the_name_of_this_command_and_baselines_keep_theirs(module: Any) -> None:
    kept = [Result("text", "final", "accuracy", 1.0), Result("text", "5-gram", "accuracy", 2.0, kind="baseline")]
    assert [result.model for result in module("inputs").named(kept, "a/final")] == ["a/final", "5-gram"]
    assert module("inputs").named(None, "a") == []


def test_tokenizers_that_a_model_does_not_know_are_refused_or_warned_of(
    module: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build_tokenizer("bpe:270", ["some text"]).save_pretrained(tmp_path)
    fields = {"vocab_size": 400, "hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 8}
    TNNForCausalLM(TNNConfig(**fields)).save_pretrained(tmp_path)
    given = argparse.Namespace(tokenizer="bpe:300", dtype="auto", trust_remote_code=False)
    with pytest.raises(ValueError, match="asks for a new tokenizer, whose tokens no checkpoint knows"):
        module("inputs").open_model(given, str(tmp_path), AutoModelForCausalLM.from_pretrained)
    for tokenizer, warned in ((str(tmp_path), False), ("byte", True)):
        given.tokenizer = tokenizer
        module("inputs").open_model(given, str(tmp_path), AutoModelForCausalLM.from_pretrained)
        assert ("whose embeddings then mean something else" in caplog.text) == warned


def test_a_classifier_with_tied_embeddings_is_no_language_model(module: Any, tmp_path: Path) -> None:
    given = argparse.Namespace(tokenizer=None, dtype="auto", trust_remote_code=False)
    load = AutoModelForCausalLM.from_pretrained
    tnn = TNNConfig(vocab_size=270, hidden_size=16, num_hidden_layers=1, tie_word_embeddings=True)
    gpt2 = GPT2Config(vocab_size=270, n_embd=16, n_layer=1, n_head=1)
    kinds: list[tuple[type[PreTrainedModel], PreTrainedConfig]] = [
        (TNNForSequenceClassification, tnn),
        (GPT2ForSequenceClassification, gpt2),
        (TNNForCausalLM, tnn),
        (GPT2LMHeadModel, gpt2),
    ]
    for kind, config in kinds:
        folder = tmp_path / kind.__name__
        kind(config).save_pretrained(folder)
        build_tokenizer("byte").save_pretrained(folder)
        if kind.__name__.endswith("Classification"):
            with pytest.raises(ValueError, match=rf"is a {kind.__name__}: give a checkpoint of (TNN|GPT2)"):
                module("inputs").open_model(given, str(folder), load)
            fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            del fields["architectures"]  # which says nothing against it
            (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        model, _ = module("inputs").open_model(given, str(folder), load)
        assert type(model).__name__ in ("TNNForCausalLM", "GPT2LMHeadModel")


def test_a_score_carries_what_was_scored_without_folders_of_this_machine(module: Any, tmp_path: Path) -> None:
    given = argparse.Namespace(text_file=[tmp_path / "a.txt"], dataset=None, split=None, max_bytes=200, seed=3)
    run = module("inputs").scoring_run(given, "language modeling", str(tmp_path / "model"))
    assert run == Run("language modeling", {"model": "DATA/model"}, {"text": "a.txt", "max_bytes": 200}, seed=3)


@pytest.mark.parametrize(
    ("limit", "separator", "named"),
    [
        (None, None, "abc"),
        (3, None, "a"),
        (4, None, "ab"),
        (6, None, "ab"),
        (9, None, "abc"),
        (6, "----", "ab"),
        (99, None, "abc"),
    ],
)
def test_a_score_names_no_file_beyond_the_bytes_that_are_scored(
    module: Any, tmp_path: Path, limit: int | None, separator: str | None, named: str
) -> None:
    files = [tmp_path / name for name in "abc"]
    for path in files:
        path.with_suffix(".txt").write_text(path.name * 3)
    files = [path.with_suffix(".txt") for path in files]
    given = argparse.Namespace(
        text_file=files, dataset=None, split=None, max_bytes=limit, text_column="text", sample_by="document"
    )
    given.join_with = separator
    texts = module("inputs").load_texts(given)
    assert module("inputs").source_of(given) == ", ".join(f"{name}.txt" for name in named)
    if separator is None:
        assert "".join(texts) == "aaabbbccc"[:limit]


def test_baselines_learn_from_texts_that_are_joined_alike(module: Any, tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text("one\n\ntwo\n\nthree")
    arguments = argparse.Namespace(
        dataset=str(tmp_path), text_file=None, text_column="text", sample_by="paragraph", split=None, max_bytes=None
    )
    arguments.join_with = "-\\n"
    inputs = module("inputs")
    assert inputs.load_training_texts(arguments) == inputs.load_texts(arguments) == ["one-\ntwo-\nthree"]
    arguments.join_with = None
    assert len(inputs.load_training_texts(arguments)) == 3


def test_runs_of_files_of_one_name_and_other_contents_differ(module: Any, tmp_path: Path) -> None:
    found = []
    for number in "12":
        path = tmp_path / number / "data" / "train.txt"
        path.parent.mkdir(parents=True)
        path.write_text(f"text {number}")
        (path.parent / "tokenizer.json").write_text(number)
        data = {"train_file": [str(path)], "tokenizer": str(path.parent), "dataset": str(path.parent)}
        found.append(module("jobs").contents_of(Run("text", model={}, data=data, training={})))
    names = {"train_file train.txt", "tokenizer", "dataset train.txt", "dataset tokenizer.json"}
    assert set(found[0]) == names and all(found[0][name] != found[1][name] for name in names)
    embedded = Run("text", model={}, data={"dataset": "embedded:x"}, training={})
    assert module("jobs").contents_of(embedded) == {}


def test_files_below_a_folder_of_data_tell_runs_apart(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("train/x/a.txt", "validation/a.txt", "b.txt", ".cache/a.txt"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)

    def contents() -> dict[str, str]:
        found: dict[str, str] = module("jobs").contents_of(
            Run("text", model={}, data={"dataset": "~/data"}, training={})
        )
        return found

    before = contents()
    assert set(before) == {"dataset train/x/a.txt", "dataset validation/a.txt", "dataset b.txt"}
    (tmp_path / "data" / "train" / "x" / "a.txt").write_text("other")
    assert {name for name, digest in contents().items() if digest != before[name]} == {"dataset train/x/a.txt"}
