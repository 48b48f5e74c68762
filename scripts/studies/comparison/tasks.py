"""What compare_mixers.py trains on: the tasks and their data."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

# Importing the package registers its families with the Auto classes.
from hf_seqmix._files import whole_files
from hf_seqmix.data import (
    associative_recall,
    build_tokenizer,
    lagged_copy,
    load_corpus,
    mask_blocks,
    pack_for_evaluation,
    pack_for_training,
    rare_word_repetition,
    total_bytes,
)

__all__ = ["TASKS", "Sizes", "Task", "TaskKind", "build_task", "data_digest"]


@dataclass(frozen=True)
class TaskKind:
    """A task before it has data: what is predicted, what is reported (metric -> header), and sizes that fit it."""

    causal: bool
    is_text: bool
    metrics: Mapping[str, str]
    defaults: Mapping[str, Any]


TEXT_DEFAULTS = {
    "embedding_scale": 1.0,
    "steps": 500,
    "batch_size": 4,
    "block_size": 256,
    "hidden_size": 96,
    "num_layers": 2,
    "eval_blocks": 200,
}
# With unscaled embeddings, masked models hardly leave the frequencies of the tokens in so few updates.
MASKED_DEFAULTS = TEXT_DEFAULTS | {"decay": 0.9, "embedding_scale": 10.0, "steps": 1000}
# Unscaled embeddings, of unit variance, are also the output's: with so few tokens, attention does not learn to recall
# then.
RECALL_DEFAULTS = {
    "embedding_scale": 8.0,
    "steps": 1500,
    "batch_size": 32,
    "block_size": 24,
    "hidden_size": 64,
    "num_layers": 2,
    "eval_blocks": 1000,
}
REPETITION_DEFAULTS = RECALL_DEFAULTS | {"steps": 1000, "block_size": 48, "eval_blocks": 2000}
COPY_DEFAULTS = RECALL_DEFAULTS | {"steps": 400, "block_size": 48}

CODE_LENGTH = {"bits_per_byte": "bits/byte", "perplexity": "perplexity"}
MASKED_SCORES = {"token_loss": "nats/masked token", "token_accuracy": "accuracy"}
ANSWERS = {"token_accuracy": "accuracy", "token_loss": "nats/answer"}

TASKS = {
    "lm-causal": TaskKind(True, True, CODE_LENGTH, TEXT_DEFAULTS | {"decay": 0.9}),
    "lm-masked": TaskKind(False, True, MASKED_SCORES, MASKED_DEFAULTS),
    "recall": TaskKind(True, False, ANSWERS, RECALL_DEFAULTS | {"decay": 0.99}),
    "recall-masked": TaskKind(False, False, ANSWERS, RECALL_DEFAULTS | {"decay": 0.99}),
    "repetition": TaskKind(True, False, ANSWERS, REPETITION_DEFAULTS | {"decay": 0.99}),
    "copy": TaskKind(True, False, ANSWERS, COPY_DEFAULTS | {"decay": 0.99}),
    "copy-masked": TaskKind(False, False, ANSWERS, COPY_DEFAULTS | {"decay": 0.99}),
}


def _repetition(num_rows: Mapping[str, int], length: int, causal: bool) -> datasets.DatasetDict:
    if not causal:
        raise ValueError("the task repetition is for causal models.")
    return rare_word_repetition(num_rows, length=length)


SYNTHETIC: dict[str, Callable[..., datasets.DatasetDict]] = {
    "recall": partial(associative_recall, num_pairs=4, vocab_size=34),
    "repetition": _repetition,
    "copy": partial(lagged_copy, min_lag=16, vocab_size=34),
}


@dataclass(frozen=True)
class Sizes:
    """What all models of a comparison have in common."""

    block_size: int
    hidden_size: int
    num_layers: int
    decay: float
    embedding_scale: float


@dataclass(frozen=True)
class Task:
    """Blocks of tokens with labels, and what scores them; `num_bytes` of text that each evaluation split predicts."""

    kind: TaskKind
    train: datasets.Dataset
    evaluation: Mapping[str, datasets.Dataset]
    num_bytes: Mapping[str, int]
    vocab_size: int
    tokenizer: PreTrainedTokenizerBase | None


def build_task(
    name: str,
    sizes: Sizes,
    *,
    eval_blocks: int,
    train_rows: int,
    files: Mapping[str, str | None],
    tokenizer_spec: str,
    folder: Path,
) -> Task:
    """Make or read the data of a task.

    Args:
        name: key of `TASKS`.
        sizes: of the comparison.
        eval_blocks: blocks of the validation and of the test split, the first ones of text.
        train_rows: rows that training sees; generated ones are never seen twice.
        files: split -> text file, for the text tasks.
        tokenizer_spec: see `build_tokenizer`; saved in `folder`, and read from there if it has been saved.
        folder: of the results.

    Raises:
        ValueError: for a missing file, or sizes that a generator refuses.
    """
    kind = TASKS[name]
    if not kind.is_text:
        rows = {"train": train_rows, "validation": eval_blocks, "test": eval_blocks}
        generate = SYNTHETIC[name.removesuffix("-masked")]
        splits = generate(rows, length=sizes.block_size, causal=kind.causal)
        vocab_size = 1 + max(int(np.max(rows.with_format("numpy")["input_ids"][:])) for rows in splits.values())
        return Task(kind, splits.pop("train"), splits, {}, vocab_size, None)
    missing = [f"--{split}-file" for split, path in files.items() if path is None]
    if missing:
        raise ValueError(f"the task {name} needs text; give {', '.join(missing)}.")
    corpus = load_corpus({split: str(path) for split, path in files.items()})
    tokenizer = _tokenizer(tokenizer_spec, corpus["train"], kind.causal, folder)
    train = pack_for_training(corpus["train"], tokenizer, sizes.block_size, causal=kind.causal)
    evaluation, num_bytes = {}, {}
    for split in ("validation", "test"):
        blocks = pack_for_evaluation(corpus[split], tokenizer, sizes.block_size, causal=kind.causal)
        blocks = blocks.take(min(eval_blocks, len(blocks)))
        num_bytes[split] = total_bytes(blocks)
        evaluation[split] = blocks if kind.causal else mask_blocks(blocks, tokenizer)
    return Task(kind, train, evaluation, num_bytes, len(tokenizer), tokenizer)


def _tokenizer(spec: str, documents: Any, causal: bool, folder: Path) -> PreTrainedTokenizerBase:
    texts = documents["text"]
    words = json.dumps([spec, not causal, hashlib.sha256("\n".join(texts).encode()).hexdigest()])
    digest = hashlib.sha256(words.encode()).hexdigest()[:8]
    saved = folder / f"tokenizer-{Path(spec).name.replace(':', '-')}-{digest}"
    if (saved / "tokenizer_config.json").is_file():
        return AutoTokenizer.from_pretrained(saved)
    tokenizer = build_tokenizer(spec, texts, mask_token=not causal)
    with whole_files(saved, last="tokenizer_config.json") as aside:
        tokenizer.save_pretrained(aside)
    return tokenizer


def data_digest(task: Task) -> str:
    """Return a name for exactly these blocks, masks of the evaluation included."""
    digest = hashlib.sha256()
    for blocks in (task.train, *task.evaluation.values()):
        for column in ("input_ids", "labels"):
            if column in blocks.column_names:
                digest.update(np.asarray(blocks.with_format("numpy")[column][:], dtype=np.int32).tobytes())
    return digest.hexdigest()[:12]
