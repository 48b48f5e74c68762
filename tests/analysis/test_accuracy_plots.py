"""Plots of accuracy are written, and refuse what they cannot draw."""

from pathlib import Path

import pytest

from hf_seqmix.analysis.accuracy_plots import plot_accuracy_by_length, plot_accuracy_curves


def test_curves(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    plot_accuracy_curves({"a": [(1, 0.2), (2, 0.4)], "b": []}, path, references={"majority": 0.1}, title="task")
    assert path.stat().st_size > 10_000
    with pytest.raises(ValueError, match="no run was evaluated"):
        plot_accuracy_curves({"b": []}, path)


def test_lengths(tmp_path: Path) -> None:
    path = tmp_path / "lengths.png"
    plot_accuracy_by_length({"a": [0.5, None]}, ["1-8", "9-16"], path, references={"majority": [0.1, 0.1]})
    assert path.stat().st_size > 10_000
    for wrong in ({}, {"a": [0.5]}):
        with pytest.raises(ValueError, match="each of the 2 ranges"):
            plot_accuracy_by_length(wrong, ["1-8", "9-16"], path)
