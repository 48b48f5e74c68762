"""The benchmark `lra` of run_benchmarks.py: classifiers of every family on the tasks of the Long Range Arena."""

import argparse
import logging
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_seqmix._files import write_json
from hf_seqmix.analysis.accuracy_plots import plot_accuracy_curves
from hf_seqmix.training.results import markdown_table, run_environment

from .benchmark_training import SCRIPTS, TrainingRun, file_digest, train_all, training_arguments
from .lra_data import TaskData, data_folders, prepare_task

RECIPES = SCRIPTS / "recipes" / "lra"

FAMILIES = ("tnn", "ski_tnn", "fd_tnn", "ipa", "poly2", "poly3", "attention")
TOEPLITZ = ("tnn", "ski_tnn", "fd_tnn")

PUBLISHED: dict[str, dict[str, float]] = {
    # Moreno, Mei, Walters 2023 (arXiv 2305.09028), table 2
    "tnn": {"text": 86.39, "listops": 47.33, "retrieval": 89.40, "pathfinder": 73.89, "image": 77.84},
    "ski_tnn": {"text": 83.19, "listops": 45.31, "retrieval": 88.73, "pathfinder": 68.30, "image": 76.46},
    "fd_tnn": {"text": 85.00, "listops": 55.21, "retrieval": 90.26, "pathfinder": 69.45, "image": 84.12},
    # Tay et al. 2021 (arXiv 2011.04006), the Transformer of their leaderboard
    "attention": {"text": 64.27, "listops": 36.37, "retrieval": 57.46, "pathfinder": 71.40, "image": 42.44},
}
"""Accuracies in per cent, of the benchmark's own data at its full size."""


@dataclass(frozen=True)
class Size:
    """How much of a task is done; None leaves the recipe's.

    Attributes:
        data: settings of its generator, `rows` among them; empty for data that is not generated.
        arguments: of finetune.py, after the recipe's.
        batch: examples of an update, and of an evaluation's batch.
        updates: of a run.
        evaluations: of a run, on validation data.
        learning_rates: of the Toeplitz families with batch norms, and of the others.
    """

    data: Mapping[str, Any]
    arguments: str
    batch: int | None = None
    updates: int | None = None
    evaluations: int = 4
    learning_rates: tuple[float, float] | None = None


def _rows(train: int, held_out: int) -> dict[str, int]:
    return {"train": train, "validation": held_out, "test": held_out}


TINY = "--config-overrides hidden_size=32 intermediate_size=32 num_hidden_layers=2"
FEWER_LAYERS = "--config-overrides num_hidden_layers=4"
WORDS = "--baseline bag-of-words"
RATES = (3e-3, 1e-3)  # the Toeplitz ones' were tried on ListOps, 300 updates, seed 2222: 3e-3 before 2e-3 and 1e-3
SIZES: dict[str, dict[str, Size]] = {
    "listops": {
        "fast": Size(
            {"rows": _rows(1000, 100), "min_length": 16, "max_length": 65},
            f"--max-length 66 {TINY}",
            batch=16,
            updates=12,
            evaluations=8,
            learning_rates=RATES,
        ),
        "reduced": Size(
            {"rows": _rows(100_000, 2000), "min_length": 16, "max_length": 65},
            "--max-length 66",
            batch=64,
            updates=1200,
            evaluations=8,
            learning_rates=RATES,
        ),
        "full": Size({"rows": _rows(96_000, 2000)}, ""),
    },
    "text": {
        "fast": Size({}, f"--max-length 256 --max-train-samples 500 --max-eval-samples 100 {TINY}", 16, 12),
        "reduced": Size({}, f"--max-length 512 --max-eval-samples 1000 {WORDS}", 16, 400, learning_rates=RATES),
        "full": Size({}, WORDS),
    },
    "retrieval": {
        "fast": Size(
            {"rows": _rows(200, 40), "length": 256}, f"--max-length 256 {TINY}", 16, 12, learning_rates=RATES
        ),
        "reduced": Size(
            {"rows": _rows(8000, 600), "length": 500}, f"--max-length 500 {WORDS}", 16, 400, learning_rates=RATES
        ),
        "full": Size({"rows": _rows(20_000, 2000), "length": 4000}, WORDS),
    },
    "image": {
        "fast": Size({}, f"--max-train-samples 200 --max-eval-samples 40 {TINY}", 8, 4, 2, learning_rates=RATES),
        "reduced": Size({}, f"--max-eval-samples 500 {FEWER_LAYERS}", 16, 300, 3, learning_rates=RATES),
        "full": Size({}, ""),
    },
    "pathfinder": {
        "fast": Size({"rows": _rows(200, 40)}, TINY, 8, 4, 2),
        "reduced": Size({"rows": _rows(10_000, 500)}, FEWER_LAYERS, 16, 400),
        "full": Size({"rows": _rows(160_000, 20_000)}, ""),
    },
    "path-x": {
        "fast": Size({"rows": _rows(8, 4), "image_size": 128}, TINY, 2, 2, 1),
        "reduced": Size({"rows": _rows(1000, 100), "image_size": 128}, FEWER_LAYERS, 4, 100, 2),
        "full": Size({"rows": _rows(160_000, 20_000), "image_size": 128}, ""),
    },
}
FULL_UPDATES = {
    ("tnn", "listops"): 30_000,
    ("tnn", "text"): 22_500,
    ("tnn", "retrieval"): 45_960,
    ("tnn", "image"): 45_000,
}
"""Updates of the recipes that count epochs, on the benchmark's data; the others make 50,000."""

TABLE = {
    "task": "task",
    "family": "family",
    "num_parameters": "parameters:,",
    "updates": "updates:,",
    "accuracy": "test accuracy:.4f",
    "spread": "± over seeds:.4f",
    "num_seeds": "seeds",
    "validation_accuracy": "validation:.4f",
    "steps_per_second": "updates/s:.3g",
    "peak_memory_mib": "peak MiB:,.0f",
    "published": "published:.4f",
}

logger = logging.getLogger("run_benchmarks")


def add_lra(benchmarks: Any) -> None:
    """Adds the sub-command `lra`."""
    parser = benchmarks.add_parser(
        "lra",
        parents=[training_arguments()],
        allow_abbrev=False,
        help="trains classifiers on the tasks of the Long Range Arena",
        description="Trains classifiers of every family on tasks of the Long Range Arena. The checkpoint that is best on "
        "validation data is scored on the test data, once. Data that has no name on the Hub is generated (ListOps, "
        "Pathfinder, Path-X) or stood in for by another task of the same form (Retrieval), unless --data gives it. "
        "Without --full, models are trained on less and easier data: their figures are not the benchmark's.",
    )
    parser.add_argument("--task", nargs="+", required=True, choices=list(SIZES), dest="tasks", help="one or more")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="TASK=FOLDER",
        help="folders with the benchmark's files (listops, retrieval) or with train.parquet, test.parquet (or .csv, .tsv, "
        ".jsonl) and perhaps validation.parquet; for retrieval also one of texts, whose passages make the substitute",
    )
    parser.add_argument("--max-steps", type=int, help="updates of each run, instead of the size's")
    parser.add_argument("--learning-rate", type=float, help="of every run, instead of the size's")
    parser.set_defaults(run=run_lra)


def run_lra(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains every family on every task with every seed where the output folder has no result yet, and reports all.

    Raises:
        ValueError: an argument makes no sense, or data cannot be found.
    """
    if arguments.max_steps is not None and arguments.max_steps < 1:
        raise ValueError(f"--max-steps must be positive; given {arguments.max_steps}.")
    folders = data_folders(arguments.data, arguments.tasks)
    data = {
        task: prepare_task(task, folders.get(task), arguments.output_dir, SIZES[task][arguments.size].data)
        for task in arguments.tasks
    }
    runs = [
        make_run(arguments, task, family, seed, data[task])
        for task in arguments.tasks
        for family in arguments.families
        for seed in arguments.seeds
    ]
    rows, failures = train_all(arguments, runs, measure)
    summary = [row for task in arguments.tasks for row in summarise(rows, task)]
    report = {
        "benchmark": arguments.benchmark,
        "size": arguments.size,
        "data": {task: {"source": of.source, "baselines": dict(of.baselines)} for task, of in data.items()},
        "results": rows,
        "summary": summary,
        "failures": failures,
        "environment": run_environment(),
    }
    if not arguments.costs:  # which train nothing: what is there stays
        write_json(arguments.output_dir / "results.json", report)
        if rows:
            write_report(arguments.output_dir, report)
    return report


def make_run(arguments: argparse.Namespace, task: str, family: str, seed: int, data: TaskData) -> TrainingRun:
    """One training, as the size and the arguments say."""
    size = SIZES[task][arguments.size]
    recipe = RECIPES / f"{task}.yaml"
    words = ["--recipe", str(recipe), "--family", family, *data.arguments, "--seed", str(seed)]
    words += shlex.split(size.arguments)
    if size.batch is not None:
        words += ["--per-device-train-batch-size", str(size.batch), "--per-device-eval-batch-size", str(size.batch)]
    updates = arguments.max_steps or size.updates
    if updates is not None:
        words += ["--max-steps", str(updates)]
        every = str(max(1, math.ceil(updates / size.evaluations)))
        words += ["--eval-strategy", "steps", "--eval-steps", every, "--save-strategy", "steps", "--save-steps", every]
    rate = arguments.learning_rate or (size.learning_rates and size.learning_rates[family not in TOEPLITZ])
    if rate:
        words += ["--learning-rate", str(rate)]
    words += shlex.split(arguments.training_arguments)
    labels = {"task": task, "data": data.source, "size": arguments.size, "family": family, "seed": seed}
    return TrainingRun(
        f"{task}/{family}/seed-{seed}",
        "finetune.py",
        tuple(words),
        labels,
        updates or FULL_UPDATES.get((family, task), 50_000),
        {"recipe": file_digest(recipe), **data.contents},
    )


def measure(results: dict[str, Any]) -> dict[str, Any]:
    """What a row shows of a run's results.json."""
    memory = results["train"]["peak_memory_bytes"]
    return {
        "accuracy": results["test"]["accuracy"],
        "test_examples": results["test"]["examples"],
        "validation_accuracy": results["validation"]["accuracy"],
        "baselines": {name: scores["accuracy"] for name, scores in results["test"]["baselines"].items()},
        "num_parameters": results["num_parameters"],
        "steps_per_second": results["train"]["steps_per_second"],
        "peak_memory_mib": memory / 2**20 if memory else None,
        "memory_of": results["train"]["memory_of"],
        "train_seconds": results["train"]["seconds"],
        "train_loss_curve": results["train_loss_curve"],
        "validation_curve": [[point["step"], point["accuracy"]] for point in results["validation_curve"]],
    }


def summarise(rows: Sequence[Mapping[str, Any]], task: str) -> list[dict[str, Any]]:
    """A row a family: the mean over its seeds, and the standard deviation where there are several."""
    summary = []
    for family in dict.fromkeys(row["family"] for row in rows if row["task"] == task):
        own = [row for row in rows if (row["task"], row["family"]) == (task, family)]
        published = PUBLISHED.get(family, {}).get(task)
        means = ("accuracy", "validation_accuracy", "steps_per_second", "peak_memory_mib")
        values = {key: [row[key] for row in own if row[key] is not None] for key in means}
        summary.append(
            {
                "task": task,
                "family": family,
                "num_parameters": own[0]["num_parameters"],
                "updates": own[0]["updates"],
                **{key: statistics.mean(found) if found else None for key, found in values.items()},
                "spread": statistics.stdev(values["accuracy"]) if len(own) > 1 else None,
                "num_seeds": len(own),
                "published": published and published / 100,
            }
        )
    return summary


def write_report(folder: Path, report: dict[str, Any]) -> None:
    """The table, on standard output and as a file, and a plot of validation accuracy for each task."""
    parts = []
    for task, data in report["data"].items():
        own = [row for row in report["summary"] if row["task"] == task]
        runs = [row for row in report["results"] if row["task"] == task]
        if not own:
            continue
        baselines = {**data["baselines"], **runs[0]["baselines"]}
        others = [{"task": task, "family": f"({name})", "accuracy": value} for name, value in baselines.items()]
        title = f"{task}, {report['size']}: {data['source']}; {runs[0]['test_examples']:,} test examples"
        parts.append(f"{title}\n\n{markdown_table([*own, *others], TABLE)}")
        plot_accuracy_curves(
            {f"{row['family']}, seed {row['seed']}": row["validation_curve"] for row in runs},
            folder / f"{task}.png",
            references=baselines,
            title=title,
        )
    if report["size"] != "full":
        parts.append("Less and easier data than the benchmark's, and fewer updates: not its figures.")
    parts.append(
        "Published: of the benchmark's data at its full size (Moreno, Mei, Walters 2023, table 2; attention: Tay et al. "
        "2021). Updates a second and memory are of runs one after another, not side by side."
    )
    text = "\n\n".join(parts)
    print(text)
    (folder / "results.md").write_text(f"{text}\n", encoding="utf-8")
