"""Training of several seeds at once: the plateau rule, seeds alone, learning, and bad settings."""

import math

import pytest
import torch

from hf_seqmix.analysis.rates import (
    CouplingTarget,
    LinearRNN,
    LinearTarget,
    SingleHeadTransformer,
    TrainSettings,
    held_out_error,
    train_on_target,
)
from hf_seqmix.analysis.rates.training import _ROWS_SEED, _Plateaus
from tests.analysis.rates.inputs import TwoOutputs

TINY = TrainSettings(rows=64, test_rows=600, batch_size=16, check_every=5, max_steps=20)


def test_the_plateau_rule():
    rule = _Plateaus(4, TrainSettings(learning_rate=1.0, patience=2, min_fall=0.1, reductions=1))
    falling, flat, slow, diverged = range(4)
    seen = []
    for look in range(1, 7):
        rule.look([0.8**look, 1.0, 0.99**look, math.nan], 10 * look)
        seen.append(rule.rates.clone())
    assert torch.stack(seen)[:, falling].tolist() == [1.0] * 6
    # The first error is a fall; two without a fall divide the rate, two more stop the net.
    assert torch.stack(seen)[:, flat].tolist() == torch.stack(seen)[:, slow].tolist() == [1, 1, 0.1, 0.1, 0, 0]
    assert torch.stack(seen)[:, diverged].tolist() == [1, 0.1, 0.1, 0, 0, 0]
    assert rule.ends == [0, 50, 50, 40]


def test_a_net_among_others_is_the_net_alone():
    target, calls = LinearTarget.from_kernel(length=5), []

    def make():
        return LinearRNN(1, 4).double()

    both = train_on_target(make, target, TINY, (3, 8), lambda *call: calls.append(call), "RNN")
    (alone,) = train_on_target(make, target, TINY, (8,))
    assert [each.seed for each in both] == [3, 8] and both[0].test_error != both[1].test_error
    assert both[1].test_error == pytest.approx(alone.test_error, rel=1e-9)
    assert both[1].train_error == pytest.approx(alone.train_error, rel=1e-9)
    assert [(label, step) for label, step, _ in calls] == [("RNN", 5), ("RNN", 10), ("RNN", 15), ("RNN", 20)]
    assert all(len(errors) == 2 for _, _, errors in calls)
    # And the errors are those of the models that come back.
    x, y = target.draw(TINY.rows, torch.Generator().manual_seed(_ROWS_SEED + 8), torch.float64)
    assert both[1].train_error == pytest.approx((both[1].model(x) - y).square().mean().item(), rel=1e-9)
    assert both[1].test_error == pytest.approx(held_out_error(both[1].model, target, TINY.test_rows), rel=1e-9)
    assert both[0].steps == 20 and not both[0].has_stalled


def test_rows_to_train_on_are_neither_held_out_nor_drawn_with_the_weights():
    drawn = []

    class Watched(LinearTarget):
        def inputs(self, *args):
            drawn.append(super().inputs(*args))
            return drawn[-1]

    train_on_target(lambda: LinearRNN(1, 4), Watched.from_kernel(length=5), TINY, (0, 1))
    drawn += [torch.rand(64, 5, 1, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    rows = torch.cat(drawn)
    assert len(rows) == 2 * 64 + 600 + 2 * 64 == len(rows.unique(dim=0))


def test_a_linear_net_learns_until_it_stalls():
    settings = TrainSettings(
        rows=256, test_rows=256, batch_size=32, learning_rate=0.03, check_every=10, patience=3, reductions=1
    )
    (trained,) = train_on_target(lambda: LinearRNN(1, 3), LinearTarget.from_kernel(length=3), settings)
    assert trained.has_stalled and trained.steps < settings.max_steps
    assert trained.test_error < 1e-6 and trained.train_error < 1e-6


@pytest.mark.parametrize("target", [CouplingTarget.power_law(2, length=3), TwoOutputs(4)])
def test_the_transformer_trains_on_every_shape(target):
    def make():
        sizes = {"hidden_size": 4, "head_size": 2, "value_size": 4, "ff_width": 8}
        return SingleHeadTransformer(target.width, num_outputs=target.num_outputs, **sizes)

    random_state = torch.get_rng_state()
    (trained,) = train_on_target(make, target, TINY)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert math.isfinite(trained.test_error) and trained.model(target.draw(2, torch.Generator())[0]).ndim >= 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TrainSettings(rows=0), "rows is 0"),
        (lambda: TrainSettings(reductions=-1), "reductions is -1"),
        (lambda: TrainSettings(learning_rate=0), "give a positive rate"),
        (lambda: TrainSettings(min_fall=1), "min_fall 1"),
        (lambda: train_on_target(LinearRNN, LinearTarget((1.0,)), TINY, ()), r"seeds is \[\]"),
        (lambda: train_on_target(LinearRNN, LinearTarget((1.0,)), TINY, (1, 1)), "each once"),
        (
            lambda: train_on_target(lambda: SingleHeadTransformer(1, num_outputs=1), LinearTarget((1.0,)), TINY),
            r"outputs have the shape \(1, 16, 1, 1\) and targets \(1, 16, 1\)",
        ),
        (
            lambda: held_out_error(SingleHeadTransformer(1, num_outputs=1), LinearTarget((1.0,)), 5),
            r"outputs have the shape \(5, 1, 1\) and targets \(5, 1\)",
        ),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
