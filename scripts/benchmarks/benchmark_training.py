"""What the benchmarks that train share: runs in processes of their own, resumed, recorded, their costs said first."""

import argparse
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_seqmix import __version__
from hf_seqmix._files import write_json, write_text
from hf_seqmix.training import merge_recipes, parse_overrides, run_from_recipe
from hf_seqmix.training.environment import environment_of, portable_command
from hf_seqmix.training.result_files import ResultFile, write_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run
from hf_seqmix.training.tables import markdown_table

from .run_checks import check_runs

SCRIPTS = Path(__file__).resolve().parents[1]
LOG = "runs.jsonl"
"""Every result of an output folder, a line a run; results.jsonl holds those of the last command."""

SCORED = "scored.json"
"""File of an output folder: size -> bytes of the test text that are scored, which runs do not say."""

TRIAL_UPDATES = 5  # timed to tell what a run will cost: the median leaves the first, slow ones out
_SHORT: dict[str, Any] = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
}
TRIALS: dict[str, dict[str, dict[str, Any]]] = {
    "finetune.py": {"data": {"max_train_samples": 1000, "max_eval_samples": 2}, "training": _SHORT},
    "pretrain.py": {"data": {"max_eval_blocks": 1}, "training": _SHORT},
}
"""What takes the place of the length of a run where only its speed is asked for."""

_OTHER_LENGTHS = ("num_train_epochs", "max_tokens", "schedule_steps")
REPLACED = {
    "max_steps": ("max_seconds", "warmup_steps", *_OTHER_LENGTHS),
    "max_seconds": ("max_steps", *_OTHER_LENGTHS),
}
"""How long a run is -> the settings whose place that takes: the length said otherwise, or laid out for another one."""

OPTIONS = {"seed": "--seeds", "output_dir": "--output-dir"}
"""Training argument -> the option that says it for every run."""

RATES = ("learning_rate", "muon_learning_rate", "kernel_learning_rate")

PRETRAINED = "pretraining"
"""Folder of a run's first stage, in the folder of the run."""

COSTS = {
    "run": "run",
    "updates": "updates:,",
    "seconds_per_update": "s/update:.3g",
    "hours": "hours:.2f",
    "peak_memory_mib": "peak MiB:,.0f",
}

logger = logging.getLogger("run_benchmarks")


@dataclass
class Report:
    """What a benchmark found.

    Attributes:
        results: of this command, those that were there already included.
        failures: name of a run or model -> why it has no result.
    """

    results: list[Result] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        name: as a path below the output folder, such as "listops/fd_tnn/seed-0"; tells the jobs apart.
        script: of the folder `scripts`; takes the run as `--recipe`, writes results.json, and knows `--resume`.
        run: what runs, with this machine's files.
        labels: fields that all results of the job share, such as model, size and setting.
        updates: of the training, where the number is known beforehand.
        contents: what tells the files that the run names from others of the same name, where files may change.
        probe: measures the finished run, whose folder it gets; what it returns is added to the run's results.
        before: a stage that makes the weights from which the run starts, its model otherwise the same.
        start: makes of the folder of that stage the model that the run starts from; the folder itself by default.
    """

    name: str
    script: str
    run: Run
    labels: Mapping[str, Any] = field(default_factory=dict)
    updates: int | None = None
    contents: Mapping[str, str | None] = field(default_factory=dict)
    probe: Callable[[Path], Mapping[str, Any]] | None = None
    before: "Job | None" = None
    start: Callable[[Path], Path] | None = None

    def portable(self, output_dir: Path) -> Run:
        """Return the run without this machine's folders: what its results are known by."""
        sections = {name: _portable(getattr(self.run, name), output_dir) for name in ("model", "data", "training")}
        if self.before is not None:
            first = self.before.portable(output_dir)
            stage = {
                "script": self.before.script,
                "model": first.model,
                "data": first.data,
                "training": first.training,
            }
            if self.start is not None:
                stage["start"] = self.start.__name__
            sections["training"] = {**sections["training"], PRETRAINED: stage}
        return replace(self.run, **sections)

    def key(self, benchmark: str, output_dir: Path) -> dict[str, Any]:
        """Return what the results of the job depend on."""
        run = self.portable(output_dir).digest
        key = {"benchmark": benchmark, "version": __version__, "name": self.name, "script": self.script, "run": run}
        return {**key, "contents": dict(self.contents)} if self.contents else key

    def folder(self, output_dir: Path) -> Path:
        """Return where the job writes: another folder for another run, so that none is resumed with other settings."""
        words = json.dumps([self.script, self.portable(output_dir).digest, dict(self.contents)])
        return output_dir / "runs" / f"{self.name}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def make_run(task: str, *recipes: Mapping[str, Mapping[str, Any]], arguments: argparse.Namespace, seed: int) -> Run:
    """Return the run of recipes, the later of equal settings winning, and of what the command line adds.

    Where a recipe says how long to train, the settings of the recipes before it that `REPLACED` names are left out.

    Raises:
        ValueError: `--training` says what an option of its own says.
    """
    added: dict[str, dict[str, Any]] = {"training": parse_overrides(arguments.training)}
    for name, option in OPTIONS.items():
        if name in added["training"]:
            raise ValueError(f"--training says {name}, which would have no effect: give {option}.")
    if arguments.config_overrides:
        added["model"] = {"config_overrides": parse_overrides(arguments.config_overrides)}
    merged: dict[str, dict[str, Any]] = {}
    for recipe in (*recipes, added):
        for length, others in REPLACED.items():
            if recipe.get("training", {}).get(length) is not None:
                for name in others:
                    merged.get("training", {}).pop(name, None)
        merged = merge_recipes(merged, recipe)
    return run_from_recipe(task, merged, seed)


def _portable(value: Any, output_dir: Path) -> Any:
    if isinstance(value, Mapping):
        return {name: _portable(entry, output_dir) for name, entry in value.items()}
    if isinstance(value, list):
        return [_portable(entry, output_dir) for entry in value]
    if not isinstance(value, str) or os.sep not in value:
        return value
    path = Path(value)
    for folder, name in ((output_dir.absolute(), "OUTPUT"), (SCRIPTS.parent, ".")):
        if path.absolute().is_relative_to(folder) and path.exists():
            return str(Path(name) / path.absolute().relative_to(folder))
    return f"DATA/{path.parent.name}/{path.name}" if path.is_absolute() else value


def training_arguments() -> argparse.ArgumentParser:
    """Return what every benchmark that trains takes."""
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
        help="the published size; says what it costs on this machine before it begins",
    )
    common.set_defaults(size="reduced")
    common.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run each")
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
        help="fields of the configuration of every model from scratch, such as hidden_size=64",
    )
    common.add_argument("--overwrite", action="store_true", help="run again what the output folder already holds")
    return common


def check_jobs(arguments: argparse.Namespace, jobs: Sequence[Job]) -> None:
    """Refuse before any of them starts what a script would refuse to read."""
    stages = (stage for job in jobs for stage in (job.before, job) if stage is not None)
    check_runs(arguments.scripts, ((stage.name, stage.script, stage.run) for stage in stages))


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
    if missing and (arguments.size == "full" or arguments.costs):
        state_costs(arguments, missing if planned is None else planned)
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


def origin(benchmark: str) -> dict[str, Any]:
    """Return what results say of where they come from: the command and the environment."""
    return {"command": portable_command(benchmark), "environment": environment_of()}


def train(job: Job, folder: Path) -> dict[str, Any] | str:
    """Run the script, its progress on this standard error, and return its results.json, or what went wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    run, stages = job.run, {}
    if job.before is not None:
        finished = folder / PRETRAINED / "results.json"
        first = json.loads(finished.read_text(encoding="utf-8")) if finished.is_file() else None
        first = first or train(job.before, folder / PRETRAINED)
        if isinstance(first, str):
            return first
        start = folder / PRETRAINED if job.start is None else job.start(folder / PRETRAINED)
        run, stages = replace(run, model={"model": str(start)}), {PRETRAINED: first}
    write_json(folder / "run.json", run.to_json())
    command = [sys.executable, str(SCRIPTS / job.script), "--recipe", str(folder / "run.json")]
    command += ["--output-dir", str(folder), "--resume"]
    with open(folder / "output.txt", "w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"}, check=False)
    if done.returncode:
        return f"{job.script} ended with status {done.returncode}; its last words are above, its folder is {folder}"
    found = {**json.loads((folder / "results.json").read_text(encoding="utf-8")), **stages}
    return found if job.probe is None else {**found, **job.probe(folder)}


def state_costs(arguments: argparse.Namespace, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Time a few updates of each kind of job, say what all of them take, and return that as rows.

    Jobs that differ in their seed and learning rates alone are timed once. Evaluations are not counted.
    """
    if not jobs:
        return []
    rows: list[dict[str, Any]] = []
    known: dict[str, dict[str, Any]] = {}
    for job in jobs:
        kind = replace(job.run, seed=0, training={**job.run.training, **dict.fromkeys(RATES)}).digest
        if kind not in known:
            logger.info(f"timing {TRIAL_UPDATES} updates of {job.name}")
            folder = arguments.output_dir / "costs" / job.name
            shutil.rmtree(folder, ignore_errors=True)
            found = train(trial_of(job, TRIAL_UPDATES), folder)
            shutil.rmtree(folder, ignore_errors=True)
            known[kind] = {} if isinstance(found, str) else found
        speed = known[kind].get("train", known[kind])
        per_second, memory = speed.get("steps_per_second"), speed.get("peak_memory_bytes")
        seconds = 1 / per_second if per_second else None
        budget = sum(stage.run.training.get("max_seconds") or 0 for stage in (job, job.before) if stage) or None
        total = budget or (seconds * job.updates if seconds and job.updates else None)
        rows.append(
            {
                "run": job.name,
                "updates": job.updates,
                "seconds_per_update": seconds,
                "hours": total / 3600 if total else None,
                "peak_memory_mib": memory / 2**20 if memory else None,
            }
        )
    hours = sum(row["hours"] or 0 for row in rows)
    print(f"{markdown_table(rows, COSTS)}\n\n{hours:.1f} hours in all on this machine, evaluations not counted.")
    return rows


def trial_of(job: Job, updates: int) -> Job:
    """Return a job cut to a few updates, without the stage before it: what is timed.

    Args:
        job: any.
        updates: that are made; the medians of `train` leave the first, slow ones out.
    """
    training = {name: value for name, value in job.run.training.items() if name not in REPLACED["max_steps"]}
    short = merge_recipes(TRIALS[job.script], {"training": {"max_steps": updates}})
    sections = merge_recipes({"data": job.run.data}, {"training": training}, short)
    run = replace(job.run, data=sections["data"], training=sections["training"])
    return replace(job, run=run, probe=None, before=None)


def keep_test_bytes(arguments: argparse.Namespace, test_bytes: int | None) -> None:
    """Write how much of the test text is scored, so that all results of a size in an output folder are of as much.

    Args:
        arguments: of the command line.
        test_bytes: of the beginning of the text; None for all, 0 for none.

    Raises:
        ValueError: the results that are there are of another number.
    """
    path = arguments.output_dir / SCORED
    known: dict[str, int | None] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if (before := known.setdefault(arguments.size, test_bytes)) != test_bytes:
        then, now = ("all bytes" if number is None else f"{number:,} bytes" for number in (before, test_bytes))
        raise ValueError(
            f"{then} of the test text are scored in {arguments.output_dir}, and {now} would be now, which cannot be "
            "compared: give the --test-bytes of before, or another --output-dir."
        )
    write_json(path, known)


def write_report(folder: Path, report: Report, parts: Sequence[str]) -> None:
    """Write results.jsonl and results.md, and print the latter; nothing of the kind where there is no result."""
    write_results(folder / "results.jsonl", report.results)
    failures = [f"Not evaluated: {name}: {' '.join(why.split())}" for name, why in report.failures.items()]
    text = "\n\n".join([*parts, *failures])
    if text:
        print(text)
        write_text(folder / "results.md", f"{text}\n")


def select(results: Sequence[Result], **wanted: Any) -> list[Result]:
    """Return the results whose fields or settings have the values wanted; a tuple allows several."""
    return [
        result
        for result in results
        if all(result.get(name) in (v if isinstance(v, tuple) else (v,)) for name, v in wanted.items())
    ]
