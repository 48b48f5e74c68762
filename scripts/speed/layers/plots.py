"""Plots of timed layers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from hf_seqmix.analysis.plots.figures import COLORS, draw_grid, legend_below

__all__ = ["plot_layers", "plot_paper"]


def plot_layers(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw the ratio of each pair of layers at each length as bars."""

    def draw(panel: Axes, row: Mapping[str, Any], y: float, height: float, style: dict[str, Any]) -> None:
        panel.barh(y, row["ratio"], height, **style)
        panel.annotate(f"{row['ratio']:.2f}", (row["ratio"], y), (3, 0), textcoords="offset points", va="center")

    pairs = len({_pair(row) for row in rows})
    with draw_grid(path, 9, 1.4 + 0.62 * pairs, title=title) as (figure, axes):
        panel = axes[0, 0]
        _draw_bars(panel, rows, draw, "{layer}, {way}\nagainst {rival}")
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_xlabel("times as fast in training (forward and backward)")
        legend_below(figure, panel, columns=4)


def plot_paper(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw how much faster each layer is, and how much memory it saves, with the published figures as diamonds."""
    pairs = len({_pair(row) for row in rows})
    with draw_grid(path, 12, 1.6 + 0.5 * pairs, 1, 2, title, sharey=True) as (figure, axes):
        for panel, quantity, label in zip(
            axes[0], ("faster", "less_memory"), ("faster (%)", "less peak memory (%)"), strict=True
        ):

            def draw(
                panel: Axes,
                row: Mapping[str, Any],
                y: float,
                height: float,
                style: dict[str, Any],
                quantity: str = quantity,
            ) -> None:
                value, published = row[f"{quantity}_percent"], row.get(f"published_{quantity}_percent")
                panel.barh(y, value, height, **style)
                # Beside a diamond that is near, not under it.
                place = published if published is not None and 0 < published - value < 20 else value
                side: dict[str, Any] = {"ha": "left" if value >= 0 else "right", "va": "center", "fontsize": 8}
                offset = (5 if value >= 0 else -3, 0)
                panel.annotate(f"{value:+.0f}", (place, y), offset, textcoords="offset points", **side)
                if published is not None:
                    panel.plot(published, y, "D", color="black", markersize=5, label="published, NVIDIA A100")

            _draw_bars(panel, rows, draw, "{layer} against {rival}, {way}")
            panel.axvline(0, color="black", linewidth=0.8)
            panel.set_xlabel(label)
            panel.margins(x=0.12)
        legend_below(figure, axes[0, 0], columns=4)


def _pair(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["direction"], row["layer"], row["rival"]


def _draw_bars(panel: Axes, rows: Sequence[dict[str, Any]], draw: Any, label: str) -> None:
    """Draw a group of bars for each pair of layers, a bar for each length."""
    pairs = list(dict.fromkeys(map(_pair, rows)))
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    height = 0.8 / len(lengths)
    for row in sorted(rows, key=lambda row: lengths.index(row["length"])):
        index = lengths.index(row["length"])
        y = pairs.index(_pair(row)) + (index - (len(lengths) - 1) / 2) * height
        draw(panel, row, y, height * 0.9, {"color": COLORS[index % len(COLORS)], "label": f"{row['length']} tokens"})
    panel.set_yticks(
        range(len(pairs)), [label.format(way=way, layer=layer, rival=rival) for way, layer, rival in pairs]
    )
    panel.set_ylim(len(pairs) - 0.5, -0.5)
    panel.grid(axis="y", visible=False)
