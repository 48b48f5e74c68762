"""The figure of vision_spectra.py: singular values, and the training loss against the size."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes

from hf_seqmix.analysis.plots.figures import COLORS, draw_grid
from hf_seqmix.analysis.spectra import PowerLawFit

from .figures import QUANTILES, Figures

__all__ = ["PAPER_EXPONENT", "plot_spectra"]

PAPER_EXPONENT = 0.27
"""Of the training error against the head size, ViT on CIFAR-10 (Figure 1c)."""

_LEAST = 1e-5
"""Of the first singular value; smaller ones are rounding errors of float32."""


def plot_spectra(
    measured: Mapping[tuple[str, int | None], Sequence[Figures]],
    layers: Sequence[int],
    laws: Mapping[str, PowerLawFit],
    path: Path,
) -> None:
    """Draw a row of panels a model: quantiles of sigma_k, sigma_k by size, and the training loss.

    Args:
        measured: (model, size) -> the figures of each seed.
        layers: the first one is in the left panel, the last one in the second, as in Figures 1a and 1b of the paper.
        laws: model -> the fit of its training loss, where there is one.
        path: image file.
    """
    kinds = list(dict.fromkeys(kind for kind, _ in measured))
    columns = 3 if laws else 2
    with draw_grid(path, 4.6 * columns, 3.6 * len(kinds), len(kinds), columns) as (_, grid):
        for kind, panels in zip(kinds, grid, strict=True):
            own = {size: seeds for (name, size), seeds in measured.items() if name == kind}
            largest = max(own, key=lambda size: size or 0)
            _draw_boxes(panels[0], own[largest][0], layers[0], f"{kind}{_of(largest)}, layer {layers[0]}")
            _draw_curves(panels[1], own, layers[-1], f"{kind}, layer {layers[-1]}")
            if kind in laws:
                _draw_errors(panels[2], own, laws[kind], kind)
            elif columns == 3:
                panels[2].set_axis_off()


def _of(size: int | None) -> str:
    return "" if size is None else f" of size {size}"


def _draw_boxes(axes: Axes, figures: Figures, layer: int, title: str) -> None:
    levels = [figures.curve(f"sigma_q{level:g}", layer) for level in QUANTILES]
    names = ("whislo", "q1", "med", "q3", "whishi")
    boxes: list[dict[str, Any]] = [
        {**dict(zip(names, values, strict=True)), "label": ""} for values in zip(*levels, strict=True)
    ]
    places = list(range(1, len(boxes) + 1))
    axes.bxp(boxes, positions=places, showfliers=False, medianprops={"color": COLORS[1]}, widths=0.6)
    cross = figures.curve("sigma_cross", layer)[: len(boxes)]
    if cross:
        axes.plot(places[: len(cross)], cross, "x", color=COLORS[0], label="tokens of all images at once")
        axes.legend()
    axes.set_xticks(places, [str(place) for place in places])
    axes.set(xlabel="k", ylabel=f"sigma_k of {figures.source(layer)}", ylim=(0, None), title=title)


def _draw_curves(axes: Axes, own: Mapping[int | None, Sequence[Figures]], layer: int, title: str) -> None:
    colors = colormaps["viridis"](torch.linspace(0, 0.9, len(own)).numpy())
    for color, (size, seeds) in zip(colors, own.items(), strict=True):
        for metric, style in (("sigma", "-"), ("sigma_cross", ":")):
            curves = [figures.curve(metric, layer) for figures in seeds]
            if not curves[0]:
                continue
            mean = torch.tensor(curves, dtype=torch.float64).mean(dim=0)
            mean = mean[mean > _LEAST * mean[0]]
            label = None if metric == "sigma_cross" else "sigma_k" if size is None else f"size {size}"
            marker = "o" if len(mean) == 1 else None
            axes.plot(range(1, len(mean) + 1), mean, style, color=color, label=label, marker=marker, markersize=3)
    source = next(iter(own.values()))[0].source(layer)
    is_crossed = any(seeds[0].curve("sigma_cross", layer) for seeds in own.values())
    note = "dotted: tokens of all images at once" if is_crossed else None
    axes.set(xscale="log", yscale="log", xlabel="k", ylabel=f"sigma_k of {source}", title=title)
    axes.legend(fontsize=7, title=note, title_fontsize=7)


def _draw_errors(axes: Axes, own: Mapping[int | None, Sequence[Figures]], law: PowerLawFit, title: str) -> None:
    sizes = sorted(size for size in own if size is not None)
    for place in range(len(own[sizes[0]])):
        losses = [own[size][place].one("train_loss") or math.nan for size in sizes]
        axes.plot(sizes, losses, "o", color=COLORS[0], label="training loss" if place == 0 else None)
    fitted = [law.constant * size**-law.exponent for size in sizes]
    label = f"size^-p, p = {law.exponent:.3f} ({law.low:.3f} to {law.high:.3f})"
    axes.plot(sizes, fitted, "-", color=COLORS[1], label=label)
    paper = [fitted[0] * (size / sizes[0]) ** -PAPER_EXPONENT for size in sizes]
    axes.plot(sizes, paper, "--", color="#888888", label=f"slope of the paper, {PAPER_EXPONENT}")
    axes.set(xscale="log", yscale="log", xlabel="size", ylabel="training loss (nats)", title=title)
    axes.legend(fontsize=8)
