"""The benchmark `glue` of run_benchmarks.py: checkpoints fine-tuned on GLUE, chosen on held-out training data."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.data.labeled import GLUE_TASKS
from hf_seqmix.training import parse_overrides
from hf_seqmix.training.command import refuse_twice
from hf_seqmix.training.results import Result

from ..inputs import short_names
from ..jobs import LENGTHS, Job
from ..results import Report, select, write_report
from ..run_costs import state_costs
from ..training import train_all, training_arguments, with_precision
from .report import COLUMNS, describe
from .runs import SIZES, describe_task, entry_name, longest_input, make_job, measure

DEFAULT_TASKS = ("sst2", "cola", "rte", "mrpc", "stsb")


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
        "--tasks", nargs="+", default=list(DEFAULT_TASKS), choices=list(GLUE_TASKS), help="tasks to fine-tune on"
    )
    parser.add_argument("--data-dir", type=Path, help="folder with GLUE's files; without it they come from the Hub")
    parser.add_argument("--random-init", action="store_true", help="train each architecture from random weights, too")
    parser.add_argument(
        "--learning-rates", type=float, nargs="+", help="learning rates to choose from, instead of the size's"
    )
    parser.add_argument("--epochs", type=int, help="passes over the training data, instead of the size's")
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
    rates, seeds = learning_rates(arguments), arguments.seeds

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
        state_costs(arguments, with_precision(arguments, [*sweep, *others]))
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
        ValueError: a number is not positive, a task is named twice, or --training says what the benchmark sets.
    """
    given = parse_overrides(arguments.training)
    if "learning_rate" in given:
        raise ValueError(
            "--training says learning_rate, which would be the same in every run, whatever the rate that its result "
            "bears: give --learning-rates."
        )
    if lengths := [name for name in LENGTHS if name in given]:
        raise ValueError(f"--training says {', '.join(lengths)}, but runs are so many epochs: give --epochs.")
    if chosen_by := [name for name in ("metric_for_best_model", "greater_is_better") if name in given]:
        raise ValueError(
            f"--training says {', '.join(chosen_by)}, but checkpoints and rates are chosen by the task's highest "
            "score: leave it out."
        )
    numbers = [("--epochs", arguments.epochs), ("--max-train-samples", arguments.max_train_samples)]
    numbers += [("--learning-rates", rate) for rate in arguments.learning_rates or ()]
    for option, value in numbers:
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{option} must be positive; given {value}.")
    refuse_twice(tasks=arguments.tasks, seeds=arguments.seeds)


def learning_rates(arguments: argparse.Namespace) -> list[float]:
    """Return the rates to choose from, the smallest first."""
    return sorted(set(arguments.learning_rates or SIZES[arguments.size].learning_rates))


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
