"""Taps of a kernel whose inputs come one at a time, and which of them matter."""

import pytest
import torch

from hf_seqmix.ops.toeplitz.online_kernel import OnlineKernel, lags_that_matter


def test_each_tap_is_made_once():
    asked = []

    def build(first, last):
        asked.append((first, last))
        return torch.arange(first, last, dtype=torch.float64).repeat(2, 1)

    kernel = OnlineKernel(build, block=8, dtype=torch.float64)
    assert asked == [(0, 1), (0, 16)]  # one to look at
    for first, last in ((3, 9), (10, 300), (0, 700), (513, 1100), (255, 257), (7, 7)):
        expected = torch.arange(first, last, dtype=torch.float64).repeat(2, 1)
        assert torch.equal(kernel.taps.read(first, last), expected)
        assert torch.equal(kernel.taps.read(first, last, 1, 2), expected[1:])
    assert asked[2:] == [(16, 300), (300, 700), (700, 1100)]
    assert kernel.taps.memory == 2 * 8 * 1100


def test_a_finite_kernel_is_zero_beyond_its_taps():
    kernel = OnlineKernel(torch.ones(1, 3), block=8)
    assert kernel.first(5).tolist() == [[1, 1, 1, 0, 0]]
    levels = {n: OnlineKernel(torch.ones(1, n), block=8).levels for n in (1, 9, 10, 33, 34, 129, 130)}
    assert levels == {1: 0, 9: 0, 10: 1, 33: 1, 34: 2, 129: 2, 130: 3}
    assert [OnlineKernel(torch.ones(1, n), block=8).segments(0) for n in (10, 17, 18, 300)] == [1, 1, 2, 6]


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99])
def test_dropped_taps_are_below_the_resolution_of_the_sum(decay):
    length = 4000
    signs = torch.randn(2, length, dtype=torch.float64).clamp(-1, 1)
    taps = signs * decay ** torch.arange(length)
    kept = lags_that_matter(taps, torch.finfo(torch.float32).eps)
    assert kept < length
    last = torch.sign(taps).flip(-1)  # the inputs for which dropping taps changes the last output most
    short = torch.where(torch.arange(length) < kept, taps, 0.0)
    dropped = ((taps - short).flip(-1) * last).sum(dim=1).abs()
    bound = torch.finfo(torch.float32).eps * taps.abs().sum(dim=1)
    assert bool((dropped <= bound).all())
    assert bool((taps[:, kept - 1 :].abs().sum(dim=1) > bound).any())  # one tap fewer would be too few


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"taps": torch.ones(1, 3), "block": 6}, "power of two"), ({"taps": torch.ones(3)}, "give real")],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        OnlineKernel(**arguments)
