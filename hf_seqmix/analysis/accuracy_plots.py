"""How accuracy grows over training, and how it falls with the length of the input."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from .figures import PathLike, dash, draw_row, legend_below, line

__all__ = ["plot_accuracy_by_length", "plot_accuracy_curves"]


def plot_accuracy_curves(
    curves: Mapping[str, Sequence[Sequence[float]]],
    path: PathLike,
    *,
    references: Mapping[str, float] | None = None,
    title: str | None = None,
) -> None:
    """Accuracy on validation data against the optimizer's steps, a line a run.

    Args:
        curves: name of a run -> its points, (step, accuracy) each.
        path: image file; the extension gives the format.
        references: name -> accuracy, drawn as horizontal lines.
        title: above the plot.

    Raises:
        ValueError: no run has a point.
    """
    drawn = {name: points for name, points in curves.items() if points}
    if not drawn:
        raise ValueError("There is no accuracy to plot: no run was evaluated while it trained.")
    with draw_row(path, 7.6, 5.2) as (figure, [axes]):
        for index, (name, points) in enumerate(drawn.items()):
            steps, accuracies = zip(*points, strict=True)
            axes.plot(steps, accuracies, label=f"{name} (best {max(accuracies):.3f})", **line(index))
        for index, (name, value) in enumerate((references or {}).items()):
            axes.axhline(value, color="#666666", linewidth=1.2, linestyle=dash(index), label=f"{name} ({value:.3f})")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("optimizer steps")
        axes.set_ylabel("validation accuracy")
        legend_below(figure, axes, title)


def plot_accuracy_by_length(
    scores: Mapping[str, Sequence[float | None]],
    ranges: Sequence[str],
    path: PathLike,
    *,
    references: Mapping[str, Sequence[float]] | None = None,
    title: str | None = None,
) -> None:
    """Accuracy of models on inputs of several lengths, with what simple rules reach on the same inputs.

    Args:
        scores: name of a model -> its accuracy for each range, None where it has none.
        ranges: what the ranges are called, from short to long.
        path: image file; the extension gives the format.
        references: name of a rule -> its accuracy for each range, drawn dashed.
        title: above the plot.

    Raises:
        ValueError: there is no model, or one has not as many accuracies as there are ranges.
    """
    lines = {**scores, **(references or {})}
    if not scores or any(len(values) != len(ranges) for values in lines.values()):
        raise ValueError(f"Give each model and rule an accuracy for each of the {len(ranges)} ranges, None for none.")
    with draw_row(path, 7.6, 5.2) as (figure, [axes]):
        for index, (name, values) in enumerate(scores.items()):
            axes.plot(ranges, [float("nan") if v is None else v for v in values], label=name, **line(index))
        for index, (name, values) in enumerate((references or {}).items()):
            axes.plot(ranges, values, color="#666666", linewidth=1.2, linestyle=dash(index), label=name)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("length of the input (tokens)")
        axes.set_ylabel("accuracy")
        legend_below(figure, axes, title)
