"""What the benchmark `glue` shows of its runs: scores over seeds, a table, and a bar a model beside the baselines."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.figures import COLORS, draw_row
from hf_seqmix.training.results import markdown_table

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """What a task is known by.

    Attributes:
        name: of the task, as papers write it.
        metrics: split, key of its scores, and name; the task's score is their mean, as on the benchmark's leaderboard.
    """

    name: str
    metrics: tuple[tuple[str, str, str], ...]

    @property
    def header(self) -> str:
        """Task and metrics."""
        return f"{self.name} {' / '.join(label for _, _, label in self.metrics)}"


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

# Qin et al. 2023 (arXiv 2305.04749), GLUE table; quoted from memory, the numbers of parameters agree with this package's
# models. MRPC is F1 there, QQP accuracy; the means are over these seven columns.
PUBLISHED: dict[str, dict[str, tuple[float | None, ...]]] = {
    "TNN, 126.4 M": {
        **{"mnli": (76.72, 76.06), "qnli": (85.06,), "qqp": (None, 88.30)},
        **{"sst2": (90.60,), "mrpc": (82.96, None), "cola": (49.85,)},
    },
    "Transformer, 124.7 M": {
        **{"mnli": (79.37, 79.07), "qnli": (87.79,), "qqp": (None, 88.04)},
        **{"sst2": (90.25,), "mrpc": (88.35, None), "cola": (38.63,)},
    },
}
NOTE = (
    "In per cent, on the published development sets, scored once; mean ± standard deviation over seeds. The average is over tasks, "
    "each the mean of its metrics; a correlation that is not defined counts as 0. Published: Qin et al. 2023 (arXiv 2305.04749), "
    "models of another size, pretrained on all of WikiText-103; quoted from memory; their averages over MNLI, QNLI, QQP, SST-2, "
    "MRPC and CoLA are 78.51 and 78.79."
)
RUNS = {
    "task": "task",
    "entry": "model",
    "learning_rate": "learning rate:g",
    "held_out_examples": "held out:,",
    "train_examples": "training examples:,",
    "test_examples": "dev examples:,",
    "updates": "updates:,",
    "num_seeds": "seeds",
    "held_out": "held-out score:.4f",
    "sweep": "first seed's by learning rate",
}


def task_scores(task: str, splits: Mapping[str, Mapping[str, float | None]]) -> list[float | None]:
    """The metrics of a task in the order of its column; None for one that is not there or not defined."""
    values = [splits.get(split, {}).get(key) for split, key, _ in COLUMNS[task].metrics]
    return [value if value is not None and math.isfinite(value) else None for value in values]


def overall(values: Sequence[float | None]) -> float:
    """A task's score from its metrics: their mean, an undefined one counting as 0."""
    return statistics.mean(value or 0.0 for value in values)


def summarise(rows: Sequence[Row], sweep: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each task and model: its metrics and score over seeds.

    Args:
        rows: of the chosen learning rate, a row a seed.
        sweep: of all learning rates with the first seed.
    """
    summary = []
    for task, entry in dict.fromkeys((row["task"], row["entry"]) for row in rows):
        own = [row for row in rows if (row["task"], row["entry"]) == (task, entry)]
        summary.append(
            {
                **{key: own[0][key] for key in ("task", "entry", "learning_rate", "num_parameters", "updates")},
                **{key: own[0][key] for key in ("train_examples", "held_out_examples", "test_examples")},
                **over_seeds([task_scores(task, row["scores"]) for row in own]),
                "num_seeds": len(own),
                "held_out": mean([row["held_out"] for row in own]),
                "sweep": ", ".join(
                    f"{row['learning_rate']:g}: {'-' if row['held_out'] is None else format(row['held_out'], '.4f')}"
                    for row in sweep
                    if (row["task"], row["entry"]) == (task, entry)
                ),
            }
        )
    return summary


def summarise_baselines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same of the baselines, which are fitted to the training examples of each seed: those of one model's runs."""
    summary = []
    for task in dict.fromkeys(row["task"] for row in rows):
        first = next(row["entry"] for row in rows if row["task"] == task)
        own = [row["baselines"] for row in rows if (row["task"], row["entry"]) == (task, first)]
        for name in dict.fromkeys(name for splits in own for values in splits.values() for name in values):
            scores = [
                task_scores(task, {split: values.get(name, {}) for split, values in splits.items()}) for splits in own
            ]
            entry = "majority class or mean" if name in ("majority class", "mean") else name
            summary.append({"task": task, "entry": entry, **over_seeds(scores), "num_seeds": len(own)})
    return summary


def over_seeds(scores: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Mean and spread of metrics (seeds, metrics), and of their mean."""
    metrics = list(zip(*scores, strict=True))
    totals = [overall(values) for values in scores]
    return {
        "metrics": [mean(values) for values in metrics],
        "spreads": [spread(values) for values in metrics],
        "score": statistics.mean(totals),
        "spread": spread(totals),
        "by_seed": totals,
    }


def mean(values: Sequence[float | None]) -> float | None:
    """Of the defined ones."""
    defined = [value for value in values if value is not None]
    return statistics.mean(defined) if defined else None


def spread(values: Sequence[float | None]) -> float | None:
    """Their standard deviation, of a sample; None if there is one value."""
    defined = [value for value in values if value is not None]
    return statistics.stdev(defined) if len(defined) > 1 else None


def scores_table(summary: Sequence[Row], tasks: Sequence[str]) -> str:
    """Tasks as columns, models and baselines as rows, the published figures last."""
    rows: list[dict[str, Any]] = []
    for entry in dict.fromkeys(row["entry"] for row in summary):
        own = {row["task"]: row for row in summary if row["entry"] == entry}
        row: dict[str, Any] = {"entry": entry, "num_parameters": next(iter(own.values())).get("num_parameters")}
        row |= {task: cell(found["metrics"], found["spreads"]) for task, found in own.items()}
        if len(own) == len(tasks):
            row["average"] = 100 * statistics.mean(found["score"] for found in own.values())
        row["seeds"] = "-".join(map(str, sorted({found["num_seeds"] for found in own.values()})))
        rows.append(row)
    for name, figures in PUBLISHED.items():
        known = {task: values for task, values in figures.items() if task in tasks}
        cells = {task: " / ".join("-" if v is None else f"{v:.1f}" for v in values) for task, values in known.items()}
        rows.append({"entry": f"published: {name}", **cells})
    headers = {task: COLUMNS[task].header for task in tasks}
    columns = {
        "entry": "model",
        "num_parameters": "parameters:,",
        **headers,
        "average": "average:.1f",
        "seeds": "seeds",
    }
    return markdown_table(rows, columns)


def cell(values: Sequence[float | None], spreads: Sequence[float | None]) -> str:
    """Metrics in per cent, each with its spread."""
    parts = []
    for value, deviation in zip(values, spreads, strict=True):
        text = "-" if value is None else f"{100 * value:.1f}"
        parts.append(text if deviation is None else f"{text} ± {100 * deviation:.1f}")
    return " / ".join(parts)


def runs_table(summary: Sequence[Row]) -> str:
    """What was chosen on the held-out examples, and on how many."""
    return markdown_table(summary, RUNS)


def plot_scores(summary: Sequence[Row], tasks: Sequence[str], path: Path, title: str) -> None:
    """A group of bars a task: models in colour, baselines in grey, each seed as a point, and the published scores as lines.

    Args:
        summary: of `summarise` and `summarise_baselines`.
        tasks: in the order of the plot.
        path: image file; the extension gives the format.
        title: above the plot.
    """
    entries = list(dict.fromkeys(row["entry"] for row in summary))
    models = [entry for entry in entries if any("learning_rate" in row for row in summary if row["entry"] == entry)]
    greys = itertools.cycle(("#BBBBBB", "#888888", "#555555"))
    colors = {
        entry: COLORS[models.index(entry) % len(COLORS)] if entry in models else next(greys) for entry in entries
    }
    width = 0.8 / len(entries)
    with draw_row(path, 5.0 + 1.5 * len(tasks), 4.4) as (figure, [axes]):
        for index, entry in enumerate(entries):
            own = [row for row in summary if row["entry"] == entry and row["task"] in tasks]
            places = [tasks.index(row["task"]) + (index - (len(entries) - 1) / 2) * width for row in own]
            axes.bar(places, [100 * row["score"] for row in own], 0.92 * width, color=colors[entry], label=entry)
            for place, row in zip(places, own, strict=True):
                values = [100 * value for value in row["by_seed"]]
                if len(values) > 1 and entry in models:
                    axes.plot([place] * len(values), values, "o", color="black", markersize=2.5, alpha=0.7)
        for (name, figures), style in zip(PUBLISHED.items(), ("-", ":"), strict=True):
            label: str | None = f"published: {name}"
            for place, task in enumerate(tasks):
                known = [value for value in figures.get(task, ()) if value is not None]
                if known:
                    level = [statistics.mean(known)] * 2
                    axes.plot([place - 0.42, place + 0.42], level, style, color="black", linewidth=1.2, label=label)
                    label = None
        axes.set_xticks(range(len(tasks)), [COLUMNS[task].header.replace(" ", "\n", 1) for task in tasks])
        axes.set_ylabel("score on the development set, per cent")
        axes.grid(axis="x", visible=False)
        figure.legend(loc="outside right upper")
        axes.set_title(title, loc="left", wrap=True)
