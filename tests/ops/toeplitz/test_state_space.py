"""The conversion of a causal kernel to a recurrence, with its limits."""

import pytest
import torch

from hf_seqmix.ops import toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.state_space import state_space_modes, state_space_step, state_space_taps
from tests.tolerances import assert_close, relative_error


def decode(x, poles, weights, dtype=torch.complex128):
    poles, weights = poles.to(dtype), weights.to(dtype)
    state = torch.zeros(len(x), *weights.shape, dtype=dtype)
    outputs = []
    for column in x.to(poles.real.dtype).unbind(-1):
        state, y = state_space_step(state, column, poles, weights)
        outputs.append(y)
    return torch.stack(outputs, dim=-1)


@pytest.mark.parametrize("length", [1, 2, 7, 16, 97])
@pytest.mark.parametrize("decay", [1.0, 0.97])
def test_equals_the_dense_product(length, decay):
    taps = torch.randn(3, length, dtype=torch.float64)
    x = torch.randn(2, 3, length, dtype=torch.float64)
    poles, weights = state_space_modes(taps, decay)
    assert poles.shape == ((length + 1) // 2,)
    decayed = taps * decay ** torch.arange(length, dtype=torch.float64)
    assert_close(state_space_taps(poles, weights, length), decayed)
    assert_close(decode(x, poles, weights), toeplitz_matmul_dense(x, decayed))


def test_beyond_its_taps_the_kernel_repeats():
    taps = torch.randn(2, 10, dtype=torch.float64)
    implied = state_space_taps(*state_space_modes(taps, 0.9), 33)
    period = torch.cat([taps, -taps.sum(dim=1, keepdim=True)], dim=1)
    assert_close(implied, period.repeat(1, 3) * 0.9 ** torch.arange(33, dtype=torch.float64))


def test_single_precision_loses_digits_that_the_history_keeps():
    taps = torch.randn(2, 512, dtype=torch.float64)
    x = torch.randn(1, 2, 512, dtype=torch.float64)
    modes, exact = state_space_modes(taps), toeplitz_matmul_dense(x, taps)
    assert relative_error(decode(x, *modes, torch.complex64), exact) > 1e-5
    assert_close(decode(x, *modes), exact)


@pytest.mark.parametrize("decay", [0.0, 1.01])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match="must be above 0 and at most 1"):
        state_space_modes(torch.ones(1, 3), decay)
