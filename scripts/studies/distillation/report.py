"""Columns of the tables of distilled decoders, and the plot."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.plots.figures import draw_grid, legend_below, line

__all__ = ["COST_COLUMNS", "LAYER_COLUMNS", "MODEL_COLUMNS", "plot"]

LAYER_COLUMNS = {
    "model": "model",
    "exact_taps": "exact taps",
    "tolerance": "tolerance:.0e",
    "layer": "layer",
    "order": "order",
    "error": "l1 error:.1e",
    "tap_error": "error of a tap:.1e",
    "tap_bound": "bound on that:.1e",
    "logit_error": "error of a logit:.1e",
}
MODEL_COLUMNS = {
    "model": "model",
    "exact_taps": "exact taps",
    "tolerance": "tolerance:.0e",
    "orders": "orders",
    "seconds": "seconds to fit:.1f",
    "logit_error": "error of a logit:.1e",
    "largest_logit": "largest logit:.1f",
    "step_error": "steps and one call:.1e",
    "exact_perplexity": "perplexity, exact:.4f",
    "perplexity": "distilled:.4f",
    "change": "change:+.4%",
}
COST_COLUMNS = {
    "model": "model",
    "decoder": "decoder",
    "length": "tokens held",
    "cache_bytes": "bytes of the cache:,.0f",
    "products": "products a token and channel of a kernel:.0f",
    "step_ms": "ms a step:.3f",
}


def plot(
    path: Path,
    layers: Sequence[dict[str, Any]],
    models: Sequence[dict[str, Any]],
    values: dict[str, dict[int, dict[int, list[float]]]],
) -> None:
    """Draw a row a checkpoint: singular values, orders over tolerances, changes of perplexity over tolerances."""
    with draw_grid(path, 15, 3.4 * len(values), len(values), 3) as (figure, panels):
        for (name, by_taps), (left, middle, right) in zip(values.items(), panels, strict=True):
            dashes = dict(zip(by_taps, itertools.cycle(("-", "--", ":", "-.")), strict=False))
            for taps, by_layer in by_taps.items():
                for layer, sigma in by_layer.items():
                    label, style = f"layer {layer}, {taps} exact taps", line(layer) | {"linestyle": dashes[taps]}
                    shown = [value for value in sigma[:24] if value > 1e-12]
                    left.semilogy(range(1, len(shown) + 1), shown, label=label, **style)
                    chosen = [row for row in layers if (row["model"], row["layer"]) == (name, layer)]
                    chosen = [row for row in chosen if row["exact_taps"] == taps]
                    middle.loglog(
                        [row["tolerance"] for row in chosen], [row["order"] for row in chosen], label=label, **style
                    )
            for place, taps in enumerate(by_taps):
                chosen = [row for row in models if (row["model"], row["exact_taps"]) == (name, taps)]
                changes = [max(abs(row["change"]), 1e-8) for row in chosen]
                right.loglog([row["tolerance"] for row in chosen], changes, label=f"{taps} exact taps", **line(place))
            right.axhline(1e-3, color="#888888", linestyle=":")
            right.legend(fontsize=8)
            left.set(title=f"{name}: singular values of the tails", xlabel="number", ylabel="of the l1 norms")
            middle.set(title="order needed", xlabel="tolerance", ylabel="order")
            right.set(title="change of perplexity", xlabel="tolerance", ylabel="|change|")
        legend_below(figure, [panels[0, 0]], columns=4)
