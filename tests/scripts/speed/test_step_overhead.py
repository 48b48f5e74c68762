"""The costs of a step: counts are those of a step alone, and polynomial models are as large as TNN."""

import pytest
import step_overhead


def test_counts_and_sizes(tmp_path):
    options = ["--hidden-size", "64", "--layers", "1", "--rounds", "1", "--output-dir", str(tmp_path)]
    rows = {}
    for tokens in ("3", "6"):
        found = step_overhead.main(["--models", "tnn", "poly2", "--tokens", tokens, *options])
        rows[tokens] = {row["model"]: row for row in found}
    assert set(rows["3"]) == {"llama", "tnn", "poly2"} and rows["3"]["llama"]["llama"] == 1
    for name, row in rows["3"].items():
        assert row["operations"] > 20 and row["calls"] > 100
        assert row["calls"] == pytest.approx(rows["6"][name]["calls"], rel=0.1)  # the prompt is not counted
        assert row["parameters"] == pytest.approx(rows["3"]["tnn"]["parameters"], rel=0.03)
    assert "times the step of Llama" in (tmp_path / "step_overhead.md").read_text(encoding="utf-8")
