import math
from pathlib import Path

import datasets
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image

from hf_seqmix.analysis import LanguageModelScore
from hf_seqmix.analysis.plots import plot_context_lengths, plot_loss, plot_pathfinder_examples
from hf_seqmix.analysis.text.scores import position_edges


def score(context_length, loss):
    start = position_edges(context_length)[:-1]
    tokens = [after - first for first, after in zip(start, position_edges(context_length)[1:], strict=True)]
    return LanguageModelScore(
        context_length=context_length,
        stride=context_length,
        nll=loss * context_length,
        num_tokens=context_length,
        num_bytes=4 * context_length,
        num_words=context_length,
        num_documents=1,
        num_unknown=0,
        position_start=tuple(start),
        position_tokens=tuple(tokens),
        position_nll=tuple(loss * n for n in tokens),
        seconds=1.0,
    )


SCORES = {"one": [score(256, 3.0), score(128, 3.2)], "two": [score(128, 2.0), score(256, 1.9), score(512, 1.8)]}


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, for a look inside."""
    saved = []
    original = Figure.savefig

    def savefig(self, path, *args, **kwargs):
        saved.append(self)
        original(self, path, *args, **kwargs)
        assert imread(Path(path)).std() > 0.01, "the image is blank"

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


def lines(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def test_context_lengths(tmp_path, figures):
    plot_context_lengths(SCORES, tmp_path / "plot.png", references={"gzip": 1.9})
    bits, perplexity = figures[0].axes
    assert lines(bits)["one"] == ([128, 256], [pytest.approx(x / math.log(2) / 4) for x in (3.2, 3.0)])
    assert lines(perplexity)["two"] == ([128, 256, 512], [pytest.approx(math.exp(x)) for x in (2.0, 1.9, 1.8)])
    assert any("gzip 1.90" in text.get_text() for text in bits.texts)


def test_one_token_of_context(tmp_path, figures):
    plot_context_lengths({"one": [score(1, 3.0)]}, tmp_path / "plot.png")
    assert lines(figures[0].axes[1])["one"] == ([1], [pytest.approx(math.exp(3))])


def test_loss(tmp_path, figures):
    history = [{"step": step, "loss": 4.0 / step, "epoch": 0} for step in range(1, 41)]
    history += [{"step": 20, "eval_loss": 1.0}, {"step": 40, "eval_loss": 0.5}, {"step": 40, "train_loss": 9.0}]
    plot_loss(history, tmp_path / "plot.png", unit="bits", title="run")
    drawn = lines(figures[0].axes[0])
    assert drawn["evaluation (last 0.500)"] == ([20, 40], [1.0, 0.5])
    steps, smooth = drawn["training (smoothed)"]
    assert steps == list(range(1, 41))
    assert smooth[9] == pytest.approx(sum(4 / step for step in (9, 10, 11)) / 3)
    assert figures[0].axes[0].get_ylabel() == "loss (bits)"

    plot_loss(history[:3], tmp_path / "plot.png")
    assert lines(figures[1].axes[0])["training"] == ([1, 2, 3], [4.0, 2.0, pytest.approx(4 / 3)])


def test_a_loss_that_is_no_number_does_not_end_the_smoothed_line(tmp_path, figures):
    history = [{"step": step, "loss": math.nan if step == 10 else 4.0} for step in range(1, 41)]
    plot_loss(history, tmp_path / "plot.png")
    _, smooth = lines(figures[0].axes[0])["training (smoothed)"]
    assert [step for step, value in enumerate(smooth, 1) if math.isnan(value)] == [9, 10, 11]


@pytest.mark.parametrize("name", ["plot", "plot.xyz"])
def test_files_without_a_format_are_refused_by_their_name(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name} ends in no format of a picture; allowed are .*\.png"):
        plot_loss([{"step": 1, "loss": 2.0}], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_no_file_behind(tmp_path, monkeypatch):
    def half(figure, path, **options):
        Path(path).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="no space left"):
        plot_loss([{"step": 1, "loss": 2.0}], tmp_path / "plot.png")
    assert not list(tmp_path.iterdir())


def test_nothing_to_plot():
    for scores in ({}, {"one": []}):
        with pytest.raises(ValueError, match="nothing to plot"):
            plot_context_lengths(scores, "never-written.png")
    with pytest.raises(ValueError, match="no loss to plot"):
        plot_loss([{"step": 1, "train_loss": 2.0}], "never-written.png")


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
