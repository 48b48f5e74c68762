"""The trainings of the benchmark `glue`: their sizes and data, what runs, and what is read of a finished run."""

import argparse
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from hf_seqmix.data.labeled import GLUE_TASKS, load_glue
from hf_seqmix.training import explain_model_error
from hf_seqmix.training.environment import fingerprint
from hf_seqmix.training.results import Result, group_results
from hf_seqmix.training.scoring import METRIC_KEYS

from ..jobs import Job, make_run
from .report import task_scores

__all__ = ["SIZES", "describe_task", "entry_name", "longest_input", "make_job", "measure"]


@dataclass(frozen=True)
class Size:
    """How much of a task is done.

    Attributes:
        learning_rates: tried with the first seed.
        epochs: of each run.
        train: training examples at most.
        held_out: examples of the training data that the checkpoint is chosen on, at most; a tenth if that is less.
        max_length: tokens of an input at most.
        evaluated: examples of each split that are scored, at most.
    """

    learning_rates: tuple[float, ...]
    epochs: int
    train: int | None
    held_out: int
    max_length: int
    evaluated: int | None = None


SIZES = {
    "fast": Size((1e-3,), 1, 256, 100, 64, 100),
    "reduced": Size((5e-4, 1e-3), 3, 1000, 500, 128),
    # Liu et al. 2019 (arXiv 1907.11692), table 10, to which the released code of Qin et al. 2023 (arXiv 2305.04749)
    # defers
    "full": Size((1e-5, 2e-5, 3e-5), 10, None, 5000, 512),
}
BATCH = 32
RECIPE: dict[str, dict[str, Any]] = {
    "data": {"validation_from_train": True, "baseline": "bag-of-words"},
    "training": {
        "per_device_train_batch_size": BATCH,
        "lr_scheduler_type": "linear",
        "weight_decay": 0.1,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-6,
        "bf16": "auto",
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "greater_is_better": True,
    },
}


@dataclass(frozen=True)
class TaskData:
    """What is known of a task's data before it is trained on.

    Attributes:
        examples: in its training file.
        digest: of its files; None for data from the Hub.
    """

    examples: int
    digest: str | None


def longest_input(arguments: argparse.Namespace, model: str) -> int:
    """Return the tokens of an input at most: what the size says and the model takes.

    Raises:
        ValueError: there is no such model.
    """
    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=arguments.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(f"--model: {explain_model_error(model, error)}") from error
    own = getattr(config, "max_position_embeddings", None)
    wanted = SIZES[arguments.size].max_length
    return min(wanted, own) if own else wanted


def describe_task(arguments: argparse.Namespace, task: str) -> TaskData:
    """Return size and contents of a task's data.

    Raises:
        ValueError: it cannot be found or read.
    """
    try:
        splits, _ = load_glue(task, arguments.data_dir, arguments.cache_dir)
    except ValueError as error:
        where = f"in {arguments.data_dir}" if arguments.data_dir else "on the Hub; --data-dir reads files instead"
        raise ValueError(f"the data of {task} could not be read {where}: {error}") from error
    if arguments.data_dir is None:
        return TaskData(len(splits["train"]), None)
    digest = hashlib.sha256()
    for split, rows in splits.items():
        digest.update(split.encode())
        for batch in rows.iter(10_000):
            digest.update(json.dumps(batch).encode())
    return TaskData(len(splits["train"]), digest.hexdigest()[:16])


def entry_name(name: str, random: bool) -> str:
    """Return a model as the table calls it."""
    return f"{name}, random weights" if random else name


def make_job(
    arguments: argparse.Namespace,
    task: str,
    data: TaskData,
    name: str,
    model: str,
    max_length: int,
    random: bool,
    rate: float,
    seed: int,
) -> Job:
    """Return one training, as the size and the arguments say."""
    size = SIZES[arguments.size]
    epochs, limit = arguments.epochs or size.epochs, arguments.max_train_samples or size.train
    share = float(f"{min(0.1, size.held_out / data.examples):.4g}")
    metric = GLUE_TASKS[task].metrics[0]
    own: dict[str, dict[str, Any]] = {
        "model": {
            "model": model,
            "random_init": random or None,
            "new_head": not random or None,  # a head that does not fit is drawn anew
            "trust_remote_code": arguments.trust_remote_code or None,
        },
        "data": {
            "glue_task": task,
            "max_length": max_length,
            "validation_fraction": share,
            "max_train_samples": limit,
            "max_eval_samples": size.evaluated,
            "data_dir": arguments.data_dir and str(arguments.data_dir),
            "cache_dir": arguments.cache_dir and str(arguments.cache_dir),
        },
        "training": {
            "num_train_epochs": epochs,
            "warmup_steps": 0.06,  # beside the length, which would replace an earlier one
            "learning_rate": rate,
            "metric_for_best_model": METRIC_KEYS.get(metric, metric),
        },
    }
    examples = min(data.examples - math.ceil(share * data.examples), limit or data.examples)
    return Job(
        f"{task}/{name}/{'random' if random else 'pretrained'}/lr-{rate:g}/seed-{seed}",
        "finetune.py",
        make_run(task, RECIPE, own, arguments=arguments, seed=seed),
        {"task": task, "model": entry_name(name, random), "size": arguments.size, "setting": {"learning_rate": rate}},
        epochs * math.ceil(examples / BATCH),
        {"model": fingerprint(Path(model)), "data": data.digest},
    )


def measure(found: Mapping[str, Any], shared: dict[str, Any]) -> list[Result]:
    """Return the results of a run's results.json."""
    key = found["arguments"]["training"]["metric_for_best_model"].removeprefix("eval_")
    data = f"development set, {found['test']['examples']:,} examples; fine-tuned on {found['train']['examples']:,}"
    shared["setting"] |= {"data": data}
    splits = {split: found[split] for split in ("test", "test_mismatched") if split in found}
    values = {
        **task_scores(shared["task"], splits),
        "held_out_score": found["validation"][key],
        "held_out_examples": found["validation"]["examples"],
        "train_examples": found["train"]["examples"],
        "test_examples": found["test"]["examples"],
        "test_loss": found["test"].get("loss"),
        "num_parameters": found["num_parameters"],
        "updates": found["num_updates"],
        "train_seconds": found["train"]["seconds"],
    }
    results = group_results(values, **shared)
    results += group_results(
        {"held_out_score": [[point["step"], point[key]] for point in found["validation_curve"]]}, **shared
    )
    for name in found["test"]["baselines"]:
        own = {split: scores["baselines"].get(name, {}) for split, scores in splits.items()}
        label = "majority class or mean" if name in ("majority class", "mean") else name
        # Baselines are fitted to a seed's examples, whatever the learning rate; a bag of words to what a model reads.
        fields = {**shared, "model": label, "kind": "baseline", "setting": {"data": data, "read_by": shared["model"]}}
        results += group_results(task_scores(shared["task"], own), **fields)
    return results
