"""Theorem 4.1 by a coupling of rank one: exact for any target, continuous parts, and what a small coupling costs."""

import math

import pytest
import torch

from hf_seqmix.analysis.rates import CouplingTarget, LinearTarget, RankOneRepresentation, mix, permute

from .inputs import TwoOutputs

DOUBLE = torch.float64
TARGETS = {
    "causal": LinearTarget.from_kernel("oscillating", 13),
    "look-ahead": mix(LinearTarget.from_kernel(length=20), (0.5, 0.5), causal=False),
    "permuted": permute(LinearTarget.from_kernel("uniform", 20)),
    "no convolution": CouplingTarget.power_law(8, length=5),
    "two numbers a token": TwoOutputs(7),
    "one token": LinearTarget((2.0,)),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-4, 1e-9])
def test_every_target_is_represented(name, scale):
    target = TARGETS[name]
    inputs, wanted = target.draw(9, torch.Generator().manual_seed(1), DOUBLE)
    # The ends of the cubes, too.
    inputs[0], inputs[1] = 0, 1
    wanted = target.outputs(inputs)
    outputs = RankOneRepresentation(target, scale).outputs(inputs)
    torch.testing.assert_close(outputs, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("length", [2, 5])
def test_the_coupling_has_one_singular_value(length):
    form = RankOneRepresentation(CouplingTarget.power_law(2, length=length), 0.3)
    tokens = form.encode(torch.rand(1, length, 1, dtype=DOUBLE)).flatten(0, 1)
    anywhere = torch.rand(200, 1, dtype=DOUBLE) * 2 * length
    values = torch.linalg.svdvals(form.coupling(anywhere, anywhere))
    assert values[0] > 0.01 and values[1] < 1e-12
    # Each cube has the measure 1, and rho is constant on pairs of cubes.
    assert torch.linalg.matrix_norm(form.coupling(tokens, tokens)).item() == pytest.approx(form.singular_value)
    assert form.singular_value == pytest.approx(0.3 * math.sqrt(sum(t * t for t in range(length))))


@pytest.mark.parametrize("target", [LinearTarget.from_kernel(length=4), TwoOutputs(4)], ids=["width 1", "width 2"])
def test_features_are_continuous_and_between_0_and_1(target):
    form = RankOneRepresentation(target)
    start = torch.full((1, target.width), -2.0, dtype=DOUBLE)
    step = 1 / 250
    tokens = start + torch.arange(3_000, dtype=DOUBLE)[:, None] * step  # past the last cube
    features = form.features(tokens)
    assert features.min() == 0 and features.max() == 1
    # Products of two functions of slope 1 at most.
    assert features.diff(dim=0).abs().max() <= 2.001 * step
    assert not features[-1].any() and not features[0].any()
    rho = form.coupling(tokens, tokens)
    assert max(rho.diff(dim=0).abs().max(), rho.diff(dim=1).abs().max()) < 4 * step


def test_the_weights_of_the_softmax_know_nothing_of_the_target():
    inputs = torch.rand(2, 20, 1, dtype=DOUBLE)
    averages = [RankOneRepresentation(TARGETS[name], 0.1).averages(inputs) for name in ("look-ahead", "permuted")]
    assert torch.equal(*averages)


def test_a_smaller_coupling_has_a_steeper_f():
    steep = {scale: RankOneRepresentation(TARGETS["causal"], scale).steepness() for scale in (1e-2, 1e-4, 1e-6)}
    assert steep[1e-4] == pytest.approx(100 * steep[1e-2], rel=0.1)
    assert steep[1e-6] == pytest.approx(100 * steep[1e-4], rel=0.01)


def test_what_is_given_is_checked():
    for scale in (0.0, -1.0, 1e-12, 100.0, math.nan):
        with pytest.raises(ValueError, match=r"scale is .*; give 1e-11 to 46.2"):
            RankOneRepresentation(TARGETS["causal"], scale)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 1\); the target takes \(rows, 13, 1\)"):
        RankOneRepresentation(TARGETS["causal"]).outputs(torch.rand(2, 3, 1))
    with pytest.raises(ValueError, match="rows is 0"):
        RankOneRepresentation(TARGETS["causal"]).steepness(0)
    with pytest.raises(ValueError, match="length is 1"):
        RankOneRepresentation(TARGETS["one token"]).steepness()


@pytest.mark.parametrize("length", [1, 5])
def test_constant_inputs_give_f_of_f(length):
    # F = f = id there: proposition B.1, for tokens without positions.
    target = CouplingTarget.power_law(8, length=length)
    inputs = torch.linspace(0, 1, 11, dtype=DOUBLE)[:, None, None].expand(-1, length, 1)
    torch.testing.assert_close(target.outputs(inputs), inputs[..., 0], rtol=1e-14, atol=1e-14)
