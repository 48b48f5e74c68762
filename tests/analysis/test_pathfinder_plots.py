"""The sheet of Pathfinder pictures."""

import datasets
import numpy as np
import pytest
from PIL import Image

from hf_seqmix.analysis.pathfinder_plots import plot_pathfinder_examples


def test_sheet_shows_connected_pictures_on_the_left(tmp_path):
    # Connected ones are white, the others black.
    labels = [0, 1] * 6
    rows = datasets.Dataset.from_dict(
        {
            "image": [Image.fromarray(np.full((32, 32), 255 * label, dtype=np.uint8)) for label in labels],
            "label": labels,
        }
    )
    plot_pathfinder_examples(rows, tmp_path / "sheet.png", rows=2)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("L")) / 255
    middle = sheet.shape[1] // 2
    dark = sheet < 0.1
    assert dark[:, middle:].mean() > 0.5
    assert dark[:, :middle].mean() < 0.05
    with pytest.raises(ValueError, match=r"3 rows of pictures .* \(there are 6 and 6\)"):
        plot_pathfinder_examples(rows, tmp_path / "none.png", rows=3)
    assert not (tmp_path / "none.png").exists()
