"""What the benchmarks that train share: training runs in processes of their own, resumed, logged, their costs said first."""

import argparse
import hashlib
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_seqmix import __version__
from hf_seqmix.analysis.report import ResultLog
from hf_seqmix.training.results import markdown_table, run_environment

SCRIPTS = Path(__file__).resolve().parents[1]
TRIAL_UPDATES = 5  # timed to tell what a run will cost: the median leaves the first, slow ones out
_SHORT = f"--max-steps {TRIAL_UPDATES} --eval-strategy no --save-strategy no --load-best-model-at-end false".split()
TRIALS = {
    "finetune.py": [*_SHORT, "--max-train-samples", "1000", "--max-eval-samples", "2"],
    "pretrain.py": [*_SHORT, "--max-eval-blocks", "1"],
}
"""What takes the place of the length of a run where only its speed is asked for."""

SAME_COST = ("seed", "learning_rate")  # labels that no update takes longer for

COSTS = {
    "run": "run",
    "updates": "updates:,",
    "seconds_per_update": "s/update:.3g",
    "hours": "hours:.2f",
    "peak_memory_mib": "peak MiB:,.0f",
}

logger = logging.getLogger("run_benchmarks")


@dataclass(frozen=True)
class TrainingRun:
    """One training.

    Attributes:
        name: as a path below the output folder, such as "listops/fd_tnn/seed-0"; tells the runs apart.
        script: of this folder, such as "finetune.py"; writes results.json into its `--output-dir` and knows `--resume`.
        arguments: of that script, but for these two.
        labels: what its row says besides what was measured, such as task, family and seed.
        updates: of the training, where it is known beforehand.
        contents: what tells the files that the arguments name from others of the same name, where they may change.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    labels: Mapping[str, Any]
    updates: int | None = None
    contents: Mapping[str, str | None] | None = None

    def portable(self, output_dir: Path) -> list[str]:
        """The arguments without this machine's folders: what results are known by, and what a reader can type."""
        return [_portable(word, output_dir) for word in self.arguments]

    def folder(self, output_dir: Path) -> Path:
        """Where it writes; another one for other arguments, so that a run is never resumed with others."""
        contents = [dict(self.contents)] if self.contents else []
        words = json.dumps([self.script, *self.portable(output_dir), *contents])
        return output_dir / "runs" / f"{self.name}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"

    def key(self, benchmark: str, output_dir: Path) -> dict[str, Any]:
        """What its result depends on."""
        return {
            "benchmark": benchmark,
            "version": __version__,
            "name": self.name,
            "script": self.script,
            "arguments": self.portable(output_dir),
            **({"contents": dict(self.contents)} if self.contents else {}),
        }

    def command(self, output_dir: Path) -> str:
        """What a user types to do this one alone."""
        words = ["python", f"scripts/{self.script}", *self.portable(output_dir), "--output-dir", f"runs/{self.name}"]
        return shlex.join(words)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, its first 16 digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _portable(word: str, output_dir: Path) -> str:
    if os.sep not in word:
        return word
    path = Path(word)
    for folder, name in ((output_dir.absolute(), "OUTPUT"), (SCRIPTS, "scripts")):
        if path.absolute().is_relative_to(folder):
            return str(Path(name) / path.absolute().relative_to(folder))
    return f"DATA/{path.parent.name}/{path.name}" if path.is_absolute() else word


def training_arguments() -> argparse.ArgumentParser:
    """What every benchmark that trains takes."""
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
        "--training-arguments",
        default="",
        metavar="ARGUMENTS",
        help="further arguments of the training script, in one text after an equals sign: --training-arguments='--bf16 --use-cpu'",
    )
    common.add_argument("--overwrite", action="store_true", help="run again what the output folder already holds")
    return common


def train_all(
    arguments: argparse.Namespace,
    runs: Sequence[TrainingRun],
    measure: Callable[[dict[str, Any]], dict[str, Any]],
    planned: Sequence[TrainingRun] | None = None,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """
    Train what the output folder does not hold yet.

    Args:
        arguments: as `training_arguments` reads them, and `benchmark`.
        runs: in the order of the table.
        measure: takes from a run's results.json what its row shows.
        planned: the runs whose costs are said, where a benchmark trains in several rounds: all of them before the first, none
            before the others. By default those that are trained now.

    Returns:
        A row for each run that has a result, its labels first; the faults of the others by name.

    Raises:
        ValueError: two runs have one name, or the log is something else.
    """
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise ValueError(f"Two runs have one name: {', '.join(sorted({n for n in names if names.count(n) > 1}))}.")
    log = ResultLog(arguments.output_dir / "results.jsonl")

    def key(run: TrainingRun) -> dict[str, Any]:
        return run.key(arguments.benchmark, arguments.output_dir)

    missing = [run for run in runs if arguments.overwrite or log.get(key(run)) is None]
    if len(missing) < len(runs):
        logger.info(f"{len(runs) - len(missing)} of {len(runs)} results are there already")
    if missing and (arguments.size == "full" or arguments.costs):
        state_costs(arguments, missing if planned is None else planned)
    failures: dict[str, str] = {}
    for number, run in enumerate([] if arguments.costs else missing, start=1):
        logger.info(f"run {number} of {len(missing)}: {run.name}")
        folder = run.folder(arguments.output_dir)
        if arguments.overwrite:
            log.forget(key(run))  # or a run that fails now would show its former result
            shutil.rmtree(folder, ignore_errors=True)
        results = train(run, folder)
        if isinstance(results, str):
            failures[run.name] = results
            logger.error(f"{run.name}: {results}")
            continue
        row = {
            **run.labels,
            **measure(results),
            "updates": results["num_updates"],
            "command": run.command(arguments.output_dir),
            "environment": {name: value for name, value in run_environment().items() if name != "command"},
        }
        log.append(key(run), row)
        # What the row needs is kept; checkpoints of a finished run are dead weight.
        for checkpoint in folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    found = [log.get(key(run)) for run in runs]
    return [row for row in found if row is not None], failures


def train(run: TrainingRun, folder: Path, more: Sequence[str] = ()) -> dict[str, Any] | str:
    """Run the script, its progress on this standard error, and return its results.json, or what went wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        str(SCRIPTS / run.script),
        *run.arguments,
        *more,
        "--output-dir",
        str(folder),
        "--resume",
    ]
    output = folder / "output.txt"
    with open(output, "w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"}, check=False)
    if done.returncode:
        return f"{run.script} ended with status {done.returncode}; its last words are above, its folder is {folder}"
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def state_costs(arguments: argparse.Namespace, runs: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """Time a few updates of each kind of run, say what all of them take, and return that as rows; nothing if there are no runs.

    Runs that differ in their seed and learning rate alone are timed once. Evaluations are not counted.
    """
    if not runs:
        return []
    rows: list[dict[str, Any]] = []
    known: dict[str, dict[str, Any]] = {}
    for run in runs:
        kind = json.dumps({name: value for name, value in run.labels.items() if name not in SAME_COST})
        if kind not in known:
            logger.info(f"timing {TRIAL_UPDATES} updates of {run.name}")
            folder = arguments.output_dir / "costs" / run.name
            shutil.rmtree(folder, ignore_errors=True)
            results = train(run, folder, TRIALS[run.script])
            shutil.rmtree(folder, ignore_errors=True)
            known[kind] = {} if isinstance(results, str) else results
        speed = known[kind].get("train", known[kind])
        per_second, memory = speed.get("steps_per_second"), speed.get("peak_memory_bytes")
        seconds = 1 / per_second if per_second else None
        rows.append(
            {
                "run": run.name,
                "updates": run.updates,
                "seconds_per_update": seconds,
                "hours": seconds * run.updates / 3600 if seconds and run.updates else None,
                "peak_memory_mib": memory / 2**20 if memory else None,
            }
        )
    total = sum(row["hours"] or 0 for row in rows)
    print(f"{markdown_table(rows, COSTS)}\n\n{total:.1f} hours in all on this machine, evaluations not counted.")
    return rows
