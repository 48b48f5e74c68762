"""Runs of compare_mixers.py as results, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from hf_seqmix.training.results import Result, group_results
from hf_seqmix.training.run import Run

__all__ = ["results_of", "run_of"]

SPLITS = ("validation", "test")
BIN = ("train_count", "distance")


def results_of(run: Run, found: Mapping[str, Any], **shared: Any) -> list[Result]:
    """Return the results of a run.

    Args:
        run: what was trained.
        found: scores by split, the curve of the training loss, and numbers of the run.
        **shared: further fields of all results, such as the environment.
    """
    shared |= {"task": run.task, "model": run.model["name"], "seed": run.seed, "run": run}
    rate = {name: run.training[name] for name in ("learning_rate", "optim", "bf16") if name in run.training}
    numbers = {name: found[name] for name in ("num_parameters", "intermediate_size", "train_seconds")}
    results = group_results(numbers | {"train_loss": found["train_loss_curve"]}, setting=rate, **shared)
    for split in SPLITS:
        if split not in found:
            continue
        scores = {name: value for name, value in found[split].items() if name != "bins"}
        results += group_results(scores, setting=rate | {"split": split}, **shared)
        for entry in found[split].get("bins", ()):
            place = {name: "-".join("" if edge is None else str(edge) for edge in entry[name]) for name in BIN}
            scores = {name: value for name, value in entry.items() if name not in BIN}
            results += group_results(scores, setting=rate | {"split": split} | place, **shared)
    return results


def run_of(results: Sequence[Result]) -> dict[str, Any]:
    """Return what `results_of` made results of: scores by split, the curve of the training loss, and numbers."""
    run: dict[str, Any] = {"train_loss_curve": []}
    bins: dict[Any, dict[str, Any]] = {}
    for result in results:
        split = result.setting.get("split")
        if result.metric == "train_loss":
            run["train_loss_curve"].append([result.setting["step"], result.value])
        elif split is None:
            run[result.metric] = result.value
        elif "distance" in result.setting:
            texts = [str(result.setting[name]) for name in BIN]
            place = (split, *texts)
            if place not in bins:
                edges = [[int(edge) if edge else None for edge in text.split("-")] for text in texts]
                bins[place] = dict(zip(BIN, edges, strict=True))
                run.setdefault(str(split), {}).setdefault("bins", []).append(bins[place])
            bins[place][result.metric] = result.value
        else:
            run.setdefault(str(split), {})[result.metric] = result.value
    return run
