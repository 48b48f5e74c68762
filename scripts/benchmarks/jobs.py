"""A training of a benchmark: what it runs and depends on, in a process of its own."""

import argparse
import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_seqmix import __version__
from hf_seqmix._files import write_json
from hf_seqmix.training import merge_recipes, parse_overrides, run_from_recipe
from hf_seqmix.training.environment import file_digest, fingerprint
from hf_seqmix.training.folders.checkpoints import last_complete_checkpoint, saved_checkpoints, set_aside_later
from hf_seqmix.training.folders.folder_lock import FolderInUseError, claim_folder, folders_released
from hf_seqmix.training.precision import PRECISION_FILE
from hf_seqmix.training.run import Run

from .state import read_state

SCRIPTS = Path(__file__).resolve().parents[1]
_OTHER_LENGTHS = ("num_train_epochs", "max_tokens", "schedule_steps")
REPLACED = {
    "max_steps": ("max_seconds", "warmup_steps", *_OTHER_LENGTHS),
    "max_seconds": ("max_steps", *_OTHER_LENGTHS),
    "num_train_epochs": ("max_steps", "max_seconds", "max_tokens", "schedule_steps", "warmup_steps"),
}
"""How long a run is -> the settings whose place that takes: the length said otherwise, or laid out for another one."""

OPTIONS = {"seed": "--seeds", "output_dir": "--output-dir"}
"""Training argument -> the option that says it for every run."""

LENGTHS = ("max_seconds", "max_steps", "max_tokens", "num_train_epochs")
"""Training arguments that say how long a run is."""

RATES = ("learning_rate", "muon_learning_rate", "kernel_learning_rate")

PRETRAINED = "pretraining"
"""Folder of a run's first stage, in the folder of the run."""

logger = logging.getLogger("run_benchmarks")


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
        probe: measures the finished run, whose folder it gets; what it returns is added to the run's results. Its
            `ValueError` is the failure of the run.
        before: a stage that makes the weights from which the run starts, its model otherwise the same.
        precision: of the run where it leaves that to the machine (`bf16: auto`), as `choose_precision` returns it. A
            run that was interrupted keeps its own.
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
    precision: Mapping[str, Any] | None = None

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
        """Return where the job writes: elsewhere with other settings or another version, so that none is mixed."""
        words = json.dumps([__version__, self.script, self.portable(output_dir).digest, dict(self.contents)])
        return output_dir / "runs" / f"{self.name}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def make_run(task: str, *recipes: Mapping[str, Mapping[str, Any]], arguments: argparse.Namespace, seed: int) -> Run:
    """Return the run of recipes, the later of equal settings winning, and of what the command line adds.

    Where a recipe says how long to train, the settings of the recipes before it that `REPLACED` names are left out.

    Raises:
        ValueError: `--training` says what an option of its own says, or how long a run is beside another length.
    """
    added: dict[str, dict[str, Any]] = {"training": parse_overrides(arguments.training)}
    for name, option in OPTIONS.items():
        if name in added["training"]:
            raise ValueError(f"--training says {name}, which would have no effect: give {option}.")
    lengths = [name for name in LENGTHS if name in added["training"]]
    options = [f"--{name.replace('_', '-')}" for name in LENGTHS if getattr(arguments, name, None) is not None]
    if lengths and len(lengths) + len(options) > 1:
        said = " and ".join([*(f"--training {name}" for name in lengths), *options])
        raise ValueError(f"{said} each say how long a run is: give one of them.")
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


def contents_of(run: Run) -> dict[str, str | None]:
    """Return digests of the files and folders of this machine that a run names."""
    found: dict[str, str | None] = {}
    named = {name: run.data.get(name) for name in ("dataset", "train_file", "validation_file")}
    for name, given in {**named, "config_file": run.model.get("config_file")}.items():
        paths = given or []
        for path in map(Path, [paths] if isinstance(paths, str) else paths):
            found |= {f"{name} {file}": file_digest(place) for file, place in _files_of(path.expanduser()).items()}
    for name, folder in {"model": run.model.get("model"), "tokenizer": run.data.get("tokenizer")}.items():
        if folder is not None and Path(str(folder)).is_dir():
            found[name] = fingerprint(Path(str(folder)), contents=True)
    return found


def _files_of(path: Path) -> dict[str, Path]:
    """Return a file by its name, or all below a folder by their paths in it, but those of hidden folders."""
    if not path.is_dir():
        return {path.name: path} if path.is_file() else {}
    files = {file.relative_to(path): file for file in sorted(path.rglob("*")) if file.is_file()}
    return {
        name.as_posix(): file
        for name, file in files.items()
        if not any(part.startswith(".") for part in name.parts[:-1])
    }


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


def train(job: Job, folder: Path) -> dict[str, Any] | str:
    """Run the script, its progress on this standard error, and return its results.json, or what went wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    run, stages = job.run, {}
    if job.before is not None:
        finished = folder / PRETRAINED / "results.json"
        known = read_state(finished, "the first stage is run again") if finished.is_file() else None
        first = known or train(replace(job.before, precision=job.precision), folder / PRETRAINED)
        if isinstance(first, str):
            return first
        start = folder / PRETRAINED if job.start is None else job.start(folder / PRETRAINED)
        run, stages = replace(run, model={"model": str(start)}), {PRETRAINED: first}
    _pass_over_broken(folder)
    write_json(folder / "run.json", run.to_json())
    if job.precision is not None and not (folder / PRECISION_FILE).is_file():
        write_json(folder / PRECISION_FILE, dict(job.precision))
    command = [sys.executable, str(SCRIPTS / job.script), "--recipe", str(folder / "run.json")]
    command += ["--output-dir", str(folder), "--resume"]
    with open(folder / "output.txt", "w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"}, check=False)
    if done.returncode:
        return f"{job.script} ended with status {done.returncode}; its last words are above, its folder is {folder}"
    found = {**json.loads((folder / "results.json").read_text(encoding="utf-8")), **stages}
    try:
        return found if job.probe is None else {**found, **job.probe(folder)}
    except ValueError as error:  # the other runs go on
        return f"the run is finished, and could not be scored: {error}; its folder is {folder}"


def _pass_over_broken(folder: Path) -> None:
    """Set aside the checkpoints of a run where none is whole, as a kill during the first one leaves it.

    Its script would refuse to go on from them, and the same command could never finish the run.
    """
    # Of a folder in use, where a whole checkpoint may be on its way, the script itself says so.
    with suppress(FolderInUseError), folders_released():
        claim_folder(folder)
        if saved_checkpoints(folder) and last_complete_checkpoint(folder) is None:
            aside = ", ".join(path.name for path in set_aside_later(folder, folder / "checkpoint-0"))
            logger.warning(f"no checkpoint in {folder} is whole: the run starts anew ({aside} are passed over)")
