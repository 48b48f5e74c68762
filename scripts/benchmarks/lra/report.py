"""What the benchmark `lra` makes of finished runs: results, tables and plots, beside published figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.plots.results import plot_results
from hf_seqmix.training.results import Result, group_results
from hf_seqmix.training.tables import results_table

from ..jobs import PRETRAINED
from ..listops_operators import operator_results
from ..results import Report, select
from .sizes import TOEPLITZ

PUBLISHED: dict[str, dict[str, float]] = {
    # Moreno, Mei, Walters 2023 (arXiv 2305.09028), table 2
    "tnn": {"text": 86.39, "listops": 47.33, "retrieval": 89.40, "pathfinder": 73.89, "image": 77.84},
    "ski_tnn": {"text": 83.19, "listops": 45.31, "retrieval": 88.73, "pathfinder": 68.30, "image": 76.46},
    "fd_tnn": {"text": 85.00, "listops": 55.21, "retrieval": 90.26, "pathfinder": 69.45, "image": 84.12},
    # Tay et al. 2021 (arXiv 2011.04006), table 1, the Transformer
    "attention": {"text": 64.27, "listops": 36.37, "retrieval": 57.46, "pathfinder": 71.40, "image": 42.44},
}
"""Accuracies in percent, of the benchmark's own data at its full size."""

SOURCES = dict.fromkeys(TOEPLITZ, "Moreno, Mei, Walters 2023, table 2") | {"attention": "Tay et al. 2021, table 1"}

TABLE = {
    "num_parameters": "parameters:,.0f",
    "updates": "updates:,.0f",
    "accuracy": "test accuracy:.4f",
    "validation_accuracy": "validation:.4f",
    "steps_per_second": "updates/s:.3g",
    "update_seconds": "seconds of updates:,.0f",
    "peak_memory_mib": "peak MiB:,.0f",
}
PRETRAINING = {"pretrain_updates": "updates before:,.0f", "pretrain_seconds": "their seconds:,.0f"}
"""Columns of runs that begin with another stage, whose seconds are among those of all updates."""


def measure(found: Mapping[str, Any], shared: dict[str, Any]) -> list[Result]:
    """Return the results of a run's results.json."""
    test, memory = found["test"], found["train"]["peak_memory_bytes"]
    shared["setting"] = {"data": f"{shared['setting']['data']}; {test['examples']:,} test examples"}
    shared["environment"] |= {"memory_of": found["train"]["memory_of"]}
    measured = {
        "accuracy": test["accuracy"],
        "num_parameters": found["num_parameters"],
        "updates": found["num_updates"],
        "steps_per_second": found["train"]["steps_per_second"],
        "peak_memory_mib": memory / 2**20 if memory else None,
        "train_seconds": found["train"]["seconds"],
        "update_seconds": seconds_of_updates(found["num_updates"], found["train"]),
        "train_loss": found["train_loss_curve"],
    }
    if first := found.get(PRETRAINED):
        # What pretrain.py calls evaluation is finetune.py's validation.
        held_out = first.get("evaluation") or first.get("validation") or {}
        measured |= {
            "pretrain_updates": first["num_updates"],
            "pretrain_loss": held_out.get("token_loss", held_out.get("loss")),
            "pretrain_seconds": seconds_of_updates(first["num_updates"], first.get("train", first)),
        }
        own, before = measured["update_seconds"], measured["pretrain_seconds"]
        own = 0 if found["num_updates"] == 0 else own
        measured["update_seconds"] = None if own is None or before is None else own + before
    curve = [[point["step"], point["accuracy"]] for point in found["validation_curve"]]
    results = group_results(measured, **shared)
    results += group_results({"validation_accuracy": found["validation"]["accuracy"]}, **shared)
    results += group_results({"validation_accuracy": curve}, **shared)
    operators = dict(found.get("operators", {}))
    for place, scores in operators.pop("model", {}).items():
        results += operator_results(scores, place, **shared)
    for name, scores in test["baselines"].items():
        results += group_results({"accuracy": scores["accuracy"]}, **{**shared, "model": name, "kind": "baseline"})
    for name, of_rule in operators.items():
        for place, scores in of_rule.items():
            results += operator_results(scores, place, **{**shared, "model": name, "kind": "baseline"})
    return results


def seconds_of_updates(updates: int, measured: Mapping[str, Any]) -> float | None:
    """Return the seconds of the updates alone, by the clock of budgets; None where the speed is not known."""
    each = measured.get("seconds_per_update")
    return updates * each if each else None


def rules(results: Sequence[Result], baselines: Mapping[str, float]) -> list[Result]:
    """Return the accuracies of rules that a model of a task should beat, which need no run."""
    return [
        Result(first.task, name, "accuracy", value, size=first.size, kind="baseline", setting=first.setting)
        for first in select(results, metric="accuracy")[:1]
        for name, value in baselines.items()
    ]


def published(task: str, families: Sequence[str], results: Sequence[Result]) -> list[Result]:
    """Return what the papers give for a task at its full size."""
    return [
        Result(task, family, "accuracy", value / 100, size="full", kind="published", source=SOURCES[family])
        for family in families
        if results and (value := PUBLISHED.get(family, {}).get(task)) is not None
    ]


def describe(folder: Path, report: Report, tasks: Sequence[str]) -> list[str]:
    """Return the tables, and plot validation accuracy for each task."""
    parts = []
    for task in tasks:
        own = select(report.results, task=task)
        measured = select(own, metric="accuracy", kind="measured")
        if not measured:
            continue
        title = f"{task}, {measured[0].size}: {measured[0].setting['data']}"
        shown = [result for result in own if result.get("step") is None]
        columns = TABLE | (PRETRAINING if select(own, metric="pretrain_updates") else {})
        parts.append(f"{title}\n\n{results_table(shown, {'model': 'family'}, columns)}")
        operators = select(own, metric="operator_accuracy")
        if operators:
            parts.append(
                "Accuracy by operator: the outermost of a test expression, or the only one of a short expression\n\n"
                + results_table(operators, {"model": "family", "place": "operator is"}, over="operator")
            )
        curves = [
            result for result in own if result.get("step") is not None and result.metric == "validation_accuracy"
        ]
        levels = {r.model: r.value for r in select(own, metric="accuracy", kind="baseline") if r.value is not None}
        if curves:
            plot_results(
                curves,
                folder / f"{task}.png",
                x="step",
                y="validation_accuracy",
                references=levels,
                labels={"step": "optimizer steps"},
                title=title,
            )
    if parts and any(result.size not in ("full", "") for result in report.results):
        parts.append("Less and easier data than the benchmark's, and fewer updates: not its figures.")
    if parts:
        parts.append(
            "Published: of the benchmark's data at its full size (Moreno, Mei, Walters 2023, table 2; attention: Tay "
            "et al. 2021, table 1). Updates a second and memory are of runs one after another, not side by side."
        )
    return parts
