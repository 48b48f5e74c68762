"""Lengths at which the models of corpora are scored."""

import argparse
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hf_seqmix.data.tokenization import train_bpe
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.run import Run

TEXT = "To be, or not to be: that is the question.\n" * 3


def test_lengths_are_counted_in_the_tokens_of_each_model(
    script_module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = script_module("benchmarks.corpora.scoring")
    tokenizer = train_bpe([TEXT] * 3, 300)
    tokenizer.save_pretrained(tmp_path)
    longest = len(tokenizer(TEXT)["input_ids"])
    scored: list[int] = []

    def score_model(settings: Any, folder: str, texts: list[str], keys: dict[int, Any], *_: Any) -> None:
        scored.extend(keys)

    monkeypatch.setattr(scoring.causal_scoring, "score_model", score_model)
    arguments = argparse.Namespace(benchmark="corpora", objective="causal", batch_size=None, device="cpu")
    vars(arguments).update(dtype="float32", overwrite=False, keep_grid=False, context_length=4)
    arguments.inference_lengths = [4, longest, longest + 1]
    assert longest + 1 < len(TEXT)  # which a count of bytes would take
    model = scoring.TrainedModel("tnn", 0, tmp_path, Run("language modeling", {}, {}, {}, 0))
    report = scoring.score_lengths(arguments, [model], ["short", TEXT], ResultFile(tmp_path / "log.jsonl"), {})
    assert scored == [4, longest]
    assert list(report.failures) == [f"tnn, seed 0, {longest + 1} tokens"]
    assert f"more than {longest} tokens" in report.failures[f"tnn, seed 0, {longest + 1} tokens"]
