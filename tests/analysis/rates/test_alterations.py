"""Altered targets: the defining identities, who is causal, and permutations that are none."""

import math

import pytest
import torch

from hf_seqmix.analysis.rates import CouplingTarget, LinearTarget, exchange_ends, mix, permute
from tests.analysis.rates.inputs import TwoOutputs

DOUBLE = torch.float64
TABLE_2 = LinearTarget.from_kernel()


def rows(target, count=3):
    return target.inputs(count, torch.Generator().manual_seed(0), DOUBLE)


def test_the_default_permutation_exchanges_ten_tokens_a_side():
    order = exchange_ends(32)
    assert order[:10] == list(range(22, 32)) and order[22:] == list(range(10))
    assert order[10:22] == list(range(10, 22))
    assert exchange_ends(3, 1) == [2, 1, 0]


@pytest.mark.parametrize("target", [LinearTarget.from_kernel(length=7), TwoOutputs(7), CouplingTarget((1.0,), 7)])
def test_permuting_the_inputs_undoes_itself(target):
    order = [3, 0, 1, 6, 2, 5, 4]  # not its own inverse
    altered = permute(target, order)
    x = rows(target)
    # H~(x o p) = H(x) with (x o p)(t) = x(p(t)).
    torch.testing.assert_close(altered.outputs(x[:, order]), target.outputs(x))
    assert torch.equal(
        altered.inputs(2, torch.Generator().manual_seed(5)), target.inputs(2, torch.Generator().manual_seed(5))
    )
    assert (altered.length, altered.width, altered.num_outputs) == (7, target.width, target.num_outputs)
    assert not altered.is_causal


def test_permuting_the_kernel():
    altered = permute(TABLE_2, mode="kernel")
    assert altered.is_causal and altered.taps[22:] == TABLE_2.taps[:10] and altered.taps[:10] == TABLE_2.taps[22:]


def test_who_is_causal():
    assert permute(TABLE_2, range(32)).is_causal
    delayed = LinearTarget.from_kernel("impulse", 9, delay=2)
    assert mix(delayed, [0.5, 0.3, 0.2], causal=False).is_causal  # looks ahead no further than the delay
    assert not mix(delayed, [0, 0, 0, 1.0], causal=False).is_causal
    assert mix(TABLE_2, [0.5, 0.5]).is_causal and not mix(TABLE_2, [0.5, 0.5], causal=False).is_causal
    assert not mix(CouplingTarget((1.0,), 5), [1.0]).is_causal
    assert permute(LinearTarget((2.0,)), [0]).is_causal


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 13])
def test_mixing_by_loops(causal, length):
    theta = [0.5, -0.25, 0.75][:length]
    target = LinearTarget.from_kernel("uniform", length)
    x = rows(target)
    mixed = torch.zeros_like(x)
    for t in range(length):
        for s, value in enumerate(theta):
            place = t - s if causal else t + s
            if 0 <= place < length:
                mixed[:, t] += value * x[:, place]
    altered = mix(target, theta, causal)
    torch.testing.assert_close(altered.outputs(x), target.outputs(mixed))
    torch.testing.assert_close(altered.outputs(x), x[..., 0] @ altered.matrix().T)


def test_causal_mixing_is_a_convolution_of_kernels():
    theta = [0.5, 0.25, 0.25]
    kernel = [sum(theta[k] * TABLE_2.taps[s - k] for k in range(3) if s >= k) for s in range(32)]
    torch.testing.assert_close(mix(TABLE_2, theta).matrix(), LinearTarget(tuple(kernel)).matrix())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: permute(TABLE_2, [0, 1]), r"permutation is \[0, 1\]; give each of 0, ..., 31 once"),
        (lambda: permute(CouplingTarget((1.0,))), "length 16 has no two ends of 10 tokens; give 1 to 8"),
        (lambda: permute(TABLE_2, mode="output"), "mode is 'output'"),
        (lambda: permute(TwoOutputs(), range(8), "kernel"), "needs a LinearTarget, not TwoOutputs"),
        (lambda: mix(TABLE_2, []), "give 1 to 32 finite values"),
        (lambda: mix(TABLE_2, [math.inf]), "finite"),
        (lambda: mix(LinearTarget((1.0,)), [1, 2]), "give 1 to 1 finite"),
    ],
)
def test_wrong_alterations(make, message):
    with pytest.raises(ValueError, match=message):
        make()
