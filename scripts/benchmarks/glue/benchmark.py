"""The benchmark `glue` of run_benchmarks.py: checkpoints fine-tuned on GLUE, chosen on held-out training data."""

import argparse
import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from hf_seqmix.data.labeled import GLUE_TASKS, load_glue
from hf_seqmix.training import explain_model_error, parse_overrides
from hf_seqmix.training.command import refuse_twice
from hf_seqmix.training.environment import fingerprint
from hf_seqmix.training.results import Result, group_results
from hf_seqmix.training.scoring import METRIC_KEYS

from ..inputs import short_names
from ..jobs import Job, make_run
from ..results import Report, select, write_report
from ..run_costs import state_costs
from ..training import train_all, training_arguments
from .report import COLUMNS, describe, task_scores

DEFAULT_TASKS = ("sst2", "cola", "rte", "mrpc", "stsb")


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
        "warmup_steps": 0.06,
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

logger = logging.getLogger("run_benchmarks")


@dataclass(frozen=True)
class TaskData:
    """What is known of a task's data before it is trained on.

    Attributes:
        examples: in its training file.
        digest: of its files; None for data from the Hub.
    """

    examples: int
    digest: str | None


def add_glue(benchmarks: Any) -> None:
    """Add the sub-command `glue`."""
    parser = benchmarks.add_parser(
        "glue",
        parents=[training_arguments()],
        allow_abbrev=False,
        help="fine-tunes checkpoints on GLUE",
        description="Fine-tunes masked or causal checkpoints on tasks of GLUE. Checkpoint and learning rate are "
        "chosen on examples held out of the training data: the learning rate with the first seed, then every seed "
        "runs with the best. The published development set is scored once by each run. Beside the models: the "
        "majority class (or mean), a bag of words fitted to the same examples, and, with --random-init, the same "
        "architectures without pretraining. Without --full, models are trained on fewer examples: their figures are "
        "not the benchmark's.",
    )
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME_OR_PATH",
        dest="models",
        help="a checkpoint; repeat the option to compare several",
    )
    parser.add_argument(
        "--tasks", nargs="+", default=list(DEFAULT_TASKS), choices=list(GLUE_TASKS), help="one or more"
    )
    parser.add_argument("--data-dir", type=Path, help="folder with GLUE's files; without it they come from the Hub")
    parser.add_argument("--random-init", action="store_true", help="train each architecture from random weights, too")
    parser.add_argument("--learning-rates", type=float, nargs="+", help="to choose from, instead of the size's")
    parser.add_argument("--epochs", type=int, help="instead of the size's")
    parser.add_argument(
        "--max-train-samples", type=int, help="training examples a task at most, instead of the size's"
    )
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a checkpoint")
    parser.add_argument("--cache-dir", type=Path, help="where the data is cached")
    parser.set_defaults(run=run_glue)


def run_glue(arguments: argparse.Namespace) -> Report:
    """Fine-tune every model on every task where the output folder has no result yet, and report all.

    Raises:
        ValueError: an argument makes no sense, or a model or data cannot be found.
    """
    check(arguments)
    models = dict(zip(short_names(arguments.models), arguments.models, strict=True))
    lengths = {name: longest_input(arguments, model) for name, model in models.items()}
    data = {task: describe_task(arguments, task) for task in arguments.tasks}
    rates, seeds = learning_rates(arguments), list(dict.fromkeys(arguments.seeds))

    def jobs(task: str, name: str, random: bool, wanted: Sequence[float], of: Sequence[int]) -> list[Job]:
        model = models[name]
        return [
            make_job(arguments, task, data[task], name, model, lengths[name], random, rate, seed)
            for rate in wanted
            for seed in of
        ]

    entries = [
        (task, name, random)
        for task in data
        for name in models
        for random in ([False, True] if arguments.random_init else [False])
    ]
    sweep = [job for entry in entries for job in jobs(*entry, rates, seeds[:1])]
    others = [job for entry in entries for job in jobs(*entry, rates[:1], seeds[1:])]
    if arguments.costs:
        state_costs(arguments, [*sweep, *others])
        return Report()
    swept = train_all(arguments, sweep, measure, [*sweep, *others])
    chosen = choose(swept.results)
    rest = [
        job
        for task, name, random in entries
        if (rate := chosen.get((task, entry_name(name, random)))) is not None
        for job in jobs(task, name, random, [rate], seeds[1:])
    ]
    repeated = train_all(arguments, rest, measure, [])
    report = Report([*swept.results, *repeated.results], swept.failures | repeated.failures)
    # Of the rates that were not chosen, what they were judged by is kept, and no score on the development set.
    scores = ("score", *(label for column in COLUMNS.values() for _, _, label in column.metrics))
    report.results = [
        result
        for result in report.results
        if result.metric not in scores
        or result.get("learning_rate") in (None, chosen.get((result.task, result.model)))
    ]
    write_report(arguments.output_dir, report, describe(arguments.output_dir, report.results, arguments.tasks))
    return report


def check(arguments: argparse.Namespace) -> None:
    """Refuse what no run could do.

    Raises:
        ValueError: a number is not positive, a task is named twice, or a rate would take the place of all others.
    """
    if "learning_rate" in parse_overrides(arguments.training):
        raise ValueError(
            "--training says learning_rate, which would be the same in every run, whatever the rate that its result "
            "bears: give --learning-rates."
        )
    numbers = [("--epochs", arguments.epochs), ("--max-train-samples", arguments.max_train_samples)]
    numbers += [("--learning-rates", rate) for rate in arguments.learning_rates or ()]
    for option, value in numbers:
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{option} must be positive; given {value}.")
    refuse_twice(tasks=arguments.tasks)


def learning_rates(arguments: argparse.Namespace) -> list[float]:
    """Return the rates to choose from, the smallest first."""
    return sorted(set(arguments.learning_rates or SIZES[arguments.size].learning_rates))


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


def choose(results: Sequence[Result]) -> dict[tuple[str, str], float]:
    """Return the learning rate of each task and model that is best on held-out examples; of equals the smallest."""
    best: dict[tuple[str, str], tuple[float, float]] = {}
    held_out = select(results, metric="held_out_score", step=None)
    for result in sorted(held_out, key=lambda result: result.get("learning_rate")):
        value = -math.inf if result.value is None else result.value
        entry = (result.task, result.model)
        if entry not in best or value > best[entry][0]:
            best[entry] = (value, result.get("learning_rate"))
    return {entry: rate for entry, (_, rate) in best.items()}
