"""Sheets of Pathfinder pictures to look at."""

import datasets
import numpy as np

from .figures import PathLike, draw_grid

__all__ = ["plot_pathfinder_examples"]

_COLUMNS = 3  # of each class


def plot_pathfinder_examples(dataset: datasets.Dataset, path: PathLike, *, rows: int = 4) -> None:
    """Draw the first connected pictures on the left, and the first others on the right.

    Args:
        dataset: a split of `hf_seqmix.data.lra.pathfinder`.
        path: image file; the extension gives the format.
        rows: of the sheet, with 3 pictures of each class.

    Raises:
        ValueError: `rows` is below 1, or there are too few pictures.
    """
    labels = np.array(dataset["label"])
    chosen = [np.flatnonzero(labels == label)[: _COLUMNS * rows] for label in (1, 0)]
    if rows < 1 or min(len(numbers) for numbers in chosen) < _COLUMNS * rows:
        raise ValueError(
            f"{rows} rows of pictures are asked for; give at least 1, and at most as many as there are {_COLUMNS} pictures"
            f" of each class for (there are {int(labels.sum())} and {len(labels) - int(labels.sum())})."
        )
    with draw_grid(path, 2 * _COLUMNS * 1.7, rows * 1.9, rows, 2 * _COLUMNS) as (_, axes):
        for side, (numbers, title) in enumerate(zip(chosen, ("connected", "not connected"), strict=True)):
            panels = axes[:, side * _COLUMNS : (side + 1) * _COLUMNS].ravel()
            for panel, number in zip(panels, numbers, strict=True):
                panel.imshow(dataset[int(number)]["image"], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                panel.set_title(title, fontsize=8)
                panel.axis("off")
