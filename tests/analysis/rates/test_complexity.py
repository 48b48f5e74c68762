"""Complexities by their definitions, and the bounds that they enter."""

import math

import pytest
import torch

from hf_seqmix.analysis.rates import (
    CouplingTarget,
    LinearTarget,
    coupling_complexity,
    factor_complexity,
    feed_forward_complexity,
    mix,
    permute,
    recurrent_complexity,
    transformer_bound,
)


def test_coupling_complexity():
    values = CouplingTarget.power_law(rank=9, exponent=0.8).singular_values
    assert coupling_complexity(values, 0.8) == pytest.approx(1)
    assert coupling_complexity(values, 0.6) == 1  # a slower decay is bounded by the first value
    assert coupling_complexity(values, 1.3) == pytest.approx(9**0.5)
    assert coupling_complexity([0.1, 2.0, 0.5], 1.0) == 2.0  # in any order
    assert coupling_complexity(torch.zeros(1), 1.0) == 0


def test_feed_forward_complexity():
    assert feed_forward_complexity(1, 2, [3, 4, 99], [5, 6], rank=2) == 21
    assert feed_forward_complexity(0, 0, [1], [2], rank=1) == 3


def test_factor_complexity_from_samples():
    u = torch.linspace(0, 1, 201, dtype=torch.float64)[:, None]
    phi = math.sqrt(2) * torch.sin(2 * math.pi * u * torch.arange(1, 4))
    # F = f = id on [0, 1], as in the synthetic targets.
    assert factor_complexity(u, u[:, 0], u, phi, phi) == pytest.approx(2 * math.sqrt(2), rel=1e-3)
    assert factor_complexity(u, 3 * u[:, 0], u, phi, phi) == pytest.approx(6 * math.sqrt(2), rel=1e-3)
    assert factor_complexity(u, 0 * u[:, 0], u, phi, phi) == 1
    # Fewer samples see less.
    assert factor_complexity(u[::50], 3 * u[::50, 0], u, phi[::50], phi[::50]) <= 6 * math.sqrt(2)


def test_transformer_bound():
    terms = transformer_bound(16, 4, 100, c0=2, c1=3, c2=5, exponent=1, ff_exponent=0.5)
    assert terms == pytest.approx((256 * 2 * 3 / 4, 256 * 2 * 5 * 4**1.5 / 10))
    doubled = transformer_bound(16, 8, 100, c0=2, c1=3, c2=5, exponent=1)
    assert doubled[0] < terms[0] and doubled[1] > terms[1]


def test_recurrent_complexity_of_the_exponential():
    # e^(s/b) e^-s -> 0 for b > 1, so C1 = 2, and e^(s/2) e^-s is largest at 0.
    found = recurrent_complexity(LinearTarget.from_kernel())
    assert (found.c1, found.c2, found.value) == (2, 1, 2)
    assert found.bound(128) == 2 / 128 and found.bound(128, width=3) == 6 / 128
    slower = recurrent_complexity(LinearTarget.from_kernel(rate=0.25))
    assert (slower.c1, slower.value) == (5, 5)


def test_recurrent_complexity_of_other_kernels():
    delayed = recurrent_complexity(LinearTarget.from_kernel("impulse", delay=7))
    assert delayed.c1 == 1 and delayed.value == pytest.approx(math.exp(7))
    assert recurrent_complexity(LinearTarget.from_kernel("polynomial")).value == math.inf
    assert recurrent_complexity(LinearTarget((3.0,))).value == 3
    # A permuted kernel stays a convolution, and its late taps cost e^(22/2).
    kernel = recurrent_complexity(permute(LinearTarget.from_kernel(), mode="kernel"))
    assert kernel.value == pytest.approx(2 * math.exp(11))
    mixed = recurrent_complexity(mix(LinearTarget.from_kernel(), [0.5, 0.5]))
    assert mixed.c1 == 2 and mixed.c2 == pytest.approx(math.exp(0.5) * (0.5 * math.exp(-1) + 0.5))


def test_permuted_inputs_leave_the_finite_complexities():
    target = LinearTarget.from_kernel()
    for altered in (permute(target), mix(target, [0.5, 0.5], causal=False)):
        assert recurrent_complexity(altered).value == math.inf
    # Causal, but not the same at all times: y(1) = x(1), y(2) = x(0).
    exchanged = permute(LinearTarget.from_kernel("impulse", 3), [1, 0, 2])
    assert exchanged.is_causal and recurrent_complexity(exchanged).value == math.inf
    assert recurrent_complexity(permute(target, range(32))).value == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coupling_complexity([], 1.0), "give a list of finite values"),
        (lambda: coupling_complexity([1.0, -1.0], 1.0), "not negative"),
        (lambda: coupling_complexity([1.0], 0.5), "exponent is 0.5; the rates hold for a above 1/2"),
        (lambda: feed_forward_complexity(1, 1, [1], [1, 1], 2), "rank is 2, and there are 1 phi_i and 2 psi_i"),
        (lambda: feed_forward_complexity(1, -1, [1], [1], 1), "none may be negative"),
        (lambda: factor_complexity(*(torch.zeros(2, 1), torch.zeros(2), *[torch.zeros(2, 1)] * 3)), "two different"),
        (lambda: factor_complexity(*[torch.zeros(2, 1)] * 5), r"give \(samples, n\) and \(samples,\)"),
        (lambda: transformer_bound(16, 0, 1, c0=1, c1=1, c2=1, exponent=1), "head_size is 0"),
        (lambda: transformer_bound(16, 1, 1, c0=1, c1=1, c2=1, exponent=1, ff_exponent=0), "ff_exponent is 0"),
        (lambda: recurrent_complexity(CouplingTarget((1.0,))), "CouplingTarget is not linear"),
        (lambda: recurrent_complexity(LinearTarget((1.0,))).bound(0), "hidden_size is 0"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
