"""Names of lines, written at their ends."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes

__all__ = ["End", "label_ends"]

End = tuple[float, float, str, str]
"""x, y, text and color of the end of a line."""


def label_ends(panel: Axes, ends: Sequence[End]) -> None:
    """Write each line's name beside its last point, moved within the panel where it would stand on another.

    Args:
        panel: with its limits and scales set.
        ends: (x, y, text, color) of each line.
    """
    ends = sorted(ends, key=lambda end: end[1])
    own = [panel.transAxes.inverted().transform(panel.transData.transform(end[:2]))[1] for end in ends]
    for (x, y, text, color), before, height in zip(ends, own, _apart(own), strict=True):
        moved = abs(height - before) > 0.01
        arrow = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 0, "relpos": (0, 0.5)}
        panel.annotate(
            text,
            (x, y),
            (1.04 if moved else 1.01, height),
            textcoords="axes fraction",
            color=color,
            va="center",
            fontsize=9,
            annotation_clip=False,
            arrowprops=arrow if moved else None,
        )


def _apart(heights: Sequence[float], gap: float = 0.055) -> list[float]:
    """Return ascending heights moved as little as keeps them apart and within 0 and 1, by least squares."""
    # Without the gaps they only need to ascend: neighbors that do not are moved to their mean.
    groups: list[list[float]] = []
    for place, height in enumerate(heights):
        groups.append([height - place * gap])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    means = [fmean(group) for group in groups for _ in group]
    highest = max(0.0, 1 - (len(means) - 1) * gap)
    return [min(max(mean, 0.0), highest) + place * gap for place, mean in enumerate(means)]
