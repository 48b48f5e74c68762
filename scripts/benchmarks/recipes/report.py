"""Tables and the plot of the benchmark `recipes`."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.plots.results import plot_results
from hf_seqmix.training.results import Result, summarize
from hf_seqmix.training.tables import markdown_table, results_table

from ..language_results import CHOSEN_BY
from ..results import select

LONGER = 4
"""Times the length of training at which a model is scored on the test split, too."""

PLAIN = "as the recipe"
"""Variant of a recipe without a change."""

DIFFERENCE = {"mean": "difference:+.3f", "spread": "±:.3f", "seeds": "seeds"}

TABLE = {
    "bits_per_byte": "bits per byte:.3f",
    "token_loss": "nats a token:.3f",
    "test_bits_per_byte": "test split:.3f",
    "test_bits_per_byte_longer": f"at {LONGER} times the length:.3f",
    "updates": "updates:,.0f",
    "train_seconds": "seconds:,.0f",
    "num_parameters": "parameters:,.0f",
}


def best_factor(results: Sequence[Result], model: str, variant: str) -> float | None:
    """Return the factor of the rates whose model has the least loss; None where none was measured."""
    own = [
        result
        for result in select(results, model=model, variant=variant, metric=tuple(CHOSEN_BY), seconds=None)
        if result.value is not None and not math.isnan(result.value)
    ]
    best = min(own, key=lambda result: result.value or math.inf).setting["rate_factor"] if own else None
    return best if isinstance(best, (int, float)) else None


def describe(folder: Path, results: Sequence[Result], best: Mapping[tuple[str, str], float | None]) -> list[str]:
    """Return the tables of causal models, then those of masked ones, and plot the loss of each over seconds."""
    at_best = [
        result
        for result in results
        if result.setting["rate_factor"] == best.get((result.model, str(result.setting["variant"])))
    ]
    parts = []
    for metric, name in CHOSEN_BY.items():
        models = tuple({result.model for result in select(at_best, metric=metric)})
        if models:
            parts += _describe(folder, metric, name, select(results, model=models), select(at_best, model=models))
    return parts


def _describe(folder: Path, metric: str, name: str, tried: Sequence[Result], at_best: Sequence[Result]) -> list[str]:
    curves = [
        dataclasses.replace(result, model=f"{result.model}, {result.setting['variant']}")
        for result in at_best
        if result.get("seconds") is not None
    ]
    if len({result.model for result in curves}) <= 8:
        plot_results(
            at_mean_seconds(curves),
            folder / f"{metric}.png",
            x="seconds",
            y=metric,
            labels={"seconds": "seconds of training", metric: name},
        )
    final = select(at_best, seconds=None)
    rows = {"model": "recipe", "variant": "variant", "rate_factor": "rates x"}
    columns = {column: header for column, header in TABLE.items() if select(final, metric=column)}
    parts = [
        f"Best rate of each: {name} of the validation text in equal seconds, and what was measured besides.\n\n"
        + results_table(final, rows, columns),
        f"Every rate, first seed: {name}.\n\n" + rates_table(select(tried, metric=metric, seconds=None)),
    ]
    worth = differences(select(final, metric=metric))
    if worth:
        table = markdown_table(worth, {"model": "recipe", "variant": "variant", **DIFFERENCE})
        parts.append(
            f"What a variant changes: {name} less those of the recipe as it is, on the same seeds, both at their best "
            f"rates; below zero the variant is better.\n\n{table}"
        )
    return parts


def differences(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a row a variant: mean and standard deviation, over seeds, of its loss less that of the plain recipe.

    Args:
        results: of one metric, each model and variant at one rate.
    """
    losses: dict[tuple[str, str], dict[int | None, float]] = {}
    for result in results:
        if result.value is not None:
            losses.setdefault((result.model, str(result.setting["variant"])), {})[result.seed] = result.value
    rows = []
    for (model, variant), of_seed in losses.items():
        plain = losses.get((model, PLAIN), {})
        changes = [loss - plain[seed] for seed, loss in of_seed.items() if seed in plain]
        if variant != PLAIN and changes:
            spread = statistics.stdev(changes) if len(changes) > 1 else None
            mean = statistics.mean(changes)
            rows.append({"model": model, "variant": variant, "mean": mean, "spread": spread, "seeds": len(changes)})
    return rows


def at_mean_seconds(curves: Sequence[Result]) -> list[Result]:
    """Return points of curves whose `seconds` are the mean over seeds of each point, so that seeds align."""
    seeds: dict[str, dict[int | None, list[Result]]] = {}
    for result in sorted(curves, key=lambda result: float(result.setting["seconds"] or 0)):
        seeds.setdefault(result.model, {}).setdefault(result.seed, []).append(result)
    aligned = []
    for of_seed in seeds.values():
        for place in range(max(map(len, of_seed.values()))):
            points = [curve[place] for curve in of_seed.values() if place < len(curve)]
            mean = statistics.mean(float(point.setting["seconds"] or 0) for point in points)
            aligned += [dataclasses.replace(point, setting={"seconds": mean}) for point in points]
    return aligned


def rates_table(results: Sequence[Result]) -> str:
    """Return the losses of one metric by rate, of the seed that tried all of them."""
    first = results[0].seed
    own = [s.result for s in summarize(select(results, seed=first))]
    columns = {factor: f"x {factor:g}:.3f" for factor in sorted({float(r.setting["rate_factor"] or 0) for r in own})}
    rows = [
        dataclasses.replace(r, setting={**r.setting, "rate_factor": float(r.setting["rate_factor"] or 0)}) for r in own
    ]
    return results_table(rows, {"model": "recipe", "variant": "variant"}, columns, over="rate_factor")
