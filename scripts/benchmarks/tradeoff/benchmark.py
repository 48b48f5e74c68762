"""The benchmark `trade-off`: accuracy of finished runs against speed and memory, measured side by side."""

import argparse
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_seqmix import __version__
from hf_seqmix.training.command import add_device_argument, positive
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result, group_results
from hf_seqmix.training.timing import in_fresh_process

from ..results import LOG, Report, origin, write_report
from .finished import FinishedTask, read_tasks
from .models import Contest, measure, smallest_batch
from .report import describe, join

FAST_ROUNDS, FAST_BATCH = 1, 4

logger = logging.getLogger("run_benchmarks")


def add_tradeoff(benchmarks: Any) -> None:
    """Add the sub-command `trade-off`."""
    parser = benchmarks.add_parser(
        "trade-off",
        allow_abbrev=False,
        help="accuracy of finished runs against speed and memory of training, measured side by side",
        description="Takes results.jsonl of the benchmark lra, builds the models of its runs again, with random "
        "weights, and measures an update of each in turn, on random inputs of one batch as long as the task's "
        "longest, so that a busy machine is as busy for all. One table and plot a task: accuracy up, updates a second "
        "to the right, the area of a disc is the peak memory of an update: all tensors, weights and optimizer "
        "included.",
    )
    parser.add_argument("--output-dir", type=Path, required=True, help="where results, table and plots go")
    parser.add_argument(
        "--results", type=Path, nargs="+", required=True, metavar="FILE", help="results.jsonl of the benchmark lra"
    )
    parser.add_argument("--families", nargs="+", help="some of those in the results")
    parser.add_argument("--reference", default="tnn", help="the family whose time is 1")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of an input, instead of the runs' longest")
    parser.add_argument(
        "--batch-size", type=int, help="rows of an update, instead of the smallest batch of a task's runs"
    )
    parser.add_argument("--rounds", type=int, default=9, help="updates of each model that count")
    parser.add_argument(
        "--seconds", type=float, default=120, help="seconds for a task and length; three rounds in any case"
    )
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    add_device_argument(parser)
    parser.add_argument("--fast", action="store_true", help="one round of small batches, to see that it works")
    parser.add_argument("--overwrite", action="store_true", help="measure again what the output folder already holds")
    parser.set_defaults(run=run_tradeoff)


def run_tradeoff(arguments: argparse.Namespace) -> Report:
    """Measure every task and length that the output folder does not hold yet, and report all.

    Raises:
        ValueError: an argument makes no sense, or results are none of `lra` or contradict each other.
    """
    _check(arguments)
    tasks = read_tasks(arguments.results, arguments.families)
    for found in tasks:
        if arguments.reference not in found.runs():
            raise ValueError(
                f"--reference {arguments.reference} has no result for {found.task}; it has {', '.join(found.runs())}."
            )
    contests = [(found, contest) for found in tasks for contest in make_contests(arguments, found)]
    log = ResultFile(arguments.output_dir / LOG)
    report = Report()
    for number, (found, contest) in enumerate(contests, start=1):
        key = key_of(found, contest)
        measured = None if arguments.overwrite else log.get(key)
        if measured is None:
            name = f"{found.task}, {found.size}" + (f", length {contest.length}" if contest.length else "")
            logger.info(f"{number} of {len(contests)}: {name}, {len(contest.runs)} families side by side")
            try:
                on_cpu = torch.device(contest.device).type == "cpu"
                rows = in_fresh_process(measure, contest) if on_cpu else measure(contest)
            except (ValueError, RuntimeError) as error:  # the profiler's and a broken process are RuntimeErrors
                report.failures[name] = str(error)
                logger.error(f"{name}: {error}")
                continue
            measured = costs(found, contest, rows, arguments.benchmark)
            log.append(key, measured)
        else:
            logger.info(f"{number} of {len(contests)}: {found.task} is there already")
        report.results += join(found, measured, arguments.reference)
    if report.results:
        report.results += [baseline for found in tasks for baseline in found.baselines]
    parts = []
    for found in tasks:
        alike = [other for other in tasks if (other.task, other.size) == (found.task, found.size)]
        suffix = "" if found is alike[0] else f"-{alike.index(found) + 1}"  # another data set of one task
        stem = f"{found.task}-{found.size}{suffix}"
        parts += describe(arguments.output_dir, found, report.results, stem)
    if parts:
        parts.append(
            "Accuracies are of the runs; time and memory of an update were measured side by side on "
            f"{arguments.device} ({arguments.threads} CPU threads), on inputs without padding; times as fast as "
            f"{arguments.reference}. Memory is that of all tensors, weights and optimizer included."
        )
        if arguments.fast:
            parts.append("One round of small batches: these times show that it works, and nothing else.")
    write_report(arguments.output_dir, report, parts)
    return report


def _check(arguments: argparse.Namespace) -> None:
    positive = {"--rounds": arguments.rounds, "--threads": arguments.threads, "--batch-size": arguments.batch_size}
    for option, value in positive.items():
        if value is not None and value < 1:
            raise ValueError(f"{option} must be positive; given {value}.")
    if arguments.seconds is not None and arguments.seconds <= 0:
        raise ValueError(f"--seconds must be positive; given {arguments.seconds:g}.")
    if min(arguments.lengths or [2]) < 2:
        raise ValueError(f"--lengths must be at least 2; given {min(arguments.lengths)}.")


def make_contests(arguments: argparse.Namespace, found: FinishedTask) -> list[Contest]:
    """Return what is to be measured for a task, one contest a length."""
    runs, batch_size = found.runs(), arguments.batch_size
    if arguments.fast:
        batch_size = min(FAST_BATCH, batch_size or FAST_BATCH, smallest_batch(list(runs.values())))
    rounds = FAST_ROUNDS if arguments.fast else arguments.rounds
    kept = arguments.output_dir / "precision" / f"{arguments.device}-{arguments.threads}".replace(":", "-")
    rest = (batch_size, arguments.device, arguments.threads, rounds, arguments.seconds, str(kept))
    return [Contest(found.task, runs, length, *rest) for length in arguments.lengths or [None]]


def key_of(found: FinishedTask, contest: Contest) -> dict[str, Any]:
    """Return what a measurement depends on, and the data that the results of the task are of.

    Not the folder of the precision, which is one for all lines of a device.
    """
    runs = {family: run.digest for family, run in contest.runs.items()}
    names = [entry.name for entry in dataclasses.fields(contest) if entry.name != "folder"]
    fields = {name: getattr(contest, name) for name in names}
    of = {"data": found.data, "size": found.size, "benchmark": "trade-off"}
    return {**fields, **of, "runs": runs, "version": __version__, "torch": torch.__version__}


def costs(found: FinishedTask, contest: Contest, rows: Sequence[Mapping[str, Any]], benchmark: str) -> list[Result]:
    """Return what `measure` measured as results.

    Raises:
        ValueError: a model that was built has not as many parameters as the one that was trained.
    """
    results, where = [], origin(benchmark)
    for row in rows:
        trained = found.parameters.get(row["family"])
        if trained is not None and trained != row["num_parameters"]:
            raise ValueError(
                f"{row['family']} on {found.task} had {trained:,.0f} parameters when it was trained, and has "
                f"{row['num_parameters']:,} now: train it again with this version, or measure with the version that "
                "trained it."
            )
        setting = {name: row.get(name) for name in ("length", "run_length", "batch_size", "dtype")}
        setting |= {"data": found.data, "device": contest.device, "threads": contest.threads}
        metrics = ("num_parameters", "ms", "peak_memory_mib", "rounds")
        results += group_results(
            {name: row[name] for name in metrics if name in row},
            task=found.task,
            model=row["family"],
            size=found.size,
            setting=setting,
            run=contest.runs[row["family"]],
            command=where["command"],
            environment={**where["environment"], "clock": row.get("clock")},
        )
    return results
