import math

import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.image import imread

from hf_seqmix.analysis.tradeoff_plots import TradeOffPoint, plot_costs, plot_tradeoff

POINTS = [
    TradeOffPoint("tnn", 0.4, 2.0, 100.0, spread=0.01),
    TradeOffPoint("ski_tnn", 0.4, 2.02, 50.0),
    TradeOffPoint("attention", 0.35, 1.0, 400.0),
]


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, for a look inside."""
    saved = []
    original = Figure.savefig

    def keep(figure, *args, **kwargs):
        saved.append(figure)
        return original(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def discs(axes):
    found = [c for c in axes.collections if isinstance(c, PathCollection) and len(c.get_offsets()) == 1]
    return {tuple(c.get_offsets()[0]): c.get_sizes()[0] for c in found}


def test_areas_are_proportional_to_memory_in_all_panels(tmp_path, figures):
    path = tmp_path / "plot.png"
    panels = {"64 tokens": POINTS, "128 tokens": [TradeOffPoint("tnn", 0.4, 1.0, 200.0)]}
    plot_tradeoff(panels, path, references={"majority class": 0.17}, title="title")
    assert imread(path).std() > 0
    first, second = figures[0].axes
    areas = discs(first)
    assert areas[2.0, 0.4] / areas[1.0, 0.35] == pytest.approx(100 / 400)
    assert areas[2.02, 0.4] / discs(second)[1.0, 0.4] == pytest.approx(50 / 200)
    [legend] = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "majority class (0.170)",
        "50 MiB",
        "200 MiB",
        "500 MiB",
    ]
    assert legend.legend_handles[1].get_sizes()[0] == pytest.approx(areas[2.02, 0.4])
    bars = [c for c in first.collections if isinstance(c, LineCollection) and len(c.get_segments()) == 1]
    assert [segment.tolist() for c in bars for segment in c.get_segments()] == [
        [[2.0, pytest.approx(0.39)], [2.0, pytest.approx(0.41)]]
    ]


def test_labels_do_not_lie_on_each_other(tmp_path, figures):
    plot_tradeoff({"": POINTS}, tmp_path / "plot.png")
    [axes] = figures[0].axes
    figures[0].draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert {text.get_text() for text in axes.texts} == {"tnn", "ski_tnn", "attention"}
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_costs_over_the_length(tmp_path, figures):
    plot_costs({"tnn": [(256, 4.0, 20.0), (128, 2.0, 10.0)], "ipa": [(128, 1.0, 5.0)]}, tmp_path / "plot.png")
    time, memory = figures[0].axes
    assert {line.get_label(): [list(line.get_xdata()), list(line.get_ydata())] for line in time.lines} == {
        "tnn": [[128, 256], [2.0, 4.0]],
        "ipa": [[128], [1.0]],
    }
    assert list(memory.lines[0].get_ydata()) == [10.0, 20.0] and time.get_yscale() == "log"


@pytest.mark.parametrize("points", [{}, {"64 tokens": []}])
def test_nothing_to_plot(points):
    for plot in (plot_tradeoff, plot_costs):
        with pytest.raises(ValueError, match="nothing to plot"):
            plot(points, "never-written.png")
    with pytest.raises(ValueError, match="must be positive; tnn"):
        plot_tradeoff({"": [TradeOffPoint("tnn", 0.4, 1.0, math.nan)]}, "never-written.png")
