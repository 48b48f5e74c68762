"""What the benchmark `glue` shows of its runs: scores over seeds, what was chosen, and a plot beside the baselines."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.plots.results import plot_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.tables import results_table

from ..results import select


@dataclass(frozen=True)
class Column:
    """What a task is known by.

    Attributes:
        name: of the task, as papers write it.
        metrics: split, key of its scores, and name; the task's score is their mean, as on the benchmark's leaderboard.
    """

    name: str
    metrics: tuple[tuple[str, str, str], ...]


ACCURACY = (("test", "accuracy", "accuracy"),)
F1_AND_ACCURACY = (("test", "f1", "F1"), *ACCURACY)
COLUMNS = {
    "cola": Column("CoLA", (("test", "matthews_correlation", "Matthews"),)),
    "sst2": Column("SST-2", ACCURACY),
    "mrpc": Column("MRPC", F1_AND_ACCURACY),
    "stsb": Column("STS-B", (("test", "pearsonr", "Pearson"), ("test", "spearmanr", "Spearman"))),
    "rte": Column("RTE", ACCURACY),
    "qnli": Column("QNLI", ACCURACY),
    "qqp": Column("QQP", F1_AND_ACCURACY),
    "mnli": Column("MNLI", (("test", "accuracy", "matched"), ("test_mismatched", "accuracy", "mismatched"))),
    "wnli": Column("WNLI", ACCURACY),
}

NOTE = (
    "In percent, on the published development sets, scored once; means and standard deviations (±) over seeds. The "
    "average is over tasks, each the mean of its metrics; a correlation that is not defined counts as 0."
)
RUNS = {
    "held_out_score": "held-out score:.4f",
    "held_out_examples": "held out:,.0f",
    "train_examples": "training examples:,.0f",
    "test_examples": "dev examples:,.0f",
    "updates": "updates:,.0f",
    "num_parameters": "parameters:,.0f",
}


def task_scores(task: str, splits: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the metrics of a task and `score`, their mean, where an undefined metric counts as 0."""
    found: dict[str, float | None] = {}
    for split, key, label in COLUMNS[task].metrics:
        value = splits.get(split, {}).get(key)
        found[label] = value if value is not None and math.isfinite(value) else None
    return {**found, "score": statistics.mean(value or 0.0 for value in found.values())}


def describe(folder: Path, results: Sequence[Result], tasks: Sequence[str]) -> list[str]:
    """Return the tables, tasks as columns and then the choices, and plot the scores."""
    measured = [result for result in results if result.kind == "measured"]
    if not measured:
        return []
    results = name_baselines(results)
    found = [task for task in tasks if any(result.task == task for result in measured)]
    headers = {
        (task, label): f"{COLUMNS[task].name} {label}" for task in found for _, _, label in COLUMNS[task].metrics
    }
    shown = [
        per_cent(result, headers[result.task, result.metric])
        for result in results
        if (result.task, result.metric) in headers
    ]
    shown += averages(results, found)
    size = measured[0].size
    parts = [
        f"GLUE, {size}",
        results_table(shown, columns={h: f"{h}:.1f" for h in [*headers.values(), "average"]}),
        NOTE,
    ]
    if size != "full":
        parts.append("Fewer examples than the benchmark's, and fewer updates: not its figures.")
    choices = [result for result in measured if result.get("step") is None]
    parts.append(results_table(choices, ("task", "model", "learning_rate"), RUNS))
    scores = select(results, metric="score", task=tuple(found))
    plot_results(
        [replace(result, task=COLUMNS[result.task].name, value=100 * (result.value or 0.0)) for result in scores],
        folder / "scores.png",
        x="task",
        y="score",
        labels={"score": "score on the development set, percent"},
        title=f"GLUE, {size}; means over seeds",
    )
    return parts


def name_baselines(results: Sequence[Result]) -> list[Result]:
    """Return the results with each baseline once, or once for each model where models read other parts of texts."""
    values: dict[str, dict[Any, set[float | None]]] = {}
    for result in results:
        if result.kind == "baseline":
            values.setdefault(result.model, {}).setdefault(_place(result), set()).add(result.value)
    several = {name for name, of in values.items() if any(len(found) > 1 for found in of.values())}
    named: dict[Any, Result] = {}
    for number, result in enumerate(results):
        if result.kind != "baseline" or result.model not in several:
            named[(result.model, _place(result)) if result.kind == "baseline" else number] = result
            continue
        own = replace(result, model=f"{result.model} of what {result.get('read_by')} reads")
        named[own.model, _place(result)] = own
    return list(named.values())


def _place(result: Result) -> tuple[Any, ...]:
    return result.task, result.metric, result.seed, result.get("data")


def per_cent(result: Result, metric: str) -> Result:
    """Return the result as the table shows it: in percent, the task in the name of the metric."""
    value = None if result.value is None else 100 * result.value
    return replace(result, task="GLUE", size="", metric=metric, value=value, setting={})


def averages(results: Sequence[Result], tasks: Sequence[str]) -> list[Result]:
    """Return the mean score of every model and seed that has a score in all tasks."""
    scores = select(results, metric="score", task=tuple(tasks))
    found = []
    for model, seed in dict.fromkeys((result.model, result.seed) for result in scores):
        own = {result.task: result for result in select(scores, model=model, seed=seed)}
        if len(own) == len(tasks):
            mean = statistics.mean(result.value or 0.0 for result in own.values())
            first = next(iter(own.values()))
            found.append(per_cent(replace(first, value=mean), "average"))
    return found
