"""The benchmark `lra` of run_benchmarks.py: classifiers of every family on the tasks of the Long Range Arena."""

import argparse
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_seqmix.analysis.result_plots import plot_results
from hf_seqmix.data.labelled import load_labelled
from hf_seqmix.training import merge_recipes, read_recipe
from hf_seqmix.training.results import Result, group_results
from hf_seqmix.training.tables import results_table

from . import lra_pretraining
from .benchmark_inputs import default_device
from .benchmark_training import (
    PRETRAINED,
    SCRIPTS,
    Job,
    Report,
    make_run,
    select,
    train_all,
    training_arguments,
    write_report,
)
from .listops_operators import ONE_OPERATOR, PLACES, one_operator, operator_results, score_operators
from .lra_data import TaskData, data_folders, prepare_task

RECIPES = SCRIPTS / "recipes" / "lra"

FAMILIES = ("tnn", "ski_tnn", "fd_tnn", "ipa", "poly2", "poly3", "attention", "short_conv")
CONTROL = FAMILIES[-1]
TOEPLITZ = ("tnn", "ski_tnn", "fd_tnn")
BATCH_NORMED = (*TOEPLITZ, CONTROL)

PUBLISHED: dict[str, dict[str, float]] = {
    # Moreno, Mei, Walters 2023 (arXiv 2305.09028), table 2
    "tnn": {"text": 86.39, "listops": 47.33, "retrieval": 89.40, "pathfinder": 73.89, "image": 77.84},
    "ski_tnn": {"text": 83.19, "listops": 45.31, "retrieval": 88.73, "pathfinder": 68.30, "image": 76.46},
    "fd_tnn": {"text": 85.00, "listops": 55.21, "retrieval": 90.26, "pathfinder": 69.45, "image": 84.12},
    # Tay et al. 2021 (arXiv 2011.04006), the Transformer of their leaderboard
    "attention": {"text": 64.27, "listops": 36.37, "retrieval": 57.46, "pathfinder": 71.40, "image": 42.44},
}
"""Accuracies in per cent, of the benchmark's own data at its full size."""

SOURCES = dict.fromkeys(TOEPLITZ, "Moreno, Mei, Walters 2023, table 2") | {"attention": "Tay et al. 2021"}


@dataclass(frozen=True)
class Size:
    """How much of a task is done; None leaves the recipe's.

    Attributes:
        data: settings of its generator, `rows` among them; empty for data that is not generated.
        recipe: what takes the place of settings of the task's recipe.
        batch: examples of an update, and of an evaluation's batch.
        updates: of a run.
        evaluations: of a run, on validation data.
        learning_rates: of the families with batch norms (the Toeplitz ones and their control), and of the others.
        families: family -> what takes the place of settings of that family alone.
        seconds: of a run, in place of `updates`; the run is then laid out to learn in little time, see `LEARNING`.
    """

    data: Mapping[str, Any]
    recipe: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    batch: int | None = None
    updates: int | None = None
    evaluations: int = 4
    learning_rates: tuple[float, float] | None = None
    families: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    seconds: float | None = None


def _rows(train: int, held_out: int) -> dict[str, int]:
    return {"train": train, "validation": held_out, "test": held_out}


def _recipe(overrides: Mapping[str, int] | None = None, /, **data: Any) -> dict[str, dict[str, Any]]:
    return {"model": {"config_overrides": dict(overrides or {})}, "data": data}


TINY = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
FEWER_LAYERS = {"num_hidden_layers": 4}
WORDS: dict[str, Any] = {"baseline": "bag-of-words"}
RATES = (3e-3, 1e-3)  # the Toeplitz ones' were tried on ListOps, 300 updates, seed 2222: 3e-3 before 2e-3 and 1e-3
SIZES: dict[str, dict[str, Size]] = {
    "listops": {
        "fast": Size(
            {"rows": _rows(1000, 100), "min_length": 16, "max_length": 65},
            _recipe(TINY, max_length=66),
            batch=16,
            updates=12,
            evaluations=8,
            learning_rates=RATES,
        ),
        "reduced": Size(
            {"rows": _rows(100_000, 2000), "min_length": 16, "max_length": 65},
            _recipe(max_length=66),
            batch=64,
            evaluations=8,
            seconds=1800,
        ),
        "full": Size({"rows": _rows(96_000, 2000)}),
    },
    "text": {
        "fast": Size({}, _recipe(TINY, max_length=256, max_train_samples=500, max_eval_samples=100), 16, 12),
        "reduced": Size(
            {},
            _recipe(
                {"hidden_size": 96, "num_hidden_layers": 3, "intermediate_size": 192},
                max_length=512,
                max_eval_samples=2000,
                **WORDS,
            ),
            batch=32,
            evaluations=8,
            seconds=3600,
        ),
        "full": Size({}, _recipe(**WORDS)),
    },
    "retrieval": {
        "fast": Size(
            {"rows": _rows(200, 40), "length": 256}, _recipe(TINY, max_length=256), 16, 12, learning_rates=RATES
        ),
        "reduced": Size(
            {"rows": _rows(8000, 600), "length": 500}, _recipe(max_length=500, **WORDS), batch=16, seconds=1800
        ),
        "full": Size({"rows": _rows(20_000, 2000), "length": 4000}, _recipe(**WORDS)),
    },
    "image": {
        "fast": Size({}, _recipe(TINY, max_train_samples=200, max_eval_samples=40), 8, 4, 2, learning_rates=RATES),
        "reduced": Size(
            {},
            # Single pixels are four times as many tokens: eight images a second of one thread, at the full width.
            _recipe(
                {"num_hidden_layers": 4, "hidden_size": 96, "intermediate_size": 192, "patch_size": 2},
                max_eval_samples=2000,
            ),
            batch=32,
            evaluations=8,
            # Fewer points than the 16 positions along an axis.
            families={"ski_tnn": _recipe({"num_inducing_points": 8})},
            seconds=1800,
        ),
        "full": Size({}),
    },
    "pathfinder": {
        "fast": Size({"rows": _rows(200, 40)}, _recipe(TINY), 8, 4, 2),
        "reduced": Size({"rows": _rows(10_000, 500)}, _recipe(FEWER_LAYERS), batch=16, evaluations=8, seconds=1800),
        "full": Size({"rows": _rows(160_000, 20_000)}),
    },
    "path-x": {
        "fast": Size({"rows": _rows(8, 4), "image_size": 128}, _recipe(TINY), 2, 2, 1),
        "reduced": Size({"rows": _rows(1000, 100), "image_size": 128}, _recipe(FEWER_LAYERS), 4, 100, 2),
        "full": Size({"rows": _rows(160_000, 20_000), "image_size": 128}),
    },
}
LEARNING: dict[str, dict[str, Any]] = {
    "model": {"config_overrides": {"zero_init_outputs": True, "short_conv_taps": 5, "short_conv_init": "uniform"}},
    "training": {
        "bf16": "auto",
        "optim": "muon",
        "muon_learning_rate": 0.02,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "cosine",
        "weight_decay": 0.1,
        "weight_decay_on_all_parameters": False,
        "max_grad_norm": 1.0,
    },
}
"""What takes the place of the papers' settings, which are laid out for 50,000 updates, where there are minutes."""
LEARNING_BATCH_NORMED = {"model": {"config_overrides": {"norm_type": "simple_rms", "norm_eps": 1e-6}}}
"""And of batch norms, which regularize where there are many passes over the data."""

OPERATOR_SEED = 1
"""Of the expressions of one operator; those that are trained on have seed 0."""
FULL_UPDATES = {
    ("tnn", "listops"): 30_000,
    ("tnn", "text"): 22_500,
    ("tnn", "retrieval"): 45_960,
    ("tnn", "image"): 45_000,
}
"""Updates of the recipes that count epochs, on the benchmark's data; the others make 50,000."""

TABLE = {
    "num_parameters": "parameters:,.0f",
    "updates": "updates:,.0f",
    "accuracy": "test accuracy:.4f",
    "validation_accuracy": "validation:.4f",
    "steps_per_second": "updates/s:.3g",
    "update_seconds": "seconds of updates:,.0f",
    "peak_memory_mib": "peak MiB:,.0f",
}
PRETRAINING = {"pretrain_updates": "updates before:,.0f", "pretrain_seconds": "their seconds:,.0f"}
"""Columns of runs that begin with another stage, whose seconds are among those of all updates."""

logger = logging.getLogger("run_benchmarks")


def add_lra(benchmarks: Any) -> None:
    """Add the sub-command `lra`."""
    parser = benchmarks.add_parser(
        "lra",
        parents=[training_arguments()],
        allow_abbrev=False,
        help="trains classifiers on the tasks of the Long Range Arena",
        description="Trains classifiers of every family on tasks of the Long Range Arena. The checkpoint that is best "
        "on validation data is scored on the test data, once. Data that has no name on the Hub is generated (ListOps, "
        "Pathfinder, Path-X) or stood in for by another task of the same form (Retrieval), unless --data gives it. "
        "Without --full, models are trained on less and easier data: their figures are not the benchmark's.",
    )
    parser.add_argument("--task", nargs="+", required=True, choices=list(SIZES), dest="tasks", help="one or more")
    parser.add_argument(
        "--families",
        nargs="+",
        default=[family for family in FAMILIES if family != CONTROL],
        choices=FAMILIES,
        help=f"by default all but the control {CONTROL}, which mixes five tokens and no more",
    )
    parser.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="TASK=FOLDER",
        help="folders with the benchmark's files (listops, retrieval) or with train.parquet, test.parquet (or .csv, "
        ".tsv, .jsonl) and perhaps validation.parquet; for retrieval also one of texts, whose passages make the "
        "substitute",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--max-steps", type=int, help="updates of each run, instead of the size's")
    length.add_argument(
        "--max-seconds", type=float, help="seconds of each run instead: of CPU time on one thread, else of the wall"
    )
    parser.add_argument(
        "--self-pretrain",
        action="store_true",
        help="train each family a second time, first by masked language modeling on the texts of the task's own "
        "training data, then on the labels: both in the --max-seconds of the run without",
    )
    parser.add_argument(
        "--no-plain", action="store_true", help="with --self-pretrain: only the runs that begin with pretraining"
    )
    parser.add_argument(
        "--pretrain-share", type=float, default=0.5, help="share of --max-seconds that --self-pretrain spends first"
    )
    parser.add_argument(
        "--mlm-probability", type=float, default=0.15, help="share of the tokens that --self-pretrain masks"
    )
    parser.add_argument("--learning-rate", type=float, help="of every run, instead of the size's")
    parser.set_defaults(run=run_lra)


def run_lra(arguments: argparse.Namespace) -> Report:
    """Train every family on every task with every seed where the output folder has no result yet, and report all.

    Raises:
        ValueError: an argument makes no sense, or data cannot be found.
    """
    if arguments.max_steps is not None and arguments.max_steps < 1:
        raise ValueError(f"--max-steps must be positive; given {arguments.max_steps}.")
    check_seconds(arguments)
    folders = data_folders(arguments.data, arguments.tasks)
    data = {
        task: prepare_task(task, folders.get(task), arguments.output_dir, SIZES[task][arguments.size].data)
        for task in arguments.tasks
    }
    stages = (True,) if arguments.no_plain else (False, True) if arguments.self_pretrain else (False,)
    jobs = [
        make_job(arguments, task, family, seed, data[task], pretrain)
        for task in arguments.tasks
        for family in arguments.families
        for pretrain in stages
        for seed in arguments.seeds
    ]
    report = train_all(arguments, jobs, measure)
    if not arguments.costs:  # which train nothing: what is there stays
        for task in arguments.tasks:
            of_task = select(report.results, task=task)
            report.results += rules(of_task, data[task].baselines) + published(task, arguments.families, of_task)
        write_report(arguments.output_dir, report, describe(arguments.output_dir, report, arguments.tasks))
    return report


def check_seconds(arguments: argparse.Namespace) -> None:
    """Check what is said of seconds and of pretraining.

    Raises:
        ValueError: a number is out of range, there is no budget to share, or a task has no texts.
    """
    seconds, share = arguments.max_seconds, arguments.pretrain_share
    if seconds is not None and seconds <= 0:
        raise ValueError(f"--max-seconds must be positive; given {seconds}.")
    if not arguments.self_pretrain:
        if arguments.no_plain:
            raise ValueError("--no-plain leaves nothing to train without --self-pretrain.")
        return
    if seconds is None and any(SIZES[task][arguments.size].seconds is None for task in arguments.tasks):
        raise ValueError("--self-pretrain shares out the seconds of a run: give --max-seconds.")
    if not 0 < share < 1:
        raise ValueError(f"--pretrain-share must lie between 0 and 1; given {share}.")
    if not 0 < arguments.mlm_probability < 1:
        raise ValueError(f"--mlm-probability must lie between 0 and 1; given {arguments.mlm_probability}.")
    images = [task for task in arguments.tasks if task not in lra_pretraining.TASKS]
    if images:
        raise ValueError(
            f"--self-pretrain is for tasks of texts ({', '.join(lra_pretraining.TASKS)}): pretrain.py has no "
            f"objective for the pixels of {', '.join(images)}."
        )


def make_job(
    arguments: argparse.Namespace, task: str, family: str, seed: int, data: TaskData, pretrain: bool = False
) -> Job:
    """Return one training, as the size and the arguments say, with all settings of its recipe written out.

    Args:
        arguments: of the command line.
        task: of the Long Range Arena.
        family: of the task's recipe.
        seed: of the run.
        data: of the task.
        pretrain: whether a stage of pretraining takes its share of the seconds first.
    """
    size = SIZES[task][arguments.size]
    recipe = read_recipe(RECIPES / f"{task}.yaml", family=family)
    if "train_file" in data.fields:
        recipe.get("data", {}).pop("dataset", None)
    training: dict[str, Any] = {}
    if size.batch is not None:
        training |= {"per_device_train_batch_size": size.batch, "per_device_eval_batch_size": size.batch}
    seconds = arguments.max_seconds or (None if arguments.max_steps else size.seconds)
    updates = None if seconds else arguments.max_steps or size.updates
    if seconds or updates:
        # As many evaluations whatever the length: where that is in seconds, a share of the updates.
        every = max(1, math.ceil(updates / size.evaluations)) if updates else 1 / size.evaluations
        left = seconds * (1 - arguments.pretrain_share) if pretrain else seconds
        training |= {"max_steps": updates} if updates else {"max_seconds": left, "warmup_steps": 0.1}
        training |= {"eval_strategy": "steps", "eval_steps": every, "save_strategy": "steps", "save_steps": every}
    learning = {}
    if size.seconds is not None:
        learning = merge_recipes(LEARNING, LEARNING_BATCH_NORMED if family in BATCH_NORMED else {})
    rate = arguments.learning_rate or (size.learning_rates and size.learning_rates[family not in BATCH_NORMED])
    if rate:
        training["learning_rate"] = rate
    run = make_run(
        task,
        recipe,
        {"data": data.fields},
        learning,
        size.recipe,
        size.families.get(family, {}),
        {"training": training},
        arguments=arguments,
        seed=seed,
    )
    probe = None
    if task == "listops":
        probe = partial(probe_operators, fields=data.fields, use_cpu=bool(run.training.get("use_cpu")))
    patch = run.model.get("config_overrides", {}).get("patch_size", 1)
    source = data.source if patch == 1 else f"{data.source}, in patches of {patch} pixels a side"
    before, model, name = None, family, family
    if pretrain:
        share = arguments.pretrain_share * seconds
        before = lra_pretraining.pretraining_job(
            run, data.contents, share, arguments.mlm_probability, arguments.output_dir / "data"
        )
        model, name = f"{family}, pretrained on the task", f"{family}-pretrained"
    return Job(
        f"{task}/{name}/seed-{seed}",
        "finetune.py",
        run,
        {"task": task, "model": model, "size": arguments.size, "setting": {"data": source}},
        None if seconds else updates or FULL_UPDATES.get((family, task), 50_000),
        data.contents,
        probe,
        before,
    )


def probe_operators(folder: Path, fields: Mapping[str, Any], use_cpu: bool) -> dict[str, Any]:
    """Score the ListOps classifier of a finished run by operator, on the test data and on single operators.

    Args:
        folder: of the run.
        fields: of finetune.py's data arguments.
        use_cpu: whether an accelerator is left alone.
    """
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    rows = load_labelled({split: fields[f"{split}_file"] for split in ("train", "test")})
    splits = dict(zip(PLACES, (rows, one_operator(ONE_OPERATOR, OPERATOR_SEED)), strict=True))
    device = torch.device("cpu" if use_cpu else default_device())
    return {"operators": score_operators(model, AutoTokenizer.from_pretrained(folder), splits, device)}


def measure(found: Mapping[str, Any], shared: dict[str, Any]) -> list[Result]:
    """Return the results of a run's results.json."""
    test, memory = found["test"], found["train"]["peak_memory_bytes"]
    shared["setting"] = {"data": f"{shared['setting']['data']}; {test['examples']:,} test examples"}
    shared["environment"] |= {"memory_of": found["train"]["memory_of"]}
    measured = {
        "accuracy": test["accuracy"],
        "num_parameters": found["num_parameters"],
        "updates": found["num_updates"],
        "steps_per_second": found["train"]["steps_per_second"],
        "peak_memory_mib": memory / 2**20 if memory else None,
        "train_seconds": found["train"]["seconds"],
        "update_seconds": seconds_of_updates(found["num_updates"], found["train"]),
        "train_loss": found["train_loss_curve"],
    }
    if first := found.get(PRETRAINED):
        measured |= {
            "pretrain_updates": first["num_updates"],
            "pretrain_loss": (first["evaluation"] or {}).get("token_loss"),
            "pretrain_seconds": seconds_of_updates(first["num_updates"], first),
        }
        own, before = measured["update_seconds"], measured["pretrain_seconds"]
        measured["update_seconds"] = own + before if own and before else None
    curve = [[point["step"], point["accuracy"]] for point in found["validation_curve"]]
    results = group_results(measured, **shared)
    results += group_results({"validation_accuracy": found["validation"]["accuracy"]}, **shared)
    results += group_results({"validation_accuracy": curve}, **shared)
    operators = dict(found.get("operators", {}))
    for place, scores in operators.pop("model", {}).items():
        results += operator_results(scores, place, **shared)
    for name, scores in test["baselines"].items():
        results += group_results({"accuracy": scores["accuracy"]}, **{**shared, "model": name, "kind": "baseline"})
    for name, of_rule in operators.items():
        for place, scores in of_rule.items():
            results += operator_results(scores, place, **{**shared, "model": name, "kind": "baseline"})
    return results


def seconds_of_updates(updates: int, measured: Mapping[str, Any]) -> float | None:
    """Return the seconds of the updates alone, by the clock of budgets; None where the speed is not known."""
    each = measured.get("seconds_per_update")
    return updates * each if each else None


def rules(results: Sequence[Result], baselines: Mapping[str, float]) -> list[Result]:
    """Return the accuracies of rules that a model of a task should beat, which need no run."""
    return [
        Result(first.task, name, "accuracy", value, size=first.size, kind="baseline", setting=first.setting)
        for first in select(results, metric="accuracy")[:1]
        for name, value in baselines.items()
    ]


def published(task: str, families: Sequence[str], results: Sequence[Result]) -> list[Result]:
    """Return what the papers give for a task at its full size."""
    return [
        Result(task, family, "accuracy", value / 100, size="full", kind="published", source=SOURCES[family])
        for family in families
        if results and (value := PUBLISHED.get(family, {}).get(task)) is not None
    ]


def describe(folder: Path, report: Report, tasks: Sequence[str]) -> list[str]:
    """Return the tables, and plot validation accuracy for each task."""
    parts = []
    for task in tasks:
        own = select(report.results, task=task)
        measured = select(own, metric="accuracy", kind="measured")
        if not measured:
            continue
        title = f"{task}, {measured[0].size}: {measured[0].setting['data']}"
        shown = [result for result in own if result.get("step") is None]
        columns = TABLE | (PRETRAINING if select(own, metric="pretrain_updates") else {})
        parts.append(f"{title}\n\n{results_table(shown, {'model': 'family'}, columns)}")
        operators = select(own, metric="operator_accuracy")
        if operators:
            parts.append(
                "Accuracy by operator: the outermost of a test expression, or the only one of a short expression\n\n"
                + results_table(operators, {"model": "family", "place": "operator is"}, over="operator")
            )
        curves = [
            result for result in own if result.get("step") is not None and result.metric == "validation_accuracy"
        ]
        levels = {r.model: r.value for r in select(own, metric="accuracy", kind="baseline") if r.value is not None}
        if curves:
            plot_results(
                curves,
                folder / f"{task}.png",
                x="step",
                y="validation_accuracy",
                references=levels,
                labels={"step": "optimizer steps"},
                title=title,
            )
    if parts and any(result.size not in ("full", "") for result in report.results):
        parts.append("Less and easier data than the benchmark's, and fewer updates: not its figures.")
    if parts:
        parts.append(
            "Published: of the benchmark's data at its full size (Moreno, Mei, Walters 2023, table 2; attention: Tay "
            "et al. 2021). Updates a second and memory are of runs one after another, not side by side."
        )
    return parts
