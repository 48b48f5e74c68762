"""Tables and verdict of degree_experiment.py."""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from scipy.stats import t

from hf_seqmix._files import write_text
from hf_seqmix.training.results import Result, group_results, with_run
from hf_seqmix.training.run import Run
from hf_seqmix.training.tables import markdown_table

from .nets import WHOLE, Layers
from .plots import KINDS, Rows, plot_curves, plot_equal, plot_errors
from .training import FLOOR, clipped

__all__ = ["compare", "results_of", "run_of", "write_report"]


_NUMBERS = ("projections", "with_overhead", "separation_rank", "task_rank", "bound", "train_seconds", "rate")

LAYERS = tuple(field.name for field in dataclasses.fields(Layers))
"""What keys have where it is not the default."""


def results_of(key: Mapping[str, Any], run: Mapping[str, Any], **origin: Any) -> list[Result]:
    """Return the results of an architecture at a task: the error of each seed, its curves, and the sweep of the rate.

    Args:
        key: architecture, task and training.
        run: what `Experiment.run` returns.
        **origin: command and environment of the run.
    """
    name = f"degree {key['kind']}"
    shared: dict[str, Any] = {"task": key["task"], "model": name, **origin}
    training = {field: key[field] for field in ("learning_rates", "sweep_seeds", "seeds", "steps", "batch_size")}
    fields = {field: key[field] for field in ("form", "kind", "degrees", "width", "affine", "overhead")}
    changed = {field: key[field] for field in LAYERS if field in key}
    whole = Run(
        key["task"],
        model={"name": name, "depth": run["depth"], **fields, **changed},
        data={field: key[field] for field in ("num_tokens", "token_width")},
        training=training | {"learning_rate": run["rate"]},
    )
    net = {"form": key["form"], "depth": run["depth"], "affine": key["affine"], "overhead": key["overhead"]}
    net |= changed
    results = group_results({name: run[name] for name in _NUMBERS}, setting=net, **shared)
    for rate, error in run["sweep"]:
        results.append(Result(metric="sweep_error", value=error, setting=net | {"learning_rate": rate}, **shared))
    for seed, error, curve in zip(key["seeds"], run["errors"], run["curves"], strict=True):
        points = list(zip(run["curve_steps"], curve, strict=True))
        results += group_results({"error": error, "validation_error": points}, setting=net, seed=seed, **shared)
    return with_run(results, whole)


def run_of(results: Sequence[Result]) -> dict[str, Any]:
    """Return the run that `results_of` made results of."""
    run: dict[str, Any] = {result.metric: result.value for result in results if result.metric in _NUMBERS}
    run |= {"depth": results[0].setting["depth"], "errors": [], "sweep": []}
    curves: dict[int | None, list[tuple[Any, float | None]]] = {}
    for result in results:
        if result.metric == "error":
            run["errors"].append(result.value)
        elif result.metric == "sweep_error":
            run["sweep"].append([result.setting["learning_rate"], result.value])
        elif result.metric == "validation_error":
            curves.setdefault(result.seed, []).append((result.setting["step"], result.value))
    run["curves"] = [[value for _, value in curve] for curve in curves.values()]
    run["curve_steps"] = [step for step, _ in next(iter(curves.values()))]
    rates = [rate for rate, _ in run["sweep"]]
    return run | {"best_at_edge": run["rate"] in (min(rates), max(rates))}


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return log10 error of the first less the second: mean over seeds, 95 % interval (paired t), and a word.

    The interval is of the seeds; that the learning rates were chosen on few seeds is not in it.
    """
    pairs = zip(first["errors"], second["errors"], strict=True)
    differences = [math.log10(clipped(a)) - math.log10(clipped(b)) for a, b in pairs]
    count, mean = len(differences), statistics.mean(differences)
    half = math.inf
    if count > 1:
        half = float(t.ppf(0.975, count - 1)) * statistics.stdev(differences) / math.sqrt(count)
    word = "undecided"
    if abs(mean) > half:
        word = f"{first['kind'] if mean < 0 else second['kind']} is better"
    return {
        "first": first["kind"],
        "second": second["kind"],
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "seeds": count,
        "verdict": word,
    }


def write_report(folder: Path, arguments: argparse.Namespace, results: Rows) -> dict[str, Any]:
    """Write table.md and the plots from the runs there are, and return what the table shows."""
    n = arguments.width**2
    order = {kind: place for place, kind in enumerate(KINDS)}
    results = sorted(
        results,
        key=lambda row: (
            arguments.tasks.index(row["task"]),
            row["affine"],
            row["overhead"],
            order[row["kind"]],
            row["depth"],
        ),
    )
    rows = [_row(result, n) for result in results]
    comparisons = [
        comparison for budget in ("projections", "with_overhead") for comparison in _pairs(results, budget, n)
    ]
    settings = {name: value for name, value in vars(arguments).items() if name not in ("output_dir", "report_only")}
    report = {"settings": settings, "results": rows, "comparisons": comparisons}
    title = _title(arguments, results)
    write_text(folder / "table.md", _markdown(arguments, title, rows, comparisons))
    plot_errors(results, n, folder / "errors.png", title)
    plot_equal(results, arguments.budget * n, folder / "equal.png", title)
    plot_curves(results, arguments.budget * n, folder / "curves.png", title)
    return report


def _row(result: Mapping[str, Any], n: int) -> dict[str, Any]:
    errors = [clipped(error) for error in result["errors"]]
    reached = [_steps_to(curve, result["curve_steps"], 0.1) for curve in result["curves"]]
    solved = sum(error < 0.01 for error in errors)
    middle = statistics.median(reached)
    return {
        "task": result["task"],
        "projections_are": "affine" if result["affine"] else "linear",
        "output_map": bool(result["overhead"]),
        "kind": result["kind"],
        "depth": result["depth"],
        "width": result["width"],
        "matrices": result["projections"] / n,
        "matrices_with_overhead": result["with_overhead"] / n,
        "rate": result["rate"],
        "best_at_edge": result["best_at_edge"],
        "median": statistics.median(errors),
        "low": min(errors),
        "high": max(errors),
        "geometric_mean": math.exp(statistics.mean(map(math.log, errors))),
        "solved": solved,
        "diverged": sum(error is None for error in result["errors"]),
        "seeds": len(errors),
        "steps_to_tenth": middle if math.isfinite(middle) else None,
        "separation_rank": result["separation_rank"],
        "task_rank": result["task_rank"],
        "bound": result["bound"],
        "errors": result["errors"],
        "sweep": result["sweep"],
        "train_seconds": result["train_seconds"],
    }


def _steps_to(curve: Sequence[float | None], steps: Sequence[int], error: float) -> float:
    return next(
        (step for step, value in zip(steps, curve, strict=True) if value is not None and value < error), math.inf
    )


def _pairs(results: Rows, budget: str, n: int) -> list[dict[str, Any]]:
    """Return comparisons of nets of different degrees and equal size, in one accounting."""
    found = []
    for first, second in combinations(results, 2):
        same = all(first[name] == second[name] for name in ("task", "affine", "overhead"))
        if not same or first["kind"] == second["kind"] or first["kind"] not in WHOLE:
            continue
        if budget == "with_overhead" and not first["overhead"]:
            continue
        fractional = second["kind"] not in WHOLE
        if fractional and budget == "with_overhead":
            continue
        if first[budget] == second[budget] or (fractional and abs(first[budget] / second[budget] - 1) < 0.08):
            found.append(
                {
                    "task": first["task"],
                    "projections_are": "affine" if first["affine"] else "linear",
                    "output_map": bool(first["overhead"]),
                    "accounting": "d" if budget == "projections" else "d + 1",
                    "matrices": first[budget] / n,
                    "depths": f"{first['depth']}, {second['depth']}",
                }
                | compare(first, second)
            )
    return found


def _title(arguments: argparse.Namespace, results: Rows) -> str:
    shapes = sorted({(row["num_tokens"], row["token_width"]) for row in results}, reverse=True)
    inputs = " and ".join(f"{tokens} tokens of {width} number{'s' * (width > 1)}" for tokens, width in shapes)
    return (
        f"{arguments.form.capitalize()} nets, {inputs},\n"
        f"width {arguments.width}, {arguments.steps} updates, {len(arguments.seeds)} seeds,"
        f" norms {arguments.norm_type}, activation {arguments.activation}, heads {arguments.num_heads}"
    )


def _markdown(arguments: argparse.Namespace, title: str, rows: Rows, comparisons: Rows) -> str:
    columns = {
        "task": "task",
        "projections_are": "projections",
        "output_map": "output map",
        "kind": "degree",
        "depth": "depth",
        "matrices": "matrices:.4g",
        "matrices_with_overhead": "with output maps:.4g",
        "rate_": "rate",
        "median": "median error:.2e",
        "low": "least:.1e",
        "high": "largest:.1e",
        "solved_": "below 0.01",
        "steps_to_tenth": "updates to 0.1:.0f",
        "rank_": "separation rank",
        "bound": "lower bound:.3f",
    }
    cells = []
    for row in rows:
        rank = row["separation_rank"]
        more = "" if rank is None else f"{rank}" if rank <= row["task_rank"] else f"> {row['task_rank']}"
        cells.append(
            dict(row)
            | {
                "output_map": "yes" if row["output_map"] else "no",
                "rate_": f"{row['rate']:g}" + (" (edge)" if row["best_at_edge"] else ""),
                "solved_": f"{row['solved']} of {row['seeds']}",
                "rank_": more or "-",
            }
        )
    pairs = [
        dict(pair)
        | {
            "output_map": "yes" if pair["output_map"] else "no",
            "pair": f"{pair['first']} and {pair['second']}",
            "difference": f"{pair['mean']:+.2f} ({pair['low']:+.2f} to {pair['high']:+.2f})",
        }
        for pair in comparisons
    ]
    pair_columns = {
        "task": "task",
        "projections_are": "projections",
        "output_map": "output map",
        "accounting": "accounting",
        "matrices": "matrices:.4g",
        "pair": "degrees",
        "depths": "depths",
        "difference": "log10 error, first less second",
        "verdict": "verdict",
    }
    seeds = ", ".join(map(str, arguments.seeds))
    blocks = ""
    if arguments.num_heads > 1 and arguments.form == "fully-connected":
        blocks = f", were they whole; their {arguments.num_heads} blocks have 1/{arguments.num_heads} of these"
    return "\n".join(
        [
            f"{' '.join(title.split())}, {arguments.batch_size} rows an update; residual.",
            f"Errors are mean squares over the target's, on 4096 test rows, over seeds {seeds}, at the learning rate "
            f"of least geometric mean error on seeds {', '.join(map(str, arguments.sweep_seeds))}; (edge): no higher "
            "or no lower rate was tried. Matrices are parameters of projections over width^2"
            f"{blocks}. Updates to 0.1: median over seeds, - if fewer than half came so far. The separation rank is "
            "exact, of generic weights; the lower bound follows from it and from the degree.",
            "",
            markdown_table(cells, columns),
            "",
            "Equal sizes: mean over seeds with the 95 % interval of paired differences; errors above 1 count as 1, "
            f"below {FLOOR:g} as that. Fractional degrees are equal within 8 %.",
            "",
            markdown_table(pairs, pair_columns) if pairs else "No two nets of equal size yet.",
            "",
        ]
    )
