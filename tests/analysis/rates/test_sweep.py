"""Tables of errors over budgets and seeds, and their metrics."""

import math

import pytest

from hf_seqmix.analysis.rates import (
    SWEEP_COLUMNS,
    CouplingTarget,
    SingleHeadTransformer,
    TrainSettings,
    rate_sweep,
)
from hf_seqmix.training import markdown_table

TINY = TrainSettings(rows=32, test_rows=32, batch_size=8, check_every=4, max_steps=8)


def transformer(head_size):
    return SingleHeadTransformer(hidden_size=4, head_size=head_size, value_size=3, ff_width=5)


def test_a_sweep_has_a_row_for_each_budget_and_seed():
    target, labels = CouplingTarget.power_law(length=5), []
    rows = rate_sweep(transformer, [1, 3], target, TINY, (0, 4), progress=lambda label, *rest: labels.append(label))
    assert [(row.budget, row.seed) for row in rows] == [(1, 0), (1, 4), (3, 0), (3, 4)]
    assert rows[2].parameters - rows[0].parameters == 2 * 2 * 4  # two more rows of W_Q and of W_K
    assert labels == ["budget 1"] * 2 + ["budget 3"] * 2
    roots = rate_sweep(transformer, [3], target, TINY, (4,), metric="rmse")
    assert roots[0].test_error == pytest.approx(math.sqrt(rows[3].test_error), rel=1e-4)
    table = markdown_table([row.to_dict() for row in rows], SWEEP_COLUMNS).splitlines()
    assert len(table) == 6 and "held-out rows" in table[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rate_sweep(transformer, [], CouplingTarget((1.0,))), r"budgets is \[\]"),
        (lambda: rate_sweep(transformer, [2, 2], CouplingTarget((1.0,))), "each once"),
        (
            lambda: rate_sweep(transformer, [2], CouplingTarget((1.0,)), metric="mae"),
            "metric is 'mae'; give one of mse",
        ),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
