"""Tables and the plot of the benchmark `recipes`."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_seqmix.analysis.result_plots import plot_results
from hf_seqmix.training.results import Result, summarize
from hf_seqmix.training.tables import results_table

from .benchmark_training import select

LONGER = 4
"""Times the length of training at which a model is scored on the test split, too."""

TABLE = {
    "bits_per_byte": "bits per byte:.3f",
    "test_bits_per_byte": "test split:.3f",
    "test_bits_per_byte_longer": f"at {LONGER} times the length:.3f",
    "updates": "updates:,.0f",
    "train_seconds": "seconds:,.0f",
    "num_parameters": "parameters:,.0f",
}


def best_factor(results: Sequence[Result], model: str, variant: str) -> float | None:
    """Return the factor of the rates whose model has the fewest bits per byte; None where none was measured."""
    own = [
        result
        for result in select(results, model=model, variant=variant, metric="bits_per_byte", seconds=None)
        if result.value is not None and not math.isnan(result.value)
    ]
    best = min(own, key=lambda result: result.value or math.inf).setting["rate_factor"] if own else None
    return best if isinstance(best, (int, float)) else None


def describe(folder: Path, results: Sequence[Result], best: Mapping[tuple[str, str], float | None]) -> list[str]:
    """Return the tables, and plot bits per byte over seconds."""
    at_best = [
        result
        for result in results
        if result.setting["rate_factor"] == best.get((result.model, str(result.setting["variant"])))
    ]
    if not at_best:
        return []
    curves = [
        dataclasses.replace(result, model=f"{result.model}, {result.setting['variant']}")
        for result in at_best
        if result.get("seconds") is not None
    ]
    if len({result.model for result in curves}) <= 8:
        plot_results(
            at_mean_seconds(curves),
            folder / "bits_per_byte.png",
            x="seconds",
            y="bits_per_byte",
            labels={"seconds": "seconds of training", "bits_per_byte": "bits per byte"},
        )
    final = [result for result in at_best if result.get("seconds") is None]
    rows = {"model": "recipe", "variant": "variant", "rate_factor": "rates x"}
    return [
        "Best rate of each: bits per byte of the validation text in equal seconds, and of the test split.\n\n"
        + results_table(final, rows, TABLE),
        "Every rate, first seed.\n\n" + rates_table([r for r in results if r.get("seconds") is None]),
    ]


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
    """Return bits per byte by rate, of the seed that tried all of them."""
    first = results[0].seed
    own = [s.result for s in summarize(select(results, metric="bits_per_byte", seed=first))]
    columns = {factor: f"x {factor:g}:.3f" for factor in sorted({float(r.setting["rate_factor"] or 0) for r in own})}
    rows = [
        dataclasses.replace(r, setting={**r.setting, "rate_factor": float(r.setting["rate_factor"] or 0)}) for r in own
    ]
    return results_table(rows, {"model": "recipe", "variant": "variant"}, columns, over="rate_factor")
