"""Plots of training, of evaluations and of data, written as image files; no display is needed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from ..text.scores import LanguageModelScore
from .figures import COLORS, PathLike, dash, draw_grid, draw_row, legend_below, line

if TYPE_CHECKING:
    import datasets

__all__ = ["plot_context_lengths", "plot_loss", "plot_pathfinder_examples"]

_PICTURES = 3  # of each class in a row of a sheet

Scores = Mapping[str, Sequence[LanguageModelScore]]


def plot_context_lengths(
    scores: Scores,
    path: PathLike,
    *,
    references: Mapping[str, float] | None = None,
) -> None:
    """Draw bits per byte and token perplexity against context length, one line a model.

    Args:
        scores: model name -> its scores, in any order.
        path: image file; the extension gives the format.
        references: name -> bits per byte of something that is not a model with a context length (gzip, an n-gram),
            drawn as a horizontal line.

    Raises:
        ValueError: there is nothing to plot.
    """
    _check(scores)
    panels = [("bits_per_byte", "bits per byte"), ("perplexity", "perplexity per token")]
    with draw_row(path, 9.5, 3.8, columns=2) as (figure, all_axes):
        for axes, (figure_of_merit, label) in zip(all_axes, panels, strict=True):
            lengths: set[int] = set()
            for index, (name, points) in enumerate(scores.items()):
                points = sorted(points, key=lambda score: score.context_length)
                x = [score.context_length for score in points]
                lengths.update(x)
                axes.plot(x, [getattr(score, figure_of_merit) for score in points], label=name, **line(index))
            _powers_of_two(axes, sorted(lengths))
            axes.set_xlabel("context length (tokens)")
            axes.set_ylabel(label)
        _log_if_wide(all_axes[1], [score.perplexity for points in scores.values() for score in points])
        for index, (name, value) in enumerate((references or {}).items()):
            all_axes[0].axhline(value, color="#888888", linewidth=1, linestyle=dash(index))
            all_axes[0].annotate(
                f"{name} {value:.2f}",
                (0.995, value),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=8,
                color="#666666",
            )
        legend_below(figure, all_axes[0])


def plot_loss(
    log_history: Sequence[Mapping[str, Any]],
    path: PathLike,
    *,
    unit: str = "nats per token",
    title: str | None = None,
) -> None:
    """Draw training and evaluation loss against the optimizer's steps.

    Args:
        log_history: `trainer.state.log_history`: entries with "step" and "loss" or "eval_loss".
        path: image file; the extension gives the format.
        unit: what the loss is measured in.
        title: above the plot.

    Raises:
        ValueError: the history holds no loss.
    """
    train = [(entry["step"], entry["loss"]) for entry in log_history if "loss" in entry]
    evaluation = [(entry["step"], entry["eval_loss"]) for entry in log_history if "eval_loss" in entry]
    if not train and not evaluation:
        raise ValueError('there is no loss to plot: no entry of log_history has "loss" or "eval_loss".')
    with draw_row(path, 6.6, 4.0) as (_, [axes]):
        if train:
            steps, losses = map(np.asarray, zip(*train, strict=True))
            smooth = len(losses) >= 20
            axes.plot(
                steps,
                losses,
                color=COLORS[0],
                alpha=0.3 if smooth else 1.0,
                linewidth=1.0 if smooth else 1.8,
                label=None if smooth else "training",
            )
            if smooth:
                axes.plot(
                    steps,
                    _moving_mean(losses, max(1, len(losses) // 40)),
                    color=COLORS[0],
                    label="training (smoothed)",
                )
        if evaluation:
            steps, losses = map(np.asarray, zip(*evaluation, strict=True))
            axes.plot(steps, losses, color=COLORS[1], marker="o", label=f"evaluation (last {losses[-1]:.3f})")
        _log_if_wide(axes, [loss for _, loss in train + evaluation])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("optimizer steps")
        axes.set_ylabel(f"loss ({unit})")
        axes.legend()
        if title:
            axes.set_title(title, loc="left")


def plot_pathfinder_examples(dataset: "datasets.Dataset", path: PathLike, *, rows: int = 4) -> None:
    """Draw the first connected pictures on the left, and the first others on the right.

    Args:
        dataset: a split of `hf_seqmix.data.lra.pathfinder`.
        path: image file; the extension gives the format.
        rows: of the sheet, with 3 pictures of each class.

    Raises:
        ValueError: `rows` is below 1, or there are too few pictures.
    """
    labels = np.array(dataset["label"])
    chosen = [np.flatnonzero(labels == label)[: _PICTURES * rows] for label in (1, 0)]
    if rows < 1 or min(len(numbers) for numbers in chosen) < _PICTURES * rows:
        raise ValueError(
            f"{rows} rows of pictures are asked for; give at least 1, and at most as many as there are {_PICTURES}"
            f" pictures of each class for (there are {int(labels.sum())} and {len(labels) - int(labels.sum())})."
        )
    with draw_grid(path, 2 * _PICTURES * 1.7, rows * 1.9, rows, 2 * _PICTURES) as (_, axes):
        for side, (numbers, title) in enumerate(zip(chosen, ("connected", "not connected"), strict=True)):
            panels = axes[:, side * _PICTURES : (side + 1) * _PICTURES].ravel()
            for panel, number in zip(panels, numbers, strict=True):
                panel.imshow(dataset[int(number)]["image"], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                panel.set_title(title, fontsize=8)
                panel.axis("off")


def _check(scores: Scores) -> None:
    empty = [name for name, points in scores.items() if not points]
    if not scores or empty:
        raise ValueError(f"there is nothing to plot for {empty or 'any model'}: give at least one score a model.")


def _powers_of_two(axes: Axes, ticks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xmargin(0.06)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)
    if len(ticks) > 8:
        axes.tick_params(axis="x", labelrotation=45)


def _log_if_wide(axes: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic where the largest values would flatten the rest, with numbers written out."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite or min(finite) <= 0 or max(finite) < 3 * min(finite):
        return
    axes.set_yscale("log")
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(plain)
    axes.tick_params(axis="y", which="minor", labelsize=8)
    axes.grid(axis="y", which="both")


def _moving_mean(values: np.ndarray, reach: int) -> np.ndarray:
    """Return the mean of each value and its `reach` neighbors on both sides, or as many as there are."""
    # Not by running sums, in which a loss that is no number would spoil all that follow.
    windows = ((max(0, place - reach), place + reach + 1) for place in range(len(values)))
    return np.array([values[start:end].mean() for start, end in windows])
