"""What the benchmarks that train share: their arguments, and jobs that are resumed and recorded."""

import argparse
import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hf_seqmix._files import write_json
from hf_seqmix.training import parse_overrides
from hf_seqmix.training.precision import AUTO, PRECISION_FILE, choose_precision
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result

from .inputs import default_device
from .jobs import LENGTHS, PRETRAINED, RATES, Job, train
from .results import LOG, Report, origin
from .run_checks import check_runs
from .run_costs import state_costs
from .state import read_state

logger = logging.getLogger("run_benchmarks")


def training_arguments(refused: Collection[str] = ()) -> argparse.ArgumentParser:
    """Return what every benchmark that trains takes.

    Args:
        refused: options that the benchmark refuses, with a reason; its help does not offer them.
    """

    def said(option: str, text: str) -> str:
        return argparse.SUPPRESS if option in refused else text

    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument("--output-dir", type=Path, required=True, help="where runs, results, table and plots go")
    size = common.add_mutually_exclusive_group()
    size.add_argument(
        "--fast",
        action="store_const",
        const="fast",
        dest="size",
        help="minutes on two cores: shows that everything works, and nothing about the models",
    )
    size.add_argument(
        "--full",
        action="store_const",
        const="full",
        dest="size",
        help=said("--full", "the published size; says what it costs on this machine before it begins"),
    )
    common.set_defaults(size="reduced")
    common.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds, one run each")
    common.add_argument("--costs", action="store_true", help="only say what the runs would cost on this machine")
    common.add_argument(
        "--training",
        nargs="+",
        action="extend",
        default=[],
        metavar="FIELD=VALUE",
        help="training arguments of every run, such as bf16=true use_cpu=true",
    )
    common.add_argument(
        "--config-overrides",
        nargs="+",
        action="extend",
        default=[],
        metavar="FIELD=VALUE",
        help=said(
            "--config-overrides", "fields of the configuration of every model from scratch, such as hidden_size=64"
        ),
    )
    common.add_argument("--overwrite", action="store_true", help="run again what the output folder already holds")
    return common


def refuse_fixed(arguments: argparse.Namespace, instead: str) -> None:
    """Refuse rates and lengths in `--training` of a benchmark that sweeps the former and gives the latter.

    Args:
        arguments: of the command line.
        instead: what to do.

    Raises:
        ValueError: there is one.
    """
    fixed = [name for name in parse_overrides(arguments.training) if name in (*RATES, *LENGTHS)]
    if fixed:
        raise ValueError(
            f"--training says {', '.join(fixed)}, which would be the same in every run, whatever its --rate-factors "
            f"and --max-seconds: {instead}."
        )


def check_jobs(arguments: argparse.Namespace, jobs: Sequence[Job]) -> None:
    """Refuse before any of them starts what a script would refuse to read."""
    stages = (stage for job in jobs for stage in (job.before, job) if stage is not None)
    check_runs(arguments.scripts, ((stage.name, stage.script, stage.run) for stage in stages))


def precision_of(arguments: argparse.Namespace, width: int = 256) -> dict[str, Any]:
    """Return the precision of the models of an output folder, as `choose_precision` does: timed once, and kept there.

    Each run for itself might choose otherwise, where other work disturbs its timing. In a folder whose runs did so, in
    an earlier version, the choice of one of them holds.

    Args:
        arguments: of the command line.
        width: channels of the models.
    """
    path = arguments.output_dir / PRECISION_FILE
    if not path.is_file():
        device = "cpu" if parse_overrides(arguments.training).get("use_cpu") else default_device()
        earlier = sorted(arguments.output_dir.glob(f"runs/**/{PRECISION_FILE}"))
        chosen = read_state(earlier[0], "the precision is that of another run, or timed anew") if earlier else None
        write_json(path, chosen or choose_precision(torch.device(device), width))
    return read_state(path, "the precision is that of a run there, or timed anew")


def with_precision(arguments: argparse.Namespace, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs, with the precision of the output folder where they leave theirs to the machine."""

    def settled(job: Job) -> Job:
        if str(job.run.training.get("bf16")).lower() != AUTO:
            return job
        width = (job.run.model.get("config_overrides") or {}).get("hidden_size", 256)
        return replace(job, precision=precision_of(arguments, width))

    return [settled(job) for job in jobs]


def train_all(
    arguments: argparse.Namespace,
    jobs: Sequence[Job],
    measure: Callable[[Mapping[str, Any], dict[str, Any]], list[Result]],
    planned: Sequence[Job] | None = None,
) -> Report:
    """Train what the output folder does not hold yet.

    Args:
        arguments: as `training_arguments` reads them, and `benchmark`.
        jobs: in the order of the table.
        measure: makes results of a run's results.json and of the fields that they share.
        planned: the jobs whose costs are said, where a benchmark trains in several rounds: all of them before the
            first round, none before the others. By default those that are trained now.

    Returns:
        The results of every job that has some; the faults of the others by name.

    Raises:
        ValueError: two jobs have one name, the log is something else, or a script would refuse the arguments of a job.
    """
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        raise ValueError(f"two runs have one name: {', '.join(sorted({n for n in names if names.count(n) > 1}))}.")
    log = ResultFile(arguments.output_dir / LOG)
    keys = {job.name: job.key(arguments.benchmark, arguments.output_dir) for job in jobs}
    missing = [job for job in jobs if arguments.overwrite or log.get(keys[job.name]) is None]
    if len(missing) < len(jobs):
        logger.info(f"{len(jobs) - len(missing)} of {len(jobs)} results are there already")
    check_jobs(arguments, missing)
    missing = with_precision(arguments, missing)
    if missing and (arguments.size == "full" or arguments.costs):
        state_costs(arguments, missing if planned is None else with_precision(arguments, planned))
    report = Report()
    for number, job in enumerate([] if arguments.costs else missing, start=1):
        logger.info(f"run {number} of {len(missing)}: {job.name}")
        folder = job.folder(arguments.output_dir)
        if arguments.overwrite:
            log.forget(keys[job.name])  # or a run that fails now would show its former result
            shutil.rmtree(folder, ignore_errors=True)
        found = train(job, folder)
        if isinstance(found, str):
            report.failures[job.name] = found
            logger.error(f"{job.name}: {found}")
            continue
        shared = {
            "seed": job.run.seed,
            "run": job.portable(arguments.output_dir),
            **origin(arguments.benchmark),
            **job.labels,
        }
        log.append(keys[job.name], measure(found, shared))
        # What the results need is kept; checkpoints of a finished run are dead weight.
        for checkpoint in [*folder.glob("*checkpoint-*"), *folder.glob(f"{PRETRAINED}/*checkpoint-*")]:
            shutil.rmtree(checkpoint)
    for job in jobs:
        report.results += log.get(keys[job.name]) or []
    return report
