"""The one figure of results: lines over a setting, points over a metric, names side by side."""

import math
from pathlib import Path

import pytest
from matplotlib.collections import PathCollection

from hf_seqmix.analysis.plots import results as result_plots
from hf_seqmix.analysis.plots.figures import COLORS
from hf_seqmix.analysis.plots.results import plot_results
from hf_seqmix.training.results import Result, group_results


@pytest.fixture
def drawn(monkeypatch):
    """Axes of the figures that are drawn, as they are when they are written."""
    found = []
    below = result_plots.legend_below

    def remember(figure, axes, title):
        below(figure, axes, title)
        found.extend(figure.axes)

    monkeypatch.setattr(result_plots, "legend_below", remember)
    return found


def legend(axes):
    return axes.get_legend_handles_labels()[1]


def _discs(axes):
    """Areas of the discs, the last one being the legend's."""
    return [size for drawn in axes.collections if isinstance(drawn, PathCollection) for size in drawn.get_sizes()]


def curves():
    points = {("a", 0): 0.5, ("a", 1): 0.7, ("b", 0): 0.2}
    return [
        result
        for (model, seed), first in points.items()
        for result in group_results({"accuracy": [[8, first], [16, first + 0.1]]}, task="t", model=model, seed=seed)
    ]


def test_lines_are_means_with_error_bars_and_baselines_are_levels(drawn, tmp_path: Path) -> None:
    baseline = Result("t", "rule", "accuracy", 0.3, kind="baseline")
    path = tmp_path / "plot.png"
    plot_results([*curves(), baseline], path, x="step", y="accuracy", log_x=True, marks={"trained": 8}, title="T")
    assert path.read_bytes().startswith(b"\x89PNG")
    [axes] = drawn
    assert legend(axes)[:2] == ["a", "b"] and {"rule (0.3)", "trained"} <= set(legend(axes))
    a, b = (container for container in axes.containers)
    assert a.lines[0].get_xydata().ravel().tolist() == pytest.approx([8, 0.6, 16, 0.7])
    assert [segment[1][1] - segment[0][1] for segment in a.lines[2][0].get_segments()] == pytest.approx(
        [0.2 * 2**0.5] * 2
    )
    assert not b.lines[2]  # one seed has no error bar
    assert a.lines[0].get_color() == COLORS[0] and b.lines[0].get_color() == COLORS[1]
    assert axes.get_xscale() == "log" and axes.get_ylabel() == "accuracy"


def test_a_point_of_one_seed_among_others_has_no_error_bar(drawn, tmp_path: Path) -> None:
    found = [
        Result("t", "a", "accuracy", value, seed=seed, setting={"x": x})
        for x, seed, value in ((1, 0, 0.1), (1, 1, 0.3), (2, 0, 0.4))
    ]
    plot_results(found, tmp_path / "plot.png", x="x", y="accuracy")
    _, caps, _ = drawn[0].containers[0].lines
    ends = [place for cap in caps for place in cap.get_xydata().tolist() if math.isfinite(place[1])]
    assert {x for x, _ in ends} == {1}


@pytest.mark.parametrize("seeds", [1, 2])
def test_points_over_a_metric_are_not_joined(seeds: int, drawn, tmp_path: Path) -> None:
    found = [
        Result(task, "a", metric, value + seed, seed=seed)
        for seed in range(seeds)
        for task, value in (("one", 1.0), ("two", 2.0))
        for metric in ("accuracy", "speed")
    ]
    plot_results(found, tmp_path / "plot.png", x="speed", y="accuracy")
    [points] = drawn[0].containers
    assert points.lines[0].get_linestyle() == "None" and len(points.lines[0].get_xydata()) == 2


def test_no_two_models_look_alike(drawn, tmp_path: Path) -> None:
    found = [Result("t", f"model {place}", "accuracy", 0.1 * place, setting={"x": 1}) for place in range(9)]
    plot_results(found, tmp_path / "plot.png", x="x", y="accuracy")
    looks = {(line.get_color(), line.get_marker()) for line in drawn[0].lines if line.get_label()[:5] == "model"}
    assert len(looks) == 9


def test_a_setting_that_baselines_have_draws_them_as_lines(drawn, tmp_path: Path) -> None:
    rule = group_results({"accuracy": [[8, 0.1], [16, 0.2]]}, task="t", model="rule", kind="baseline")
    plot_results([*curves(), *rule], tmp_path / "plot.png", x="step", y="accuracy")
    [line] = [line for line in drawn[0].lines if line.get_label() == "rule"]
    assert line.get_xydata().tolist() == [[8, 0.1], [16, 0.2]]


def test_points_over_a_metric_have_areas_in_one_scale(drawn, tmp_path: Path) -> None:
    found = [
        result
        for length, memory in ((8, 10.0), (16, 40.0))
        for result in group_results(
            {"accuracy": 0.5, "speed": 100.0 / length, "memory": memory},
            task="t",
            model="a",
            setting={"length": length},
        )
    ]
    options = {"x": "speed", "y": "accuracy", "area": "memory", "panels": "length"}
    plot_results(found, tmp_path / "plot.png", references={"chance": 0.1}, labels={"length": "tokens"}, **options)
    assert [axes.get_title(loc="left") for axes in drawn] == ["tokens 8", "tokens 16"]
    small, large = (_discs(axes)[0] for axes in drawn)
    assert large / small == pytest.approx(4)
    assert drawn[0].get_xlim()[0] == 0 and {"chance (0.1)", "memory: 10"} <= set(legend(drawn[0]))
    broken = [
        *found,
        Result("t", "b", "accuracy", 0.5),
        Result("t", "b", "speed", 1.0),
        Result("t", "b", "memory", 0.0),
    ]
    with pytest.raises(ValueError, match="memory must be positive; b has"):
        plot_results(broken, tmp_path / "plot.png", x="speed", y="accuracy", area="memory")


@pytest.mark.parametrize("others", [{"size": "full"}, {"kind": "published"}])
def test_points_are_of_one_size_and_kind(others, drawn, tmp_path: Path) -> None:
    found = [Result("t", "a", "accuracy", 0.5), Result("t", "a", "speed", 1.0), Result("t", "a", "memory", 1.0)]
    other = [Result("t", "a", metric, 4.0, **others) for metric in ("accuracy", "speed", "memory")]
    plot_results([*found, *other], tmp_path / "plot.png", x="speed", y="accuracy", area="memory")
    points = [point for container in drawn[0].containers for point in container.lines[0].get_xydata().tolist()]
    assert sorted(points) == [[1.0, 0.5], [4.0, 4.0]]
    assert sorted(_discs(drawn[0]))[-1] == 4 * sorted(_discs(drawn[0]))[0]


def test_areas_are_those_of_the_task(drawn, tmp_path: Path) -> None:
    found = [
        Result(task, "a", metric, value)
        for task, memory in (("one", 10.0), ("two", 40.0))
        for metric, value in (("accuracy", 0.5), ("speed", 1.0), ("memory", memory))
    ]
    plot_results(found, tmp_path / "plot.png", x="speed", y="accuracy", area="memory", panels="task")
    small, large = (_discs(axes)[0] for axes in drawn)
    assert large / small == pytest.approx(4)


def test_names_stand_side_by_side_and_published_figures_are_crosses(drawn, tmp_path: Path) -> None:
    found = [Result(task, model, "score", 1.0) for task in ("one", "two") for model in ("a", "b")]
    found.append(Result("one", "a", "score", 2.0, kind="published"))
    found.append(Result("one", "rule", "score", 0.5, kind="baseline"))
    plot_results(found, tmp_path / "plot.png", x="task", y="score")
    [axes] = drawn
    assert [text.get_text() for text in axes.get_xticklabels()] == ["one", "two"]
    assert set(legend(axes)) == {"a", "a (published)", "b", "rule"}
    a, cross, b = (container.lines[0] for container in axes.containers)
    assert cross.get_marker() == "x" and cross.get_xdata()[0] == a.get_xdata()[0] != b.get_xdata()[0]


def test_baselines_of_some_names_stand_at_these(drawn, tmp_path: Path) -> None:
    found = [Result(task, "a", "score", 1.0) for task in ("one", "two", "three")]
    found += [Result(task, "rule", "score", 0.5, kind="baseline") for task in ("three", "one")]
    plot_results(found, tmp_path / "plot.png", x="task", y="score")
    [line] = [line for line in drawn[0].lines if line.get_label() == "rule"]
    assert list(line.get_xdata()) == [2, 0]


def test_two_metrics_are_two_panels(drawn, tmp_path: Path) -> None:
    found = group_results({"ms": [[8, 1.0], [16, 2.0]], "mib": [[8, 3.0], [16, 9.0]]}, task="t", model="a")
    plot_results(found, tmp_path / "plot.png", x="step", y=("ms", "mib"), log_x=True, log_y=True)
    assert [axes.get_ylabel() for axes in drawn] == ["ms", "mib"] and drawn[1].get_yscale() == "log"


def test_the_legend_names_models_of_every_panel(drawn, tmp_path: Path) -> None:
    found = group_results({"loss": [[0, 1.0], [1, 0.5]]}, task="t", model="a", setting={"split": "first"})
    found += group_results({"loss": [[0, 2.0], [1, 1.5]]}, task="t", model="b", setting={"split": "second"})
    plot_results(found, tmp_path / "plot.png", x="step", y="loss", panels="split")
    assert legend(drawn[0]) == ["a", "b"] and len(drawn) == 2


def test_nothing_to_plot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no result has loss over step"):
        plot_results(curves(), tmp_path / "plot.png", x="step", y="loss")
    assert not (tmp_path / "plot.png").exists()
