"""Accuracies beside what was measured of speed and memory: results, table and plots."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

from hf_seqmix.analysis.plots.results import plot_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.tables import results_table

from ..results import select
from .finished import FinishedTask

__all__ = ["describe", "join"]

COLUMNS = {
    "num_parameters": "parameters:,.0f",
    "accuracy": "test accuracy:.4f",
    "ms": "ms/update:.1f",
    "times_as_fast": "times as fast:.2f",
    "peak_memory_mib": "peak MiB:,.1f",
}
LABELS = {
    "updates_per_second": "updates a second",
    "accuracy": "test accuracy",
    "ms": "ms an update",
    "peak_memory_mib": "peak memory, MiB",
    "length": "length of the inputs",
}


def join(found: FinishedTask, measured: Sequence[Result], reference: str) -> list[Result]:
    """Return what was measured, how fast that is against the reference, and the accuracies at the same settings."""
    base = {r.get("length"): r.value for r in measured if (r.model, r.metric) == (reference, "ms")}
    results = list(measured)
    for result in select(measured, metric="ms"):
        if result.value is not None:
            derived = {"updates_per_second": 1e3 / result.value}
            reference_ms = base.get(result.get("length"))
            if reference_ms is not None:
                derived["times_as_fast"] = reference_ms / result.value
            results += [dataclasses.replace(result, metric=name, value=value) for name, value in derived.items()]
        own = select(found.accuracies, model=result.model)
        results += [dataclasses.replace(accuracy, setting=result.setting) for accuracy in own]
    return results


def describe(folder: Path, found: FinishedTask, results: Sequence[Result], stem: str) -> list[str]:
    """Return the table of a task, and plot accuracy over speed, and with several lengths costs over the length.

    Args:
        folder: of the plots.
        found: the task.
        results: of all tasks.
        stem: of the plots' names.
    """
    own = [r for r in results if (r.task, r.size) == (found.task, found.size) and r.get("data") in (found.data, None)]
    if not own:
        return []
    rows = {"model": "family", "length": "length", "batch_size": "batch", "dtype": "dtype"}
    measured = [result for result in own if result.kind == "measured"]
    done = [r for r in select(measured, metric="updates_per_second") if r.value]
    lengths = list(dict.fromkeys(result.get("length") for result in done))
    levels = {
        name: statistics.mean(r.value or 0.0 for r in select(found.baselines, model=name))
        for name in dict.fromkeys(result.model for result in found.baselines)
    }
    if done:
        plot_results(
            measured,
            folder / f"{stem}.png",
            x="updates_per_second",
            y="accuracy",
            area="peak_memory_mib",
            panels="length" if len(lengths) > 1 else None,
            references=levels,
            labels=LABELS,
            title=f"{found.title}; batch {done[0].get('batch_size')}; area: peak memory of an update",
        )
    if len(lengths) > 1:
        plot_results(
            measured,
            folder / f"{stem}-lengths.png",
            x="length",
            y=("ms", "peak_memory_mib"),
            log_x=True,
            log_y=True,
            labels=LABELS,
            title=found.title,
        )
    return [f"{found.title}\n\n{results_table(own, rows, COLUMNS)}"]
