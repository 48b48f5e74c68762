"""The trainings of `run_benchmarks.py leaderboard`: language models, and small models of synthetic tasks."""

import argparse
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_seqmix.training import merge_recipes, parse_overrides
from hf_seqmix.training.results import Result, group_results

from ..jobs import RATES, Job, contents_of, make_run
from ..language_results import measure as measure_language
from .models import language_recipe, small_recipe
from .scoring import score_cases, score_text
from .tasks import TASKS

LANGUAGE = {"causal": "language modeling", "masked": "masked language modeling"}
"""Objective -> the task of its language models in results."""

LONGER = (1, 4, 16)
"""Times the length of training, at which held-out text is scored."""

BATCH = 32
"""Rows of an update of a synthetic task."""

SMALL_RATES = 0.25
"""Times the rates of language models, from which those of small models are swept.

In a trial (seed 0) attention learned to recall by a quarter of them. With all of them it did not, on rows that were
half as long again.
"""

SMALL_SCALE = 8.0
"""Of the embeddings, where a recipe leaves them as drawn.

Tied embeddings of unit variance are so large as outputs of few tokens that attention does not learn to recall.
"""

CHOSEN_BY = {"causal": "bits_per_byte", "masked": "token_loss"}
"""Objective -> what the rates of language models are chosen by, on validation text."""


def language_job(
    arguments: argparse.Namespace, name: str, factor: float, seed: int, budget: str, updates: int | None
) -> Job:
    """Return the training of a language model.

    Args:
        arguments: of the command line.
        name: of the model.
        factor: of the rates.
        seed: of the training.
        budget: "seconds" or "tokens", which is equal among models.
        updates: that the budget is worth; None where that is not known, and the budget is of seconds.
    """
    given = parse_overrides(arguments.data)
    sizes = (arguments.vocab_size, arguments.times_as_wide, given.get("block_size"))
    recipe = language_recipe(arguments.objective, name, *sizes)
    every = 1 / arguments.evaluations
    training: dict[str, Any] = {
        **_rates(recipe["training"], factor),
        "bf16": arguments.bf16,
        **({"max_steps": updates} if updates else {"max_seconds": arguments.max_seconds}),
        "warmup_steps": recipe["training"]["warmup_steps"],
        "eval_strategy": "steps" if arguments.evaluations > 1 else "no",
        "eval_steps": every,
        "save_steps": min(every, 0.5),  # a share of the run; 1 would be every update
    }
    data = given | ({"max_eval_blocks": 4} if arguments.size == "fast" else {})
    task = LANGUAGE[arguments.objective]
    run = make_run(task, recipe, {"training": training, "data": data}, arguments=arguments, seed=seed)
    setting = {"budget": budget, "rate_factor": factor}
    labels = {"task": task, "model": name, "size": arguments.size, "setting": setting}
    block = int(run.data["block_size"])
    probe = functools.partial(score_text, lengths=[times * block for times in LONGER], max_bytes=arguments.test_bytes)
    scored = arguments.objective == "causal" and arguments.test_bytes != 0
    path = f"{arguments.objective}/{budget}/{name}/factor-{factor:g}/seed-{seed}"
    return Job(path, "pretrain.py", run, labels, updates, contents_of(run), probe=probe if scored else None)


def task_job(
    arguments: argparse.Namespace, task: str, files: Mapping[str, Path], name: str, factor: float, seed: int
) -> Job:
    """Return the training of a small model of a synthetic task; its arguments are those of `language_job`.

    Args:
        arguments: of the command line.
        task: one of `TASKS`.
        files: its rows, as `write_rows` returns them.
        name: of the model.
        factor: of the rates.
        seed: of the training.
    """
    of = TASKS[task]
    recipe = small_recipe(arguments.objective, name, of.vocab_size, of.length)
    scale = recipe["model"]["config_overrides"].get("embedding_scale")
    fields = {"vocab_size": of.vocab_size, **({"embedding_scale": SMALL_SCALE} if scale == 1.0 else {})}
    training: dict[str, Any] = {
        **_rates(recipe["training"], SMALL_RATES * factor),
        "bf16": arguments.bf16,
        "max_steps": arguments.updates,
        "warmup_steps": recipe["training"]["warmup_steps"],
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": 4 * BATCH,
        "eval_strategy": "no",
        "save_strategy": "no",
    }
    data = {
        "tokenized": True,
        "train_file": [str(files["train"])],
        "validation_file": [str(files["validation"])],
        "block_size": of.length,
    }
    small = merge_recipes({"model": recipe["model"], "training": recipe["training"]}, {"data": data})
    changes = {"model": {"config_overrides": fields}, "training": training}
    run = make_run(task, small, changes, arguments=arguments, seed=seed)
    labels = {"task": task, "model": name, "size": arguments.size, "setting": {"rate_factor": factor}}
    cases = {case: files[case] for case in of.cases}
    probe = functools.partial(score_cases, files=cases, objective=arguments.objective)
    path = f"{arguments.objective}/{task}/{name}/factor-{factor:g}/seed-{seed}"
    return Job(path, "pretrain.py", run, labels, arguments.updates, probe=probe)


def measure(found: Mapping[str, Any], shared: dict[str, Any]) -> list[Result]:
    """Return the results of a run: of training, of text by length of context, of a synthetic task by case."""
    results = measure_language(found, shared)
    for key, metric, over in (("by_context", "test_bits_per_byte", "context"), ("by_case", "accuracy", "case")):
        results += group_results({metric: found[key]} if key in found else {}, over=over, **shared)
    return results


def _rates(training: Mapping[str, Any], factor: float) -> dict[str, float]:
    return {name: float(training[name]) * factor for name in RATES if training.get(name) is not None}
