"""Results of language models, whose curves are in the unit of their loss."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from hf_seqmix.training.results import Result


def curve(module: ModuleType, metric: str, evaluation: dict[str, Any]) -> dict[float, float | None]:
    counts = {"num_parameters": 1, "num_train_tokens": 8, "steps_per_second": 1.0, "seconds_per_update": 1.0}
    found = {"evaluation": evaluation, "num_updates": 4, "eval_loss_curve": [[2, 3.0], [4, 0.0]], **counts}
    results: list[Result] = module.measure(found, {"task": "t", "model": "m"})
    return {r.get("seconds"): r.value for r in results if r.metric == metric and r.get("seconds") is not None}


@pytest.mark.parametrize("loss", [0.0, 2.0])
def test_a_curve_has_the_unit_of_its_metric(script_module: Callable[[str], ModuleType], loss: float) -> None:
    module = script_module("benchmarks.language_results")
    assert curve(module, "token_loss", {"token_loss": loss}) == {2.0: 3.0, 4.0: 0.0}
    bits = loss * 10 / 40 / math.log(2)
    text = {"bits_per_byte": bits, "token_loss": loss, "num_tokens": 10, "num_bytes": 40}
    assert curve(module, "bits_per_byte", text) == {2.0: pytest.approx(3 * 10 / 40 / math.log(2)), 4.0: 0.0}
