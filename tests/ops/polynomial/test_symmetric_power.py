"""Symmetric powers: inner products, sizes and derivatives."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_seqmix.ops.polynomial.symmetric_power import (
    monomials,
    multinomials,
    number_of_features,
    symmetric_power,
    whole_power,
)
from tests.tolerances import assert_close


@pytest.mark.parametrize(("width", "power"), [(1, 1), (1, 5), (5, 1), (5, 2), (7, 3), (3, 4), (2, 6), (2, 16)])
def test_inner_products_are_powers_of_inner_products(width, power):
    x, y = torch.randn(2, 3, 11, width, dtype=torch.float64)
    first, second = symmetric_power(x, power), symmetric_power(y, power)
    assert first.shape == (3, 11, math.comb(width + power - 1, power))
    assert first.shape[-1] == number_of_features(width, power)
    assert_close(first @ second.mT, (x @ y.mT) ** power)
    assert torch.equal(symmetric_power(2 * x, power), 2**power * first)


@pytest.mark.parametrize(("width", "power"), [(1, 1), (5, 1), (5, 2), (7, 3)])
def test_monomials_are_features_without_weights(width, power):
    x = torch.randn(3, 11, width, dtype=torch.float64)
    weighted = monomials(x, power) * multinomials(width, power, x).sqrt()
    assert_close(weighted.mT, symmetric_power(x, power))


def test_features_by_hand():
    x = torch.tensor([2.0, 3.0], dtype=torch.float64)
    assert_close(symmetric_power(x[None], 2)[0], torch.tensor([4, 6 * math.sqrt(2), 9], dtype=torch.float64))
    assert_close(
        symmetric_power(x[None], 3)[0],
        torch.tensor([8, 12 * math.sqrt(3), 18 * math.sqrt(3), 27], dtype=torch.float64),
    )


@pytest.mark.parametrize("power", [2, 3])
def test_derivatives(power):
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: symmetric_power(x, power), x)
    assert torch.autograd.gradgradcheck(lambda x: symmetric_power(x, power), x)


def test_whole_powers():
    x = torch.tensor([-1.5, 0.0, 2.0], dtype=torch.float64)
    for power in (1, 2, 3, 4):
        assert torch.equal(whole_power(x, power), x**power)


@pytest.mark.parametrize("power", [0, -1, 17])
def test_other_powers_are_refused(power):
    for features in (symmetric_power, monomials):
        with pytest.raises(ValueError, match=f"power is {power}; it must be from 1 to 16"):
            features(torch.zeros(2, 3, 4), power)


def test_nothing_is_copied_from_the_host():
    """Such a copy waits for a GPU, and a CUDA graph cannot record it."""

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.add(func)
            return func(*args, **(kwargs or {}))

    called = set()
    x = torch.randn(2, 3, 4)
    with Record():
        monomials(x, 3) * multinomials(4, 3, x)
    # The last is what torch makes of a list of numbers.
    assert torch.ops.aten.cumsum.default in called and torch.ops.aten.lift_fresh.default not in called


def test_empty_inputs():
    assert symmetric_power(torch.zeros(2, 0, 4), 2).shape == (2, 0, 10)
    assert symmetric_power(torch.zeros(0, 3, 4), 3).shape == (0, 3, 20)
