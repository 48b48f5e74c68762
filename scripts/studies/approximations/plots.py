"""Plots of approximation.py: errors over alterations beside their floors, and errors against the head size."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.plots.figures import dash, draw_row, legend_below, line

__all__ = ["plot_order", "plot_rate"]

GRAY = "#888888"
LEAST = 1e-12
"""Errors below are drawn here: the floor of a causal target is 0 but for rounding."""


def plot_order(rows: Sequence[Mapping[str, Any]], models: Sequence[str], floors: Sequence[str], path: Path) -> None:
    """Draw the errors of models at each alteration, and floors as bars of gray, a panel a kernel."""
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    with draw_row(path, max(6.4, 5.6 * len(kernels)), 4.8, len(kernels)) as (figure, panels):
        for kernel, axes in zip(kernels, panels, strict=True):
            own = [row for row in rows if row["kernel"] == kernel]
            for index, floor in enumerate(floors):
                for place, row in enumerate(own):
                    label = f"floor: {floor.replace('_', ' ')}" if not place else None
                    ends = place - 0.42, place + 0.42
                    level = max(row[floor], LEAST)
                    axes.plot(ends, (level, level), color=GRAY, linestyle=dash(index), linewidth=1.4, label=label)
            for index, name in enumerate(models):
                shown = [(place, row[name]) for place, row in enumerate(own) if row.get(name) is not None]
                shift = 0.6 * ((index + 0.5) / len(models) - 0.5)
                heights = [max(error, LEAST) for _, error in shown]
                axes.plot([place + shift for place, _ in shown], heights, label=name, linestyle="", **line(index))
            names = [row["alteration"].replace(" ", "\n", 1) for row in own]
            axes.set_xticks(range(len(own)), names, fontsize=8)
            label = f"mean square error, held-out rows ({LEAST:.0e}: or less)"
            axes.set(yscale="log", ylabel=label, title=f"{kernel} kernel")
        legend_below(figure, panels)


def plot_rate(rows: Sequence[Mapping[str, Any]], form: Sequence[str], path: Path) -> None:
    """Draw errors against the head size, a panel an exponent and a line a form.

    Args:
        rows: with `head_size`, `train_error`, `errors` and the fields of the form.
        form: fields, the exponent first; of the others, those that differ name the lines.
        path: of the image.
    """
    exponents = list(dict.fromkeys(row["exponent"] for row in rows))
    told = [name for name in form[1:] if name == "rank" or len({row[name] for row in rows}) > 1]
    with draw_row(path, max(5.6, 5.2 * len(exponents)), 4.6, len(exponents)) as (figure, panels):
        for exponent, axes in zip(exponents, panels, strict=True):
            shown = [row for row in rows if row["exponent"] == exponent and row["errors"]]  # not all seeds diverged
            if not shown:
                axes.set_title(f"a = {exponent:g}: every seed diverged")
                continue
            lines: dict[str, list[Mapping[str, Any]]] = {}
            for row in shown:
                label = ", ".join(f"{name.removeprefix('num_')} {row[name]}" for name in told)
                lines.setdefault(label, []).append(row)
            for index, (label, own) in enumerate(lines.items()):
                sizes = [row["head_size"] for row in own]
                axes.plot(sizes, [row["train_error"] for row in own], label=label, **line(index))
                low, high = [min(row["errors"]) for row in own], [max(row["errors"]) for row in own]
                axes.fill_between(sizes, low, high, color=line(index)["color"], alpha=0.15, linewidth=0)
            first = max(max(row["errors"]) for row in shown)
            ticks = sorted({row["head_size"] for row in shown})
            law = [first * size ** -(2 * exponent - 1) for size in ticks]
            axes.plot(ticks, law, color=GRAY, linestyle="--", label="m^-(2a - 1)")
            axes.set(
                xscale="log", yscale="log", xlabel="head size m", ylabel="mean square error", title=f"a = {exponent:g}"
            )
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.minorticks_off()
        legend_below(figure, panels)
