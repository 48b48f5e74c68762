"""The table and the plots of a comparison of compare_mixers.py."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hf_seqmix._files import write_text
from hf_seqmix.training.tables import markdown_table

from .bins import gap_of_bins, mean_of_bins
from .plots import plot_bins, plot_comparison
from .runs import Comparison

__all__ = ["add_differences", "add_gaps", "summary_of", "write_report"]


def summary_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row for each model: best rate, and each figure's mean, sample standard deviation, number of seeds."""
    seeds = comparison.arguments.seeds
    rows = []
    for model in comparison.arguments.models:
        rates = comparison.trained_rates(model)
        best = comparison.best(model, rates)
        if best is None:
            continue
        runs = {seed: run for seed in seeds if (run := comparison.known(model, best, seed))}
        row: dict[str, Any] = {
            "model": model,
            "num_parameters": runs[seeds[0]]["num_parameters"],
            "intermediate_size": comparison.configs[model].intermediate_size,
            "learning_rate": best,
            "best_at_edge": best in (rates[0], rates[-1]),
            "num_seeds": len(runs),
            "sweep": [[rate, run["validation"]] for rate in rates if (run := comparison.known(model, rate, seeds[0]))],
            "train_seconds": statistics.median(run["train_seconds"] for run in runs.values()),
        }
        for split in comparison.task.evaluation:
            for metric in comparison.task.kind.metrics:
                row[f"{split}_{metric}"] = spread({seed: run[split][metric] for seed, run in runs.items()})
        bins = {seed: run["test"]["bins"] for seed, run in runs.items() if "bins" in run["test"]}
        if bins and comparison.task.kind.is_text:
            row["pairs"] = bins
        elif bins:
            row["test_bins"] = mean_of_bins(list(bins.values()))
        rows.append(row)
    return rows


def spread(values: Mapping[int, float | None]) -> dict[str, Any]:
    """Return the mean and sample standard deviation (None for one seed) over the seeds whose run did not diverge."""
    finite = [value for value in values.values() if value is not None]
    return {
        "mean": statistics.mean(finite) if finite else None,
        "sd": statistics.stdev(finite) if len(finite) > 1 else None,
        "n": len(finite),
        "by_seed": {str(seed): value for seed, value in values.items()},
    }


def add_differences(rows: Sequence[dict[str, Any]], metric: str) -> None:
    """Add to each row how it differs from the first one, seed by seed, on the test split."""
    reference = rows[0][f"test_{metric}"]["by_seed"]
    for row in rows:
        values = row[f"test_{metric}"]["by_seed"]
        paired = {
            int(seed): value - reference[seed]
            for seed, value in values.items()
            if value is not None and reference.get(seed) is not None
        }
        row["difference"] = spread(paired)


def add_gaps(rows: Sequence[dict[str, Any]]) -> None:
    """Add to each row of a text how far it is behind the first one at recalled tokens and at others, seed by seed.

    Runs of earlier versions have no such losses. A row with one of these gets nothing, so that no row mixes seeds.
    """
    reference = rows[0].get("pairs", {})
    for row in rows:
        gaps = {
            seed: gap_of_bins(pairs, reference[seed])
            for seed, pairs in row.get("pairs", {}).items()
            if seed in reference
        }
        names = next(iter(gaps.values()), {})
        if names and len(gaps) == row["difference"]["n"]:
            row["gap"] = {name: spread({seed: gap[name] for seed, gap in gaps.items()}) for name in names}


def write_report(comparison: Comparison) -> dict[str, Any] | None:
    """Write table.md and plot.png from the runs there are, and return what the table shows; None if there are none."""
    rows = summary_of(comparison)
    if not rows:
        return None
    arguments, task = comparison.arguments, comparison.task
    main_metric = next(iter(task.kind.metrics))
    add_differences(rows, main_metric)
    add_gaps(rows)
    report = {"settings": comparison.settings, "results": rows}
    write_text(comparison.folder / "table.md", _markdown(comparison, rows, main_metric))
    title = f"Task {arguments.task}, {rows[0]['num_parameters']:,} parameters, {arguments.steps} updates"
    plot_comparison(rows, main_metric, task.kind.metrics[main_metric], comparison.folder / "plot.png", title)
    if "test_bins" in rows[0]:
        plot_bins(rows, comparison.folder / "bins.png", title)
    return report


def _markdown(comparison: Comparison, rows: Sequence[Mapping[str, Any]], main_metric: str) -> str:
    arguments, task = comparison.arguments, comparison.task
    columns = {
        "model": "model",
        "num_parameters": "parameters:,",
        "intermediate_size": "feed-forward width",
        "rate": "best rate",
    }
    cells = []
    for row in rows:
        cell = {name: row[name] for name in ("model", "num_parameters", "intermediate_size")}
        cell["rate"] = f"{row['learning_rate']:g}" + (" (edge)" if row["best_at_edge"] else "")
        cell["n"] = row[f"test_{main_metric}"]["n"]
        for split in task.evaluation:
            for metric, header in task.kind.metrics.items():
                cell[f"{split}_{metric}"] = _with_spread(row[f"{split}_{metric}"], metric)
                columns[f"{split}_{metric}"] = f"{split} {header}"
        cell["difference"] = _with_spread(row["difference"], main_metric, sign="+")
        for name, spread_of in row.get("gap", {}).items():
            cell[name] = _with_spread(spread_of, name, sign="+")
        cells.append(cell)
    columns |= {"difference": f"test, minus {rows[0]['model']}"}
    if any("gap" in row for row in rows):
        columns |= {"recall": "at recalled tokens, nats", "others": "at others, nats"}
    if any("common" in row.get("gap", {}) for row in rows):
        columns |= {"common": "at common pairs, nats"}
    columns |= {"n": "seeds"}
    sizes = []
    for split, blocks in task.evaluation.items():
        tokens = comparison.known(rows[0]["model"], rows[0]["learning_rate"], arguments.seeds[0])
        count = tokens[split]["num_tokens"] if tokens else 0
        in_bytes = f" ({task.num_bytes[split]:,} bytes)" if split in task.num_bytes else ""
        sizes.append(f"{split}: {len(blocks)} sequences, {count:,} predicted tokens{in_bytes}")
    tokens_seen = arguments.steps * arguments.batch_size * arguments.block_size
    return "\n".join(
        [
            f"Task {arguments.task}: {arguments.steps} updates of {arguments.batch_size} sequences of"
            f" {arguments.block_size} tokens ({tokens_seen:,} in all); {'; '.join(sizes)}.",
            f"{arguments.num_layers} layers, {arguments.hidden_size} channels. Mean ± sample standard deviation over"
            f" seeds {', '.join(map(str, arguments.seeds))} at the learning rate of least validation loss on seed"
            f" {arguments.seeds[0]}; differences are of runs of the same seed. (edge): no higher or no lower rate was"
            " tried.",
            "",
            markdown_table(cells, columns),
            "",
        ]
    )


def _with_spread(value: Mapping[str, Any], metric: str, sign: str = "") -> str | None:
    if value["mean"] is None:
        return None
    digits = 2 if metric == "perplexity" else 4
    text = format(value["mean"], f"{sign}.{digits}f")
    return text if value["sd"] is None else f"{text} ± {value['sd']:.{digits}f}"
