import math

import pytest

from hf_seqmix.training.tables import markdown_table, results_table
from tests.training.sample_results import result


def test_table_has_means_spreads_baselines_and_published_figures():
    shown = [
        result(0.1, model="majority class", kind="baseline", seed=None),
        result(0.4733, kind="published", size="full", seed=None, source="Moreno et al. 2023"),
        result(0.5),
        result(0.7, seed=1),
        result(1200, metric="updates"),  # of the first seed alone
    ]
    assert results_table(
        shown, {"model": "family"}, {"accuracy": "accuracy:.3f", "updates": "updates"}
    ).splitlines() == [
        "| family           | accuracy |     ± | updates | seeds |",
        "| ---------------- | -------: | ----: | ------: | ----: |",
        "| tnn              |    0.600 | 0.141 |   1,200 |     2 |",
        "| (majority class) |    0.100 |     - |       - |     - |",
        "| tnn (published)  |    0.473 |     - |       - |     - |",
    ]


def test_table_over_a_setting():
    shown = [result(0.1 * n, setting={"length": n}) for n in (1, 2)]
    lines = results_table(shown, ["task", "model"], over="length").splitlines()
    assert lines[0].split() == ["|", "task", "|", "model", "|", "1", "|", "2", "|"]
    assert "0.2000" in lines[2]
    with pytest.raises(ValueError, match="two figures fall into the cell tnn, accuracy"):
        results_table(shown)


def test_markdown_table():
    table = markdown_table(
        [{"name": "a|b", "loss": 1.23456, "n": 1000}, {"name": "c", "loss": math.nan}],
        {"name": "model", "loss": "loss:.2f", "n": "tokens:,"},
    )
    assert table.splitlines() == [
        "| model | loss | tokens |",
        "| ----- | ---: | -----: |",
        "| a\\|b  | 1.23 |  1,000 |",
        "| c     |    - |      - |",
    ]
