"""What runs will cost, from a few timed updates."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hf_seqmix.training.run import Run


@pytest.fixture(scope="module")
def costs(script_module: Callable[[str], ModuleType]) -> Any:
    return script_module("benchmarks.run_costs")


def test_hours_are_the_budgets_of_both_stages_or_those_of_the_updates(
    costs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "train", lambda job, folder: {"steps_per_second": 2.0})

    def job(name: str, **options: Any) -> Any:
        training = {"max_seconds": options.pop("seconds")} if "seconds" in options else {}
        return costs.Job(name, "pretrain.py", Run(name, model={}, data={}, training=training), **options)

    jobs = [job("both", seconds=1800, before=job("first", seconds=5400)), job("counted", updates=7200), job("unknown")]
    rows = costs.state_costs(SimpleNamespace(output_dir=tmp_path), jobs)
    assert [row["hours"] for row in rows] == [2.0, 1.0, None]
    assert {row["seconds_per_update"] for row in rows} == {0.5}
