"""The frame of table 2 with the floors beside, of models that are trained and of models that were."""

import copy
from pathlib import Path

import pytest
import torch

from hf_seqmix.analysis.rates import (
    LinearRNN,
    LinearTarget,
    MixerRegressor,
    SingleHeadTransformer,
    TrainSettings,
    altered_targets,
    checkpoint_report,
    ordering_report,
    train_on_target,
)
from tests.analysis.rates.inputs import TwoOutputs

TINY = TrainSettings(rows=32, test_rows=32, batch_size=8, check_every=4, max_steps=8)
ENDS = [4, 1, 2, 3, 0]


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


def test_targets_without_a_kernel():
    target = TwoOutputs(4)
    make = {"transformer": lambda: SingleHeadTransformer(2, num_outputs=2, hidden_size=3, ff_width=4)}
    rows = ordering_report(make, target, permutation=[3, 1, 2, 0], theta=[1.0], train=TINY)
    assert [row.alteration for row in rows] == ["original", "permuted inputs", "mixed", "mixed with look-ahead"]
    assert rows[0].errors["transformer"][0] == pytest.approx(rows[2].errors["transformer"][0], rel=1e-4)


def test_models_that_were_trained_as_they_are():
    target = LinearTarget.from_kernel(length=5)
    exact = LinearRNN.from_taps(torch.tensor(target.taps, dtype=torch.float64))
    rows = checkpoint_report({"exact": exact}, target, permutation=ENDS)
    errors = {row.alteration: row.errors["exact"][0] for row in rows}
    assert errors["original"] < 1e-28
    # Of independent inputs of mean 1/2 and variance 1/12, E (d^T x)^2 = |d|^2 / 12 + (sum d / 2)^2.
    for row, version in zip(rows[1:], versions(target)[1:], strict=True):
        difference = version.matrix() - target.matrix()
        wanted = difference.square().sum(1).mean() / 12 + (difference.sum(1) / 2).square().mean()
        assert errors[row.alteration] == pytest.approx(wanted.item(), rel=0.1)
        assert errors[row.alteration] > row.floors["bidirectional_linear"].mse
    assert [set(row.to_dict()) for row in rows] == [set(rows[0].to_dict())] * 5


def versions(target):
    return list(altered_targets(target, ENDS).values())


def test_saved_models_are_measured_and_trained_on(tmp_path: Path):
    target = LinearTarget.from_kernel(length=5)
    settings = TrainSettings(rows=64, test_rows=4096, max_steps=30, check_every=10)
    (trained,) = train_on_target(lambda: MixerRegressor("short_conv", hidden_size=8, max_length=5), target, settings)
    trained.model.save_pretrained(tmp_path)
    (as_is,) = [row.errors["net"] for row in checkpoint_report({"net": tmp_path}, target, permutation=ENDS)][:1]
    assert as_is[0] == pytest.approx(trained.test_error, rel=1e-5)
    before = copy.deepcopy(trained.model.state_dict())
    rows = checkpoint_report({"net": trained.model}, target, permutation=ENDS, train=settings, seeds=(0, 1))
    assert len(rows[0].errors["net"]) == 2 and max(rows[0].errors["net"]) < trained.test_error
    assert all(torch.equal(before[name], value) for name, value in trained.model.state_dict().items())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ordering_report({}, LinearTarget((1.0,))), "there are no models"),
        (lambda: checkpoint_report({}, LinearTarget((1.0,))), "there are no models"),
        (lambda: ordering_report({"RNN": LinearRNN}, LinearTarget((1.0, 2.0))), "no two ends of 10 tokens"),
        (
            lambda: checkpoint_report({"T": SingleHeadTransformer(num_outputs=1)}, LinearTarget.from_kernel()),
            r"outputs have the shape \(4096, 32, 1\) and targets \(4096, 32\)",
        ),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
