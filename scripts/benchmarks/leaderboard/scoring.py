"""What `run_benchmarks.py leaderboard` scores of a finished run: held-out text, and the cases of a synthetic task."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from hf_seqmix.analysis import iter_language_model_scores
from hf_seqmix.training import block_scores

from ..inputs import default_device, first_bytes, test_texts

TOKENS = 8192
"""Of a batch of rows."""

logger = logging.getLogger("run_benchmarks")


def score_text(folder: Path, lengths: Sequence[int], max_bytes: int | None) -> dict[str, Any]:
    """Return bits per byte of the test split at several lengths of context, and None where a model takes no so many.

    Args:
        folder: of a finished run of pretrain.py, of a causal model.
        lengths: of the context, in tokens.
        max_bytes: of the split's beginning that are scored; None for all.

    Returns:
        "by_context": length -> bits per byte; nothing where there is no test split.
    """
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))["arguments"]["data"]
    texts = test_texts(data)
    if texts is None:
        return {}
    texts = texts if max_bytes is None else first_bytes(texts, max_bytes)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found: dict[int, float | None] = {}
    for length in lengths:
        if length > longest(model):
            found[length] = None
            continue
        scores = iter_language_model_scores(model, tokenizer, texts, context_lengths=[length], device=default_device())
        found[length] = next(scores).bits_per_byte
    return {"by_context": found}


def score_cases(folder: Path, files: Mapping[str, Path], objective: str) -> dict[str, Any]:
    """Return, as "by_case", the share of right answers in each case of a task; None where rows are too long.

    Args:
        folder: of the run.
        files: case -> its rows.
        objective: "causal" or "masked".
    """
    auto = AutoModelForCausalLM if objective == "causal" else AutoModelForMaskedLM
    model: Any = auto.from_pretrained(folder).eval()
    model.to(default_device())
    return {"by_case": {case: _accuracy(model, path, objective == "causal") for case, path in files.items()}}


def longest(model: Any) -> float:
    """Return how many tokens a model takes: those of its learned positions, or any number."""
    learned = getattr(model.config, "model_type", None) in ("opt", "bert")
    return int(model.config.max_position_embeddings) if learned else float("inf")


@torch.inference_mode()
def _accuracy(model: Any, path: Path, causal: bool) -> float | None:
    rows = datasets.Dataset.from_parquet(str(path)).with_format("torch")
    length = len(rows[0]["input_ids"])
    if length > longest(model):
        return None
    right, counted = 0.0, 0.0
    for batch in rows.iter(max(1, TOKENS // length)):
        ids, labels = (batch[column].to(model.device) for column in ("input_ids", "labels"))
        scores = block_scores(model(input_ids=ids).logits, labels, causal=causal).sum(dim=0)
        right, counted = right + scores[1].item(), counted + scores[2].item()
    return right / counted
