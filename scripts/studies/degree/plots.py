"""Plots of degree_experiment.py: errors of nets over their size, at equal size, and over updates."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from hf_seqmix.analysis.plots.figures import COLORS, MARKERS, draw_grid, legend_below

from .training import clipped

__all__ = ["KINDS", "plot_curves", "plot_equal", "plot_errors"]

Rows = Sequence[Mapping[str, Any]]

STYLES = {
    "2": (COLORS[0], MARKERS[0]),
    "3": (COLORS[1], MARKERS[1]),
    "4": (COLORS[2], MARKERS[2]),
    "4, 2": (COLORS[5], MARKERS[6]),
    "2.4 mixed layers": (COLORS[3], MARKERS[3]),
    "2.4 signed power": (COLORS[4], MARKERS[4]),
    "e signed power": (COLORS[6], MARKERS[5]),
}
KINDS = tuple(STYLES)
NAMES = {"paired_product": "pairs across the halves", "paired_product_control": "control, neighbors paired"}


def _name(task: str) -> str:
    return NAMES.get(task, f"Legendre products of degree {task.rpartition('_')[2]}")


def plot_errors(results: Rows, n: int, path: Path, title: str) -> None:
    """Draw the error over the size for each degree: each seed, the median as a line, and the bound of the rank.

    A row of panels for linear and affine projections, a column for each accounting, of the first task.
    """
    first = [row for row in results if row["task"] == results[0]["task"]]
    kinds = [affine for affine in (False, True) if any(row["affine"] == affine for row in first)]
    title = f"{title}\n{_name(first[0]['task'])}"
    budgets = ["projections", *["with_overhead"] * any(row["overhead"] for row in first)]
    size = 5.25 * len(budgets), 0.8 + 3.5 * len(kinds)
    with draw_grid(path, *size, len(kinds), len(budgets), title, sharey=True) as (figure, panels):
        for line, affine in enumerate(kinds):
            for column, budget in enumerate(budgets):
                axes = panels[line, column]
                shown = [row for row in first if row["affine"] == affine]
                plain = [row for row in shown if not row["overhead"]]
                if budget == "projections" and plain:
                    shown = plain
                elif budget == "with_overhead":
                    shown = [row for row in shown if row["overhead"]]
                axes.set_visible(bool(shown))
                _panel(axes, shown, budget, n)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
                what = "projections alone: d a layer" if column == 0 else "with an output map: d + 1 a layer"
                axes.set(
                    yscale="log",
                    xlabel=f"matrices, {what}",
                    ylabel="error / mean square of the target",
                    title=f"{'affine' if affine else 'linear'} projections",
                )
        legend_below(figure, panels.flat, columns=4)


def _panel(axes: Any, shown: Rows, budget: str, n: int) -> None:
    every = [row[budget] / n for row in shown]
    if every:
        axes.set_xlim(min(every) - 0.7, max(every) + 0.7)  # a single size, too, between whole numbers
    for kind, (color, marker) in STYLES.items():
        nets = sorted((row for row in shown if row["kind"] == kind), key=lambda row: row[budget])
        if not nets:
            continue
        sizes = [row[budget] / n for row in nets]
        for size, row in zip(sizes, nets, strict=True):
            errors = [clipped(error) for error in row["errors"]]
            axes.plot([size] * len(errors), errors, marker, color=color, alpha=0.3, markersize=4, linestyle="none")
        medians = [statistics.median(map(clipped, row["errors"])) for row in nets]
        axes.plot(sizes, medians, marker=marker, color=color, linewidth=1.6, label=f"degree {kind}")
        bounded = [(size, row["bound"]) for size, row in zip(sizes, nets, strict=True) if row["bound"] > 0]
        if bounded:
            axes.plot(*zip(*bounded, strict=True), "_", color=color, markersize=16, markeredgewidth=2.5)
            for place in bounded:
                axes.annotate("bound", place, (9, -3), textcoords="offset points", fontsize=8, color=color)


def plot_equal(results: Rows, budget: int, path: Path, title: str) -> None:
    """Draw each seed's error and the median at the same size, a line a degree, a panel a task and projection."""
    panels_of = _equal(results, budget)
    if not panels_of:
        return
    kinds = [kind for kind in STYLES if any(row["kind"] == kind for rows in panels_of.values() for row in rows)]
    tasks, affines = _sides(panels_of)
    size = 6.6 * len(affines), 0.9 + (0.8 + 0.38 * len(kinds)) * len(tasks)
    with draw_grid(path, *size, len(tasks), len(affines), title, sharex=True) as (_, panels):
        for (task, affine), rows in panels_of.items():
            axes = panels[tasks.index(task), affines.index(affine)]
            for row in rows:
                color, marker = STYLES[row["kind"]]
                place = kinds.index(row["kind"])
                errors = [clipped(error) for error in row["errors"]]
                axes.plot(errors, [place] * len(errors), marker, color=color, alpha=0.6, markersize=6)
                middle = statistics.median(errors)
                axes.plot([middle] * 2, [place - 0.32, place + 0.32], color=color, linewidth=2.4)
            names = {row["kind"]: f"degree {row['kind']}: {row['depth']} layers" for row in rows}
            axes.set_yticks(range(len(kinds)), [names.get(kind, kind) for kind in kinds])
            axes.set_ylim(len(kinds) - 0.4, -0.6)
            axes.set_xscale("log")
            axes.set_title(f"{_name(task)}; {'affine' if affine else 'linear'} projections", fontsize=10)
        for axes in panels[-1]:
            axes.set_xlabel("error / mean square of the target; bar: median")


def plot_curves(results: Rows, budget: int, path: Path, title: str) -> None:
    """Draw the median validation error over updates at equal size; the band leaves out the best and the worst seed."""
    panels_of = _equal(results, budget)
    if not panels_of:
        return
    tasks, affines = _sides(panels_of)
    size = 5.2 * len(affines), 0.9 + 3.2 * len(tasks)
    title += "; band: without the outermost"
    with draw_grid(path, *size, len(tasks), len(affines), title, sharey=True) as (figure, panels):
        for (task, affine), rows in panels_of.items():
            axes = panels[tasks.index(task), affines.index(affine)]
            for row in rows:
                color, marker = STYLES[row["kind"]]
                columns = [sorted(map(clipped, column)) for column in zip(*row["curves"], strict=True)]
                steps, edge = row["curve_steps"], 1 if len(columns[0]) > 3 else 0
                middle = [statistics.median(column) for column in columns]
                axes.plot(steps, middle, color=color, marker=marker, markersize=4, label=f"degree {row['kind']}")
                low, high = [c[edge] for c in columns], [c[-1 - edge] for c in columns]
                axes.fill_between(steps, low, high, color=color, alpha=0.1, linewidth=0)
            axes.set_yscale("log")
            axes.set_title(f"{_name(task)}; {'affine' if affine else 'linear'} projections", fontsize=10)
            axes.set(xlabel="updates", ylabel="validation error / mean square")
        legend_below(figure, panels.flat, columns=2 * len(affines))


def _equal(results: Rows, budget: int) -> dict[tuple[str, bool], list[Mapping[str, Any]]]:
    """Return (task, affine) -> the nets that use the budget, in the accounting without overhead."""
    found: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for row in results:
        spare = row["overhead"] and row["form"] == "fully-connected"  # of the other accounting
        if abs(row["projections"] / budget - 1) < 0.08 and not spare:
            found.setdefault((row["task"], row["affine"]), []).append(row)
    return found


def _sides(panels: Mapping[tuple[str, bool], Any]) -> tuple[list[str], list[bool]]:
    return list(dict.fromkeys(task for task, _ in panels)), sorted({affine for _, affine in panels})
