"""Finished runs of the benchmark `lra`, as its results say: accuracies of each task, and the runs of its models."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run

from ..lra_tasks import NUM_LABELS
from ..results import select
from .models import same_setting

__all__ = ["FinishedTask", "read_tasks"]


@dataclass
class FinishedTask:
    """What results say of one task.

    Attributes:
        task, size, data: as the benchmark `lra` names them.
        accuracies: measured, one a family and seed, each with its run.
        parameters: family -> their number when it was trained.
        baselines: accuracies of rules that a model should beat.
    """

    task: str
    size: str
    data: str
    accuracies: list[Result]
    parameters: dict[str, float | None]
    baselines: list[Result]

    @property
    def title(self) -> str:
        """Task, size and data."""
        return f"{self.task}, {self.size}: {self.data}"

    def runs(self) -> dict[str, Run]:
        """Return the run of each family, in the order of the results, the same for all seeds."""
        return {result.model: same_setting(result.run) for result in self.accuracies if result.run is not None}


def read_tasks(paths: Sequence[Path], families: Sequence[str] | None = None) -> list[FinishedTask]:
    """Return what files say of each task, runs of several files together where task, size and data are the same.

    Raises:
        ValueError: a file is not of the benchmark `lra`, files contradict each other, or runs of a family differ in
            more than their seed.
    """
    results = [result for result in read_results(paths) if result.task in NUM_LABELS]
    accuracies = [r for r in select(results, metric="accuracy", kind="measured") if r.run is not None]
    if families is not None:
        known = sorted({result.model for result in accuracies})
        if unknown := [name for name in families if accuracies and name not in known]:
            raise ValueError(f"--families names {', '.join(unknown)}; the files have {', '.join(known)}.")
        accuracies = [result for result in accuracies if result.model in families]
    if not accuracies:
        raise ValueError(
            f"there is no accuracy of a run of lra in {', '.join(map(str, paths))}, or none of --families; give "
            "results.jsonl of the benchmark lra."
        )
    found = []
    for task, size, data in dict.fromkeys((r.task, r.size, r.get("data")) for r in accuracies):
        of = {"task": task, "size": size, "data": data}
        own = select(accuracies, **of)
        for family in dict.fromkeys(result.model for result in own):
            settings = {same_setting(r.run).digest for r in own if r.model == family and r.run is not None}
            if len(settings) > 1:
                raise ValueError(
                    f"the runs of {family} on {task} differ in more than their seed: give results of one setting."
                )
        parameters = {r.model: r.value for r in select(results, metric="num_parameters", kind="measured", **of)}
        chance = Result(task, "chance", "accuracy", 1 / NUM_LABELS[task], size=size, kind="baseline")
        baselines = [*select(results, metric="accuracy", kind="baseline", **of), chance]
        found.append(FinishedTask(task, size, str(data), own, parameters, baselines))
    return found
