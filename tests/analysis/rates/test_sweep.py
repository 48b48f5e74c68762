"""Tables of errors: budgets and seeds, metrics, and the frame of table 2 with the floors beside."""

import math

import pytest

from hf_seqmix.analysis.rates import (
    SWEEP_COLUMNS,
    CouplingTarget,
    LinearRNN,
    LinearTarget,
    SelectAverage,
    SingleHeadTransformer,
    TrainSettings,
    ordering_columns,
    ordering_report,
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


def test_the_frame_of_table_2():
    settings = TrainSettings(rows=400, test_rows=400, batch_size=32, learning_rate=0.03, check_every=20, max_steps=80)
    target = LinearTarget.from_kernel(length=5)
    rows = ordering_report(
        {"RNN": lambda: LinearRNN(1, 5)}, target, permutation=[4, 1, 2, 3, 0], train=settings, seeds=(0, 1)
    )
    by_name = {row.alteration: row for row in rows}
    assert list(by_name) == ["original", "permuted inputs", "permuted kernel", "mixed", "mixed with look-ahead"]
    assert [row.is_causal for row in rows] == [True, False, True, True, False]
    for row in rows:
        # A causal filter without bias cannot be better; 400 rows of 5 tokens leave some error of the error.
        assert len(row.errors["RNN"]) == 2
        assert min(row.errors["RNN"]) > 0.85 * row.floors["causal_filter_without_bias"].mse
    assert max(by_name["original"].errors["RNN"]) < 0.01 * min(by_name["permuted inputs"].errors["RNN"])
    table = markdown_table([row.to_dict() for row in rows], ordering_columns(rows)).splitlines()
    assert len(table) == 7 and "RNN" in table[0] and "(causal linear)" in table[0]


def test_targets_without_a_kernel():
    target = SelectAverage(length=4)
    make = {"transformer": lambda: SingleHeadTransformer(6, num_outputs=2, hidden_size=3, ff_width=4)}
    rows = ordering_report(make, target, permutation=[3, 1, 2, 0], theta=[1.0], train=TINY)
    assert [row.alteration for row in rows] == ["original", "permuted inputs", "mixed", "mixed with look-ahead"]
    assert rows[0].errors["transformer"][0] == pytest.approx(rows[2].errors["transformer"][0], rel=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rate_sweep(transformer, [], CouplingTarget((1.0,))), r"budgets is \[\]"),
        (lambda: rate_sweep(transformer, [2, 2], CouplingTarget((1.0,))), "each once"),
        (
            lambda: rate_sweep(transformer, [2], CouplingTarget((1.0,)), metric="mae"),
            "metric is 'mae'; give one of mse",
        ),
        (lambda: ordering_report({}, LinearTarget((1.0,))), "there are no models"),
        (lambda: ordering_report({"RNN": LinearRNN}, LinearTarget((1.0, 2.0))), "no two ends of 10 tokens"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
