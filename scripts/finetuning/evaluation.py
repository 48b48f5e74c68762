"""What a run of finetune.py predicts, how that is scored, and what is written of it."""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import EvalPrediction, PreTrainedModel

from hf_seqmix._labels import IGNORED_LABEL
from hf_seqmix.data.labeled import Classification, QuestionAnswering, SequenceClassification, TokenClassification
from hf_seqmix.metrics import load_metric
from hf_seqmix.training.folders.resumable import ResumableTrainer

from .arguments import Arguments
from .scoring import Task, baselines, score

__all__ = [
    "Run",
    "add_baselines",
    "evaluate_split",
    "reduce_logits",
    "scorer",
    "warn_of_unscored",
]

logger = logging.getLogger("finetune")


@dataclass
class Run:
    """Data, model and how the model's output is scored."""

    arguments: Arguments
    task: Task
    metrics: list[str]
    examples: datasets.DatasetDict
    rows: dict[str, list[int]]
    """Which rows of the data the examples of each split are, from 0; held-out rows are of the training data."""
    encoded: datasets.DatasetDict
    model: PreTrainedModel
    trainer: ResumableTrainer
    cut: dict[str, int]
    """How many examples of each split are longer than the input of the model; empty for images and SQuAD."""
    texts: dict[str, list[list[str]]] | None = None
    """What the model reads of each text, by split, where a bag of words is to read the same."""

    @property
    def folder(self) -> Path:
        """Where the run writes."""
        return self.arguments.folder


def warn_of_unscored(task: Task, examples: datasets.DatasetDict) -> None:
    """Warn of splits without a column of labels, which may only be called otherwise."""
    if isinstance(task, Classification):
        columns = task.label_columns
    else:
        columns = (task.label_column,) if isinstance(task, TokenClassification) else task.columns[2:]
    for split, rows in examples.items():
        if missing := [column for column in columns if column not in rows.column_names]:
            logger.warning(
                f"the {split} data has no column {', '.join(map(repr, missing))} (it has "
                f"{', '.join(map(repr, rows.column_names))}): it is predicted, not scored."
            )


def reduce_logits(task: Task, logits: Any, labels: Any) -> Any:
    """Return the part of a model's output that the predictions need: what follows the logits is dropped."""
    if isinstance(task, QuestionAnswering):
        return logits[:2]
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.argmax(dim=-1) if isinstance(task, TokenClassification) else logits


def predictions_of(run: Run, split: str, output: Any) -> Any:
    """Return a model's output on a split as labels, numbers or answers."""
    task, encoded, examples = run.task, run.encoded[split], run.examples[split]
    if isinstance(task, TokenClassification):
        # the collator's padding is not in `encoded`, and the output is as long as its longest batch
        labels = np.full(np.shape(output), IGNORED_LABEL)
        for row, own in zip(labels, encoded["labels"], strict=True):
            row[: len(own)] = own
        words = [len(row) for row in examples[task.words_column]]
        return task.predictions(output, labels, encoded["kept"], words)
    if isinstance(task, QuestionAnswering):
        can_be_empty = not all(answers["text"] for answers in run.examples["train"]["answers"])
        return task.predictions(output, encoded, examples, can_be_empty)
    return task.predictions(output)


def scorer(run: Run, split: str) -> Callable[[EvalPrediction], dict[str, float]] | None:
    """Return a `compute_metrics` for one split; None if it has no labels."""
    if not run.task.has_labels(run.examples[split]):
        return None
    references = run.task.references(run.examples[split], split)

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        return score(run.task, run.metrics, predictions_of(run, split, prediction.predictions), references)

    return compute


def evaluate_split(run: Run, split: str) -> dict[str, Any]:
    """Return the model's figures on a split, and write its predictions if asked for."""
    labeled = run.task.has_labels(run.examples[split])
    run.trainer.compute_metrics = scorer(run, split)
    output = run.trainer.predict(run.encoded[split], metric_key_prefix=split)
    if not run.trainer.is_world_process_zero():
        return {}
    if run.arguments.run.save_predictions:
        write_predictions(run, split, output.predictions)
    if not labeled:
        return {"examples": len(run.examples[split])}
    measured = {key.removeprefix(f"{split}_"): value for key, value in (output.metrics or {}).items()}
    speed = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}
    return {
        "examples": len(run.examples[split]),
        **{key: value for key, value in measured.items() if key not in speed},
        **by_length(run, split, output.predictions),
    }


def add_baselines(run: Run, evaluations: dict[str, dict[str, Any]]) -> None:
    """Add the scores of rules to those of the model, for each split with labels."""
    splits = [split for split in evaluations if run.task.has_labels(run.examples[split])]
    for split, found in baselines(run.task, run.metrics, run.examples, splits, run.texts).items():
        evaluations[split]["baselines"] = found


def by_length(run: Run, split: str, output: Any) -> dict[str, Any]:
    """Return the accuracy of a classifier of texts in buckets of their lengths in tokens; nothing for other tasks."""
    task, encoded = run.task, run.encoded[split]
    if not isinstance(task, SequenceClassification) or task.problem_type != "single_label_classification":
        return {}
    # The segments of a pair are lists of their own.
    lengths = [sum(map(len, ids)) if ids and isinstance(ids[0], list) else len(ids) for ids in encoded["input_ids"]]
    scores = load_metric("accuracy_by_length").compute(
        predictions=predictions_of(run, split, output),
        references=task.references(run.examples[split], split),
        lengths=lengths,
    )
    return {"by_length": scores}


def write_predictions(run: Run, split: str, output: Any) -> None:
    """Write one JSON line an example: its row in the data, the prediction, and the label if there is one."""
    task = run.task
    predictions: Any = predictions_of(run, split, output)
    readable = predictions if isinstance(task, QuestionAnswering) else task.readable(predictions)
    rows = [{"row": row, "prediction": prediction} for row, prediction in zip(run.rows[split], readable, strict=True)]
    if task.has_labels(run.examples[split]):
        references: Any = task.references(run.examples[split], split)
        labels = references if isinstance(task, QuestionAnswering) else task.readable(references)
        rows = [{**row, "label": label} for row, label in zip(rows, labels, strict=True)]
    path = run.folder / f"predictions_{split}.jsonl"
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    os.replace(temporary, path)
