"""Plots of timed layers: ratios as bars, and the paper's comparison with its published figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.figures import COLORS, draw_grid

__all__ = ["PLOTS"]


def plot_layers(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw the ratio of each pair at each length as bars."""
    pairs = list(dict.fromkeys((row["direction"], row["layer"], row["rival"]) for row in rows))
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    with draw_grid(path, 9, 1.4 + 0.62 * len(pairs)) as (figure, axes):
        panel = axes[0, 0]
        height = 0.8 / len(lengths)
        for index, length in enumerate(lengths):
            for place, key in enumerate(pairs):
                found = [row for row in rows if (row["direction"], row["layer"], row["rival"]) == key]
                row = next((row for row in found if row["length"] == length), None)
                if row is None:  # the rival is too slow there
                    continue
                y = place + (index - (len(lengths) - 1) / 2) * height
                panel.barh(y, row["ratio"], height * 0.9, color=COLORS[index], label=f"{length} tokens")
                panel.annotate(
                    f"{row['ratio']:.2f}", (row["ratio"], y), (3, 0), textcoords="offset points", va="center"
                )
        panel.set_yticks(range(len(pairs)), [f"{layer}, {way}\nagainst {rival}" for way, layer, rival in pairs])
        panel.set_ylim(len(pairs) - 0.5, -0.5)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_xlabel("times as fast in training (forward and backward)")
        panel.grid(axis="y", visible=False)
        handles = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(lengths))
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)


def plot_paper(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw how much faster each layer is, and how much memory it saves, with the published figures as diamonds."""
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    pairs = list(dict.fromkeys((row["direction"], row["layer"], row["rival"]) for row in rows))
    panels = {"faster": "faster (%)", "less_memory": "less peak memory (%)"}
    with draw_grid(path, 12, 1.6 + 0.5 * len(pairs), 1, 2, sharey=True) as (figure, axes):
        height = 0.8 / len(lengths)
        for panel, (quantity, label) in zip(axes[0], panels.items(), strict=True):
            for row in rows:
                place = pairs.index((row["direction"], row["layer"], row["rival"]))
                index = lengths.index(row["length"])
                y = place + (index - (len(lengths) - 1) / 2) * height
                value, published = row[f"{quantity}_percent"], row[f"published_{quantity}_percent"]
                panel.barh(y, value, height * 0.9, color=COLORS[index], label=f"{row['length']} tokens")
                # Beside a diamond that is near, not under it.
                place_of_text = published if published is not None and 0 < published - value < 20 else value
                panel.annotate(
                    f"{value:+.0f}",
                    (place_of_text, y),
                    (5 if value >= 0 else -3, 0),
                    textcoords="offset points",
                    va="center",
                    ha="left" if value >= 0 else "right",
                    fontsize=8,
                )
                if published is not None:
                    panel.plot(published, y, "D", color="black", markersize=5, label="published, NVIDIA A100")
            panel.axvline(0, color="black", linewidth=0.8)
            panel.set_xlabel(label)
            panel.margins(x=0.12)
            panel.grid(axis="y", visible=False)
        left = axes[0, 0]
        left.set_yticks(range(len(pairs)), [f"{layer} against {rival}, {way}" for way, layer, rival in pairs])
        left.set_ylim(len(pairs) - 0.5, -0.5)
        handles = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)


PLOTS = {"layers": plot_layers, "paper": plot_paper, "transformers": plot_layers, "others": plot_layers}
"""Table -> how it is drawn."""
