"""Tables and plots of timed generation: what a token costs after n others, and where which model wins."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from timing.labels import End, label_ends

from hf_seqmix.analysis.plots.figures import COLORS, MARKERS, draw_grid, token_ticks
from hf_seqmix.training.results import Result

__all__ = ["COST_COLUMNS", "TIME_COLUMNS", "Stretch", "first_tokens", "plot_costs", "plot_times", "rows_of", "wins"]

TIME_COLUMNS = {
    "batch": "batch",
    "tokens": "first n tokens",
    "model": "model",
    "parameters": "parameters:,",
    "measured": "measured",
    "seconds": "seconds in all:.2f",
    "tokens_per_s": "tokens/s:,.0f",
    "mean_ms": "mean ms:.2f",
    "median_ms": "median ms at n:.2f",
    "worst_ms": "worst ms:.1f",
    "llama": "times as fast as Llama:.2f",
    "error": "logit error:.1g",
}
COST_COLUMNS = {
    "batch": "batch",
    "tokens": "tokens of history",
    "model": "model",
    "mflop": "MFLOP a token:.2f",
    "mb": "MB moved a token:.2f",
    "cache_mib": "cache MiB:.1f",
    "kernel_mib": "of which kernels MiB:.1f",
    "peak_mib": "beyond it in a step MiB:.1f",
}
COSTS = ("mflop", "mb", "cache_mib", "kernel_mib", "peak_mib")
METRICS = ("seconds", "tokens_per_s", "mean_ms", "median_ms", "worst_ms", "error", *COSTS)
"""Figures of a row, beside what `wins` shows."""

Row = dict[str, Any]


class Stretch(NamedTuple):
    """Tokens `start` to `stop` of a text, which were timed."""

    start: int
    stop: int
    seconds: float
    median_ms: float
    worst_ms: float
    error: float | None = None

    @property
    def rate(self) -> float:
        """Seconds a token."""
        return self.seconds / (self.stop - self.start)


def first_tokens(stretches: Sequence[Stretch], tokens: int) -> Row | None:
    """Return what the first tokens took, or None if no stretch ends there.

    Between stretches the cost of a token is taken to grow evenly.

    Args:
        stretches: in order.
        tokens: how many.
    """
    total, at, before = 0.0, 0, None
    inside = [stretch for stretch in stretches if stretch.stop <= tokens]
    if not inside or inside[-1].stop != tokens:
        return None
    sampled = False
    for stretch in inside:
        gap = stretch.start - at
        total += gap * (stretch.rate if before is None else (before + stretch.rate) / 2) + stretch.seconds
        sampled |= gap != 0  # or tokens of two stretches, counted once by their rates
        at, before = stretch.stop, stretch.rate
    errors = [stretch.error for stretch in inside if stretch.error is not None]
    return {
        "tokens": tokens,
        "measured": "sampled" if sampled else "in full",
        "seconds": total,
        "mean_ms": 1e3 * total / tokens,
        "median_ms": inside[-1].median_ms,
        "worst_ms": max(stretch.worst_ms for stretch in inside),
        "error": max(errors, default=None),
    }


def rows_of(results: Iterable[Result], order: Sequence[str], marks: Sequence[int]) -> list[Row]:
    """Return a row for each batch, number of tokens and model, in that order.

    Args:
        results: of stretches and of costs.
        order: of models; others are left out.
        marks: numbers of tokens.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for result in results:
        place = [result.setting[name] for name in ("part", "start", "stop")]
        found.setdefault((result.setting["batch"], result.model, *place), {})[result.metric] = result.value
    rows: list[Row] = []
    for batch in sorted({key[0] for key in found}):
        for mark in sorted(marks):
            mine = [
                _row({key[2:]: figures for key, figures in found.items() if key[:2] == (batch, model)}, mark)
                | {"batch": batch, "model": model}
                for model in order
            ]
            beside = next((row.get("seconds") for row in mine if row["model"] == "llama"), None)
            for row in mine:
                seconds = row.get("seconds")
                row["tokens_per_s"] = batch * mark / seconds if seconds else None
                row["llama"] = beside / seconds if beside and seconds else None
            rows += [row for row in mine if "parameters" in row]
    return rows


def _row(own: dict[tuple[str, int, int], dict[str, Any]], mark: int) -> Row:
    """Return what is known of a model at a mark; its parameters, if something is."""
    row: Row = {"tokens": mark} | (first_tokens(_stretches(own), mark) or {})
    for (part, _, stop), figures in own.items():
        if stop == mark:
            names = ("parameters", *(COSTS if part == "costs" else ()))
            row |= {name: figures[name] for name in names}
    return row


def _stretches(own: dict[tuple[str, int, int], dict[str, Any]]) -> list[Stretch]:
    """Return the stretches of a model: whole texts, then samples of what comes after."""
    whole: list[Stretch] = []
    samples: list[Stretch] = []
    for (part, start, stop), figures in sorted(own.items()):
        if part != "costs":
            kept = whole if part == "whole" else samples
            seconds, median, worst = (figures[name] for name in ("seconds", "median_ms", "worst_ms"))
            kept.append(Stretch(start, stop, seconds, median, worst, figures.get("error")))
    end = whole[-1].stop if whole else 0
    return whole + [stretch for stretch in samples if stretch.start >= end]


def wins(rows: Sequence[Row], batch: int) -> tuple[list[Row], dict[str, str]]:
    """Return the table of where each model wins, and its columns: times as fast as Llama over the first n tokens."""
    mine = [row for row in rows if row["batch"] == batch and row.get("llama") is not None]
    table: dict[str, Row] = {}
    for row in mine:
        text = f"{'~' if row['measured'] == 'sampled' else ''}{row['llama']:.2f}"
        line = table.setdefault(row["model"], {"model": row["model"]})
        line[str(row["tokens"])] = f"**{text}**" if row["llama"] > 1 else text
    marks = sorted({row["tokens"] for row in mine})
    return list(table.values()), {"model": "model"} | {str(mark): f"{mark:,}" for mark in marks}


def style_of(name: str) -> dict[str, Any]:
    """Return the color of a family, and the line of the way in which it decodes."""
    family, _, way = name.partition(":")
    # What all are compared with is black.
    colors = dict(zip(("tnn", "fd_tnn", "ipa", "poly2", "poly3", "hybrid", "llama"), COLORS, strict=True))
    marker = MARKERS[list(colors).index(family)] if family in colors else "*"
    dashes: dict[str, Any] = {"": "-", "plain": ":", "distilled": "-.", "static": (0, (8, 2)), "recompute": "--"}
    style = {"color": colors.get(family, "#7F7F7F"), "marker": marker, "linestyle": dashes[way]}
    return style | {"linewidth": 1.3 if way else 2.0, "markersize": 4}


def _draw(panel: Axes, rows: Sequence[Row], order: Sequence[str], key: str, **labels: Any) -> list[End]:
    """Draw one figure of all models against the number of tokens, and return the ends of the lines."""
    ends: list[End] = []
    for name in order:
        points = [(row["tokens"], row[key]) for row in rows if row["model"] == name and row.get(key)]
        if points:
            style = style_of(name)
            panel.plot(*zip(*points, strict=True), **style)
            ends.append((*points[-1], name.replace("_", " ").replace(":", ", "), style["color"]))
    token_ticks(panel, sorted({row["tokens"] for row in rows}), **labels)
    low, high = panel.get_ylim()
    ticks = [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    return ends


def _plot(
    rows: Sequence[Row], order: Sequence[str], path: Path, title: str, kinds: Sequence[tuple[str, str, str, str]]
) -> None:
    """Draw a panel for each batch and each of (key, title, label of x, label of y)."""
    batches = sorted({row["batch"] for row in rows})
    with draw_grid(path, 5.6 * len(kinds), 4.6 * len(batches) + 0.4, len(batches), len(kinds), title) as (
        figure,
        grid,
    ):
        ends = []
        for line, batch in zip(grid, batches, strict=True):
            mine = [row for row in rows if row["batch"] == batch]
            for panel, (key, heading, x, y) in zip(line, kinds, strict=True):
                ends.append(_draw(panel, mine, order, key, title=f"{heading}, batch {batch}", xlabel=x, ylabel=y))
                if key == "llama":
                    panel.axhline(1, color="black", linewidth=0.8)
                    low, high = panel.get_ylim()
                    ticks = [2.0**power for power in range(-12, 8) if low <= 2.0**power <= high]
                    panel.set_yticks(ticks, [f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}" for tick in ticks])
        figure.canvas.draw()  # places of labels follow from the limits
        for panel, labels in zip(grid.flat, ends, strict=True):
            label_ends(panel, labels)


def plot_times(rows: Sequence[Row], order: Sequence[str], path: Path, title: str) -> None:
    """Draw the time of a token against the history, and the first n tokens beside those of Llama."""
    kinds = [("median_ms", "Time of a token", "tokens of history", "ms")]
    if any(row.get("llama") for row in rows):
        kinds.append(("llama", "The first n tokens", "n", "times as fast as Llama"))
    _plot([row for row in rows if "seconds" in row], order, path, title, kinds)


def plot_costs(rows: Sequence[Row], order: Sequence[str], path: Path, title: str) -> None:
    """Draw operations, bytes moved and memory against the history."""
    kinds = [
        ("mflop", "Operations of a token", "tokens of history", "MFLOP"),
        ("mb", "Bytes moved for a token", "tokens of history", "MB"),
        ("cache_mib", "Memory of the cache", "tokens of history", "MiB"),
    ]
    _plot([row for row in rows if "mflop" in row], order, path, title, kinds)
