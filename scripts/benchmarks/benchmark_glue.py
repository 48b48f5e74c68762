"""The benchmark `glue` of run_benchmarks.py: checkpoints fine-tuned on the tasks of GLUE, chosen on held-out training data."""

import argparse
import hashlib
import json
import logging
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetuning.scoring import METRIC_KEYS
from transformers import AutoConfig

from hf_seqmix._files import write_json
from hf_seqmix.data.labelled import GLUE_TASKS, load_glue
from hf_seqmix.training.results import run_environment

from .benchmark_inputs import fingerprint, short_names
from .benchmark_training import TrainingRun, state_costs, train_all, training_arguments
from .glue_report import NOTE, plot_scores, runs_table, scores_table, summarise, summarise_baselines

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
        arguments: further ones of finetune.py.
    """

    learning_rates: tuple[float, ...]
    epochs: int
    train: int | None
    held_out: int
    max_length: int
    arguments: str = ""


SIZES = {
    "fast": Size((1e-3,), 1, 256, 100, 64, "--max-eval-samples 100"),
    "reduced": Size((5e-4, 1e-3), 3, 1000, 500, 128),
    # Liu et al. 2019 (arXiv 1907.11692), table 10, to which the released code of Qin et al. 2023 (arXiv 2305.04749) defers
    "full": Size((1e-5, 2e-5, 3e-5), 10, None, 5000, 512),
}
RECIPE = (
    "--per-device-train-batch-size 32 --lr-scheduler-type linear --warmup-steps 0.06 --weight-decay 0.1 --adam-beta2 0.98 "
    "--adam-epsilon 1e-6 --eval-strategy epoch --save-strategy epoch --save-total-limit 1 --load-best-model-at-end true "
    "--greater-is-better true --validation-from-train --baseline bag-of-words"
)
BATCH = 32

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
    """Adds the sub-command `glue`."""
    parser = benchmarks.add_parser(
        "glue",
        parents=[training_arguments()],
        allow_abbrev=False,
        help="fine-tunes checkpoints on GLUE",
        description="Fine-tunes masked or causal checkpoints on tasks of GLUE. Checkpoint and learning rate are chosen on "
        "examples held out of the training data: the learning rate with the first seed, then every seed runs with the best. The "
        "published development set is scored once by each run. Beside the models: the majority class (or mean), a bag of words "
        "fitted to the same examples, and, with --random-init, the same architectures without pretraining. Without --full, models "
        "are trained on fewer examples: their figures are not the benchmark's.",
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
    parser.add_argument("--cache-dir", type=Path, help="where the data is cached")
    parser.set_defaults(run=run_glue)


def run_glue(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fine-tunes every model on every task where the output folder has no result yet, and reports all.

    Raises:
        ValueError: an argument makes no sense, or a model or data cannot be found.
    """
    check(arguments)
    models = dict(zip(short_names(arguments.models), arguments.models, strict=True))
    lengths = {name: longest_input(arguments, model) for name, model in models.items()}
    data = {task: describe_task(arguments, task) for task in arguments.tasks}
    rates, seeds = learning_rates(arguments), list(dict.fromkeys(arguments.seeds))

    def runs(task: str, name: str, random: bool, wanted: Sequence[float], of: Sequence[int]) -> list[TrainingRun]:
        model = models[name]
        return [
            make_run(arguments, task, data[task], name, model, lengths[name], random, rate, seed)
            for rate in wanted
            for seed in of
        ]

    entries = [
        (task, name, random)
        for task in data
        for name in models
        for random in ([False, True] if arguments.random_init else [False])
    ]
    sweep = [run for entry in entries for run in runs(*entry, rates, seeds[:1])]
    others = [run for entry in entries for run in runs(*entry, rates[:1], seeds[1:])]
    if arguments.costs:
        state_costs(arguments, [*sweep, *others])
        return {"benchmark": arguments.benchmark, "results": [], "failures": {}}
    swept, failures = train_all(arguments, sweep, measure, [*sweep, *others])
    chosen = choose(swept)
    rest = [
        run
        for task, name, random in entries
        if (rate := chosen.get((task, entry_name(name, random)))) is not None
        for run in runs(task, name, random, [rate], seeds[1:])
    ]
    repeated, more = train_all(arguments, rest, measure, [])
    rows = [row for row in [*swept, *repeated] if row["learning_rate"] == chosen[row["task"], row["entry"]]]
    report = {
        "benchmark": arguments.benchmark,
        "size": arguments.size,
        "seeds": seeds,
        "results": rows,
        "sweep": swept,
        "summary": [*summarise(rows, swept), *summarise_baselines(rows)],
        "failures": failures | more,
        "environment": run_environment(),
    }
    write_json(arguments.output_dir / "results.json", report)
    if rows:
        write_report(arguments.output_dir, report, arguments.tasks)
    return report


def check(arguments: argparse.Namespace) -> None:
    """
    Refuse what no run could do.

    Raises:
        ValueError: a number is not positive, or a task is named twice.
    """
    numbers = [("--epochs", arguments.epochs), ("--max-train-samples", arguments.max_train_samples)]
    numbers += [("--learning-rates", rate) for rate in arguments.learning_rates or ()]
    for option, value in numbers:
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{option} must be positive; given {value}.")
    if len(set(arguments.tasks)) < len(arguments.tasks):
        raise ValueError(f"A task is given twice: {', '.join(arguments.tasks)}.")


def learning_rates(arguments: argparse.Namespace) -> list[float]:
    """Those to choose from, the smallest first."""
    return sorted(set(arguments.learning_rates or SIZES[arguments.size].learning_rates))


def longest_input(arguments: argparse.Namespace, model: str) -> int:
    """
    Tokens of an input at most: what the size says and the model takes.

    Raises:
        ValueError: there is no such model.
    """
    trust = "--trust-remote-code" in shlex.split(arguments.training_arguments)
    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=trust)
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {model} cannot be read: {error}") from error
    own = getattr(config, "max_position_embeddings", None)
    wanted = SIZES[arguments.size].max_length
    return min(wanted, own) if own else wanted


def describe_task(arguments: argparse.Namespace, task: str) -> TaskData:
    """
    Size and contents of a task's data.

    Raises:
        ValueError: it cannot be found or read.
    """
    try:
        splits, _ = load_glue(task, arguments.data_dir, arguments.cache_dir)
    except ValueError as error:
        where = f"in {arguments.data_dir}" if arguments.data_dir else "on the Hub; --data-dir reads files instead"
        raise ValueError(f"The data of {task} could not be read {where}. {error}") from error
    if arguments.data_dir is None:
        return TaskData(len(splits["train"]), None)
    digest = hashlib.sha256()
    for split, rows in splits.items():
        digest.update(split.encode())
        for batch in rows.iter(10_000):
            digest.update(json.dumps(batch).encode())
    return TaskData(len(splits["train"]), digest.hexdigest()[:16])


def entry_name(name: str, random: bool) -> str:
    """A model as the table calls it."""
    return f"{name}, random weights" if random else name


def make_run(
    arguments: argparse.Namespace,
    task: str,
    data: TaskData,
    name: str,
    model: str,
    max_length: int,
    random: bool,
    rate: float,
    seed: int,
) -> TrainingRun:
    """One training, as the size and the arguments say."""
    size = SIZES[arguments.size]
    epochs, limit = arguments.epochs or size.epochs, arguments.max_train_samples or size.train
    share = min(0.1, size.held_out / data.examples)
    metric = GLUE_TASKS[task].metrics[0]
    words = ["--model", model, "--glue-task", task, *shlex.split(RECIPE), *shlex.split(size.arguments)]
    words += ["--num-train-epochs", str(epochs), "--learning-rate", f"{rate:g}", "--seed", str(seed)]
    words += ["--max-length", str(max_length), "--validation-fraction", f"{share:.4g}"]
    words += ["--metric-for-best-model", METRIC_KEYS.get(metric, metric)]
    if random:
        words.append("--random-init")
    if limit is not None:
        words += ["--max-train-samples", str(limit)]
    for option, folder in (("--data-dir", arguments.data_dir), ("--cache-dir", arguments.cache_dir)):
        if folder is not None:
            words += [option, str(folder)]
    examples = min(data.examples - math.ceil(share * data.examples), limit or data.examples)
    return TrainingRun(
        f"{task}/{name}/{'random' if random else 'pretrained'}/lr-{rate:g}/seed-{seed}",
        "finetune.py",
        (*words, *shlex.split(arguments.training_arguments)),
        {
            "task": task,
            "size": arguments.size,
            "entry": entry_name(name, random),
            "learning_rate": rate,
            "seed": seed,
        },
        epochs * math.ceil(examples / BATCH),
        {"model": fingerprint(Path(model)), "data": data.digest},
    )


def measure(results: dict[str, Any]) -> dict[str, Any]:
    """What a row shows of a run's results.json."""
    splits = [split for split in ("test", "test_mismatched") if split in results]
    key = results["arguments"]["training"]["metric_for_best_model"].removeprefix("eval_")

    def figures(split: str) -> dict[str, float | None]:
        """Of the whole split: those by length are left in the run's folder."""
        kept = {name: value for name, value in results[split].items() if not isinstance(value, dict)}
        return {name: value for name, value in kept.items() if name != "examples"}

    return {
        "scores": {split: figures(split) for split in splits},
        "baselines": {split: results[split]["baselines"] for split in splits},
        "held_out": results["validation"][key],
        "held_out_metric": key,
        "held_out_curve": [[point["step"], point[key]] for point in results["validation_curve"]],
        "train_examples": results["train"]["examples"],
        "held_out_examples": results["validation"]["examples"],
        "test_examples": results["test"]["examples"],
        "num_parameters": results["num_parameters"],
        "train_seconds": results["train"]["seconds"],
    }


def choose(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """The learning rate of each task and model that is best on the held-out examples; of equals the smallest."""
    best: dict[tuple[str, str], tuple[float, float]] = {}
    for row in sorted(rows, key=lambda row: row["learning_rate"]):
        score = -math.inf if row["held_out"] is None else row["held_out"]
        entry = (row["task"], row["entry"])
        if entry not in best or score > best[entry][0]:
            best[entry] = (score, row["learning_rate"])
    return {entry: rate for entry, (_, rate) in best.items()}


def write_report(folder: Path, report: dict[str, Any], tasks: Sequence[str]) -> None:
    """The tables, on standard output and as a file, and the plot."""
    summary = report["summary"]
    found = [task for task in tasks if any(row["task"] == task for row in summary)]
    parts = [f"GLUE, {report['size']}", scores_table(summary, found), NOTE]
    if report["size"] != "full":
        parts.append("Fewer examples than the benchmark's, and fewer updates: not its figures.")
    parts.append(runs_table([row for row in summary if "learning_rate" in row]))
    text = "\n\n".join(parts)
    print(text)
    (folder / "results.md").write_text(f"{text}\n", encoding="utf-8")
    plot_scores(summary, found, folder / "scores.png", f"GLUE, {report['size']}; bars: mean over seeds, points: each")
