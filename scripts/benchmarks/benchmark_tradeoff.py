"""The benchmark `trade-off` of run_benchmarks.py: accuracy of finished runs against speed and memory, measured side by side."""

import argparse
import dataclasses
import json
import logging
import shlex
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from hf_seqmix import __version__
from hf_seqmix._files import write_json
from hf_seqmix.analysis.report import ResultLog
from hf_seqmix.analysis.tradeoff_plots import TradeOffPoint, plot_costs, plot_tradeoff
from hf_seqmix.training.results import markdown_table, run_environment
from hf_seqmix.training.timing import in_fresh_process

from .benchmark_training import file_digest
from .tradeoff_models import NUM_LABELS, REPOSITORY, Contest, measure, read_command

TABLE = {
    "family": "family",
    "num_parameters": "parameters:,",
    "accuracy": "test accuracy:.4f",
    "spread": "± over seeds:.4f",
    "num_seeds": "seeds",
    "length": "length:,",
    "batch_size": "batch",
    "ms": "ms/update:.1f",
    "ratio": "times as fast:.2f",
    "peak_mib": "peak MiB:,.1f",
}

FAST_ROUNDS, FAST_BATCH = 1, 4

logger = logging.getLogger("run_benchmarks")


@dataclass
class FinishedTask:
    """What results say of one task.

    Attributes:
        task, size, data: as the benchmark `lra` names them.
        runs: its rows.
        levels: name -> accuracy of rules that a model should beat.
    """

    task: str
    size: str
    data: str
    runs: list[Mapping[str, Any]] = field(default_factory=list)
    levels: dict[str, float] = field(default_factory=dict)

    def families(self) -> list[str]:
        """In the order of the results."""
        return list(dict.fromkeys(row["family"] for row in self.runs))

    def of(self, family: str) -> list[Mapping[str, Any]]:
        """The runs of a family, one a seed."""
        return [row for row in self.runs if row["family"] == family]


def add_tradeoff(benchmarks: Any) -> None:
    """Adds the sub-command `trade-off`."""
    parser = benchmarks.add_parser(
        "trade-off",
        allow_abbrev=False,
        help="accuracy of finished runs against speed and memory of training, measured side by side",
        description="Takes results.json of the benchmark lra, builds the models of its runs again, with random weights, "
        "and measures an update of each in turn, on random inputs of one batch as long as the task's longest, so that a "
        "busy machine is as busy for all. One table and plot a task: accuracy up, updates a second to the right, "
        "the area of a disc is the peak memory of an update: all tensors, weights and optimizer included.",
    )
    parser.add_argument("--output-dir", type=Path, required=True, help="where results, table and plots go")
    parser.add_argument(
        "--results", type=Path, nargs="+", required=True, metavar="FILE", help="results.json of the benchmark lra"
    )
    parser.add_argument("--families", nargs="+", help="some of those in the results")
    parser.add_argument("--reference", default="tnn", help="the family whose time is 1")
    parser.add_argument("--lengths", type=int, nargs="+", help="of the inputs, instead of the runs' longest")
    parser.add_argument("--batch-size", type=int, help="instead of the smallest batch of a task's runs")
    parser.add_argument("--rounds", type=int, default=9, help="updates of each model that count")
    parser.add_argument("--seconds", type=float, default=120, help="a task and length; three rounds in any case")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--fast", action="store_true", help="one round of small batches, to see that it works")
    parser.add_argument("--overwrite", action="store_true", help="measure again what the output folder already holds")
    parser.set_defaults(run=run_tradeoff)


def run_tradeoff(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures every task and length that the output folder does not hold yet, and reports all.

    Raises:
        ValueError: an argument makes no sense, or results are none of `lra` or contradict each other.
    """
    _check(arguments)
    tasks = read_results(arguments.results, arguments.families)
    for found in tasks:
        if arguments.reference not in found.families():
            raise ValueError(
                f"--reference {arguments.reference} has no result for {found.task}; it has {', '.join(found.families())}."
            )
    contests = [(found, contest) for found in tasks for contest in make_contests(arguments, found)]
    log = ResultLog(arguments.output_dir / "results.jsonl")
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for number, (found, contest) in enumerate(contests, start=1):
        key = key_of(contest)
        measured = None if arguments.overwrite else log.get(key)
        if measured is None:
            name = f"{found.task}, {found.size}" + (f", length {contest.length}" if contest.length else "")
            logger.info(f"{number} of {len(contests)}: {name}, {len(contest.commands)} families side by side")
            try:
                on_cpu = torch.device(contest.device).type == "cpu"
                measured = {"rows": in_fresh_process(measure, contest) if on_cpu else measure(contest)}
            except (ValueError, BrokenProcessPool) as error:
                failures[name] = str(error)
                logger.error(f"{name}: {error}")
                continue
            log.append(key, measured)
        else:
            logger.info(f"{number} of {len(contests)}: {found.task} is there already")
        rows += join(found, measured["rows"], arguments.reference)
    report = {
        "benchmark": arguments.benchmark,
        "reference": arguments.reference,
        "device": arguments.device,
        "threads": arguments.threads,
        "fast": arguments.fast,
        "levels": {f"{found.task}, {found.size}": found.levels for found in tasks},
        "results": rows,
        "failures": failures,
        "environment": run_environment(),
    }
    write_json(arguments.output_dir / "results.json", report)
    if rows:
        write_report(arguments.output_dir, tasks, report)
    return report


def _check(arguments: argparse.Namespace) -> None:
    positive = {"--rounds": arguments.rounds, "--threads": arguments.threads, "--batch-size": arguments.batch_size}
    for option, value in positive.items():
        if value is not None and value < 1:
            raise ValueError(f"{option} must be positive; given {value}.")
    if min(arguments.lengths or [2]) < 2:
        raise ValueError(f"--lengths must be at least 2; given {min(arguments.lengths)}.")


def read_results(paths: Sequence[Path], families: Sequence[str] | None = None) -> list[FinishedTask]:
    """Return what files say of each task, runs of several files together where task, size and data are the same.

    Raises:
        ValueError: a file is not of the benchmark `lra`, two runs are the same, or runs of a family differ in more than
            their seed.
    """
    found: dict[tuple[str, str, str], FinishedTask] = {}
    for path in paths:
        report = _read(path)
        for row in report["results"]:
            if families is not None and row["family"] not in families:
                continue
            key = (row["task"], row["size"], row["data"])
            task = found.setdefault(key, FinishedTask(*key))
            if any(row["seed"] == other["seed"] for other in task.of(row["family"])):
                raise ValueError(f"{path} repeats a run: {row['task']}, {row['family']}, seed {row['seed']}.")
            task.runs.append(row)
            task.levels |= report["data"][row["task"]]["baselines"] | row["baselines"]
    if not found:
        raise ValueError(f"There is no result in {', '.join(map(str, paths))}, or none of --families.")
    for task in found.values():
        for family in task.families():
            if len({_without_seed(row["command"]) for row in task.of(family)}) > 1:
                raise ValueError(
                    f"The runs of {family} on {task.task} differ in more than their seed: give results of one setting."
                )
        task.levels["chance"] = 1 / NUM_LABELS[task.task]
    return list(found.values())


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if report["benchmark"] != "lra":
            raise ValueError(f"{path} is of the benchmark {report['benchmark']}; this one takes results of lra.")
    except (OSError, TypeError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as results.json of the benchmark lra: {error!r}") from error
    return report


def _without_seed(command: str) -> str:
    """A command without what tells seeds, and folders of data that mean nothing here, apart."""
    words = shlex.split(command)
    kept = []
    for option, word in zip(["", *words], words, strict=False):
        if option == "--seed" or option == "--output-dir" or option.endswith("-file"):
            continue
        kept.append(word)
    return shlex.join(kept)


def make_contests(arguments: argparse.Namespace, found: FinishedTask) -> list[Contest]:
    """What is to be measured for a task, one a length."""
    commands = {family: _without_files(found.of(family)[0]["command"]) for family in found.families()}
    batch_size = arguments.batch_size
    if arguments.fast:
        batches = [read_command(command).training.per_device_train_batch_size for command in commands.values()]
        batch_size = min([FAST_BATCH, batch_size or FAST_BATCH, *batches])
    return [
        Contest(
            found.task,
            commands,
            length,
            batch_size,
            arguments.device,
            arguments.threads,
            FAST_ROUNDS if arguments.fast else arguments.rounds,
            arguments.seconds,
        )
        for length in arguments.lengths or [None]
    ]


def _without_files(command: str) -> str:
    """A command that says the same model wherever the data lay and whatever the seed."""
    return _with_option(_with_option(command, "--seed", "0"), "--output-dir", "unused")


def _with_option(command: str, option: str, value: str) -> str:
    words = shlex.split(command)
    for place, word in enumerate(words[:-1]):
        if word == option:
            words[place + 1] = value
    return shlex.join(words)


def key_of(contest: Contest) -> dict[str, Any]:
    """What a measurement depends on."""
    commands = {family: _without_seed(command) for family, command in contest.commands.items()}
    settings = {**dataclasses.asdict(contest), "commands": commands}
    recipes = {word for command in commands.values() for word in recipes_of(command)}
    known = [recipe for recipe in sorted(recipes) if (REPOSITORY / recipe).is_file()]  # of others, `measure` speaks
    contents = {recipe: file_digest(REPOSITORY / recipe) for recipe in known}
    return {
        "benchmark": "trade-off",
        "version": __version__,
        "torch": torch.__version__,
        "recipes": contents,
        **settings,
    }


def recipes_of(command: str) -> list[str]:
    """The recipes that a command names."""
    words = shlex.split(command)
    return [word for option, word in pairwise(words) if option == "--recipe"]


def join(found: FinishedTask, measured: Sequence[Mapping[str, Any]], reference: str) -> list[dict[str, Any]]:
    """Rows with what was learnt (mean and standard deviation over seeds) and what it costs, against the reference.

    Raises:
        ValueError: a model that was built has not as many parameters as the one that was trained.
    """
    times = {row["family"]: row["ms"] for row in measured}
    rows = []
    for row in measured:
        runs = found.of(row["family"])
        trained, built = runs[0]["num_parameters"], row["num_parameters"]
        if trained != built:
            raise ValueError(
                f"{row['family']} on {found.task} had {trained:,} parameters when it was trained, and has {built:,} now: "
                "train it again with this version, or measure with the version that trained it."
            )
        accuracies = [run["accuracy"] for run in runs]
        base = times[reference]
        rows.append(
            {
                "task": found.task,
                "size": found.size,
                "data": found.data,
                **row,
                "accuracy": statistics.mean(accuracies),
                "spread": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
                "num_seeds": len(accuracies),
                "seeds": [run["seed"] for run in runs],
                "ratio": base / row["ms"] if base and row["ms"] else None,
            }
        )
    return rows


def write_report(folder: Path, tasks: Sequence[FinishedTask], report: Mapping[str, Any]) -> None:
    """The tables, on standard output and as a file, and the plots of each task."""
    parts = []
    stems: list[str] = []
    for found in tasks:
        own = [
            row
            for row in report["results"]
            if (row["task"], row["size"], row["data"]) == (found.task, found.size, found.data)
        ]
        if not own:
            continue
        title = f"{found.task}, {found.size}: {found.data}"
        levels = [{"family": f"({name})", "accuracy": value} for name, value in found.levels.items()]
        parts.append(f"{title}\n\n{markdown_table([*own, *levels], TABLE)}")
        stem = f"{found.task}-{found.size}"
        stems.append(stem)
        draw(own, folder, stem if stems.count(stem) == 1 else f"{stem}-{stems.count(stem)}", found.levels, title)
    parts.append(
        f"Accuracies are of the runs; time and memory of an update were measured side by side on {report['device']} "
        f"({report['threads']} CPU threads), on inputs without padding; times as fast as {report['reference']}. Memory is that "
        "of all tensors, weights and optimizer included."
    )
    if report["fast"]:
        parts.append("One round of small batches: these times show that it works, and nothing else.")
    text = "\n\n".join(parts)
    print(text)
    (folder / "results.md").write_text(f"{text}\n", encoding="utf-8")


def draw(rows: Sequence[Mapping[str, Any]], folder: Path, stem: str, levels: Mapping[str, float], title: str) -> None:
    """The plot of accuracy, speed and memory; with several lengths also that of time and memory over the length."""
    done = [row for row in rows if row["ms"] is not None]
    lengths = list(dict.fromkeys(row["length"] for row in done))
    if not done:
        return
    panels = {}
    for length in lengths:
        own = [row for row in done if row["length"] == length]
        trained = "" if length == own[0]["run_length"] else f" (accuracy of runs at {own[0]['run_length']:,})"
        panels[f"{own[0]['batch_size']} x {length:,}{trained}"] = [
            TradeOffPoint(row["family"], row["accuracy"], 1e3 / row["ms"], row["peak_mib"], row["spread"])
            for row in own
        ]
    heading = title if len(panels) > 1 else f"{title}\ntime and memory of an update of {next(iter(panels))} tokens"
    plot_tradeoff(panels, folder / f"{stem}.png", references=levels, title=heading)
    if len(lengths) > 1:
        curves = {
            family: [(row["length"], row["ms"], row["peak_mib"]) for row in done if row["family"] == family]
            for family in dict.fromkeys(row["family"] for row in done)
        }
        plot_costs(curves, folder / f"{stem}-lengths.png", title=title)
