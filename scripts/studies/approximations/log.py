"""What the experiments of approximation.py share: training that a results file resumes, and settings on the line."""

import argparse
import dataclasses
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from study_models import is_kept, keep_model
from torch import nn
from tqdm import tqdm

from hf_seqmix.analysis.rates import Target, TokenRegressor, TrainedModel, TrainSettings, train_on_target
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.environment import environment_of, portable_command
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Kind, Result
from hf_seqmix.training.run import Run

__all__ = ["Log", "logger", "median", "settings_of", "shared_arguments", "unfinished", "values"]

SETTINGS = {
    "max_steps": "updates of a run, at most",
    "rows": "training rows of a run",
    "test_rows": "held-out rows, whose error is reported",
    "batch_size": "rows of an update",
    "learning_rate": "learning rate of Adam at first",
    "patience": "hundreds of updates without a fall before the rate is divided by 10, or training ends",
}
"""Fields of `TrainSettings` on the command line."""

logger = logging.getLogger("approximation")


def shared_arguments() -> argparse.ArgumentParser:
    """Return the arguments that all experiments have, as a parent parser."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--output-dir", type=Path, required=True, help="where results, table and plot go")
    shared.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds, a training each; figures are medians over them"
    )
    for name, meaning in SETTINGS.items():
        default = getattr(TrainSettings, name)
        shared.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=meaning)
    return shared


def settings_of(arguments: argparse.Namespace) -> TrainSettings:
    """Return how models are trained.

    Raises:
        ValueError: a number is out of range.
    """
    return TrainSettings(**{name: getattr(arguments, name) for name in SETTINGS})


class Log:
    """Trains models that the results file does not have yet, and shows how far training is."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.settings = settings_of(arguments)
        prepare_run_folder(arguments.output_dir, resume=True)
        self.file = ResultFile(arguments.output_dir / f"{arguments.experiment}.jsonl")
        self.shared: dict[str, Any] = {"command": portable_command("approximation"), "environment": environment_of()}

    def train(
        self,
        make: Callable[[], nn.Module],
        target: Target,
        model: Mapping[str, Any],
        data: Mapping[str, Any],
        folder: Callable[[int], Path] | None = None,
    ) -> list[Result]:
        """Return the errors of a model on a target: read, or measured for the seeds that are missing and written.

        Args:
            make: makes the model.
            target: what is learned.
            model: its name and fields.
            data: what tells the target from others.
            folder: where the `TokenRegressor` of a seed is kept; what is not there is trained again for its sake.
        """
        run = self._run(model, data, dataclasses.asdict(self.settings))
        runs = {seed: dataclasses.replace(run, seed=seed) for seed in self.arguments.seeds}
        missing = [
            seed
            for seed, each in runs.items()
            if self.file.get(each) is None or (folder is not None and not is_kept(folder(seed), each))
        ]
        if missing:
            label = ", ".join(
                str(value) for value in (*model.values(), *data.values()) if not isinstance(value, Mapping)
            )
            for trained in self._trained(make, target, label, missing):
                if folder is not None:  # before its results, with which it is not trained again
                    assert isinstance(trained.model, TokenRegressor)
                    keep_model(trained.model, folder(trained.seed), runs[trained.seed])
                self.file.append(runs[trained.seed], list(self._results(trained, runs[trained.seed])))
        return [result for each in runs.values() for result in self.file.get(each) or []]

    def note(
        self, model: str, value: float, data: Mapping[str, Any], kind: Kind = "measured", seed: int | None = None
    ) -> float:
        """Write an error that nothing was trained for, unless the file has it, and return the error."""
        run = dataclasses.replace(self._run({"name": model}, data, {}), seed=seed or 0)
        found = self.file.get(run)
        if found is None:
            found = [self._result(run, "test_error", value, seed, kind)]
            self.file.append(run, found)
        assert found[0].value is not None
        return found[0].value

    def _run(self, model: Mapping[str, Any], data: Mapping[str, Any], training: Mapping[str, Any]) -> Run:
        return Run(f"approximation-{self.arguments.experiment}", model, data, training)

    def _trained(
        self, make: Callable[[], nn.Module], target: Target, label: str, seeds: Sequence[int]
    ) -> list[TrainedModel]:
        with tqdm(total=self.settings.max_steps, desc=label, unit=" updates", leave=False) as bar:

            def show(_: str, step: int, errors: list[float]) -> None:
                bar.update(step - bar.n)
                bar.set_postfix_str(f"{min(errors):.1e} to {max(errors):.1e}")

            trained = train_on_target(make, target, self.settings, seeds, show)
        logger.info(f"{label}: {', '.join(f'{each.test_error:.2e}' for each in trained)}")
        return trained

    def _results(self, trained: TrainedModel, run: Run) -> Iterator[Result]:
        figures = {"test_error": trained.test_error, "train_error": trained.train_error, "updates": trained.steps}
        for metric, value in (figures | {"has_stalled": float(trained.has_stalled)}).items():
            yield self._result(run, metric, value, trained.seed)

    def _result(self, run: Run, metric: str, value: float, seed: int | None, kind: Kind = "measured") -> Result:
        model, data = dict(run.model), dict(run.data)
        name = model.pop("name")
        setting = data | {key: entry for key, entry in model.items() if not isinstance(entry, Mapping)}
        return Result(run.task, name, metric, value, seed, kind=kind, setting=setting, run=run, **self.shared)


def values(results: Sequence[Result], metric: str = "test_error") -> list[float]:
    """Return the values of a metric, one a seed."""
    return [result.value for result in results if result.metric == metric and result.value is not None]


def unfinished(results: Sequence[Result]) -> int:
    """Return of how many seeds the training ended by the limit of updates, with an error that may still fall."""
    return values(results, "has_stalled").count(0.0)


def median(results: Sequence[Result], metric: str = "test_error") -> float | None:
    """Return the median over all seeds, where one that diverged counts as infinite; None without results."""
    errors = [math.inf if r.value is None else r.value for r in results if r.metric == metric]
    return statistics.median(errors) if errors else None
