"""Taps of a kernel whose inputs come one at a time, and which of them matter."""

import pytest
import torch

from hf_seqmix.ops.toeplitz.online_kernel import OnlineKernel, lags_that_matter


def test_a_kernel_without_an_end_asks_for_twice_the_taps_or_more():
    asked = []

    def build(length):
        asked.append(length)
        return torch.ones(2, length)

    kernel = OnlineKernel(build, block=8)
    for length in range(1, 200):
        assert kernel.first(length).shape == (2, length)
    assert asked == [16, 32, 64, 128, 256]


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
    beyond = decay**length / (1 - decay)
    kept = lags_that_matter(taps, beyond, torch.finfo(torch.float32).eps)
    assert kept < length
    last = torch.sign(taps).flip(-1)  # the inputs for which dropping taps changes the last output most
    short = torch.where(torch.arange(length) < kept, taps, 0.0)
    dropped = ((taps - short).flip(-1) * last).sum(dim=1).abs()
    bound = torch.finfo(torch.float32).eps * (taps.abs().sum(dim=1) + beyond)
    assert bool((dropped <= bound).all())
    assert bool((taps[:, kept - 1 :].abs().sum(dim=1) + beyond > bound).any())  # one tap fewer would be too few


def test_lags_beyond_the_taps_that_matter_are_refused():
    with pytest.raises(ValueError, match="beyond the 10 given"):
        lags_that_matter(torch.ones(1, 10), beyond=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"taps": torch.ones(1, 3), "block": 6}, "power of two"), ({"taps": torch.ones(3)}, "give real")],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        OnlineKernel(**arguments)
