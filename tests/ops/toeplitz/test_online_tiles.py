"""Far inputs of a convolution whose inputs come one at a time: sizes that take long inputs, and shares of work."""

import pytest
import torch

from hf_seqmix.ops.toeplitz.online import OnlineConvolution
from hf_seqmix.ops.toeplitz.online_kernel import OnlineKernel
from tests.tolerances import assert_close


@pytest.mark.parametrize("block", [32, 128])  # less and more than the 64 columns of a transform of 4,096 samples
def test_long_transforms_are_done_in_two_steps(block):
    length, start = 4300, 4230
    taps, x = torch.randn(3, 2 * length), torch.randn(1, length, 3)
    state = OnlineConvolution(OnlineKernel(lambda first, last: torch.cat([taps] * 2, dim=1)[:, first:last], block), 1)
    before = state.prefill(x[:, :start])[0, -1:]
    y = torch.cat([before, *(state.step(x[:, t : t + 1])[0] for t in range(start, length))])
    reversed_x = x[0].double().flip(0).t()  # (channels, length)
    exact = [(taps[:, : t + 1] * reversed_x[:, length - 1 - t :]).sum(dim=1) for t in range(start - 1, length)]
    assert_close(y, torch.stack(exact))


def test_a_step_computes_a_bounded_part_of_a_span():
    # Pieces, and samples that are transformed in one: a count of work, since a timing is never an assertion.
    work, sizes = [], []
    piece, block = 2**11, 64
    state = OnlineConvolution(OnlineKernel(lambda first, last: torch.ones(16, last - first), block), 1, piece=piece)
    compute = state._far.compute

    def counted(piece):
        level, _, part, stage = piece
        work[-1] += 1
        if stage < 6:
            start, stop = state._far._levels[level]._range(part)
            sizes.append((stop - start) * 2 * block * 4**level)
        compute(piece)

    state._far.compute = counted
    for _ in range(4096):
        work.append(0)
        state.step(torch.ones(1, 1, 16))
    assert sum(sizes) >= 3000 * 16 * 2 * 3 * 6  # there is work to be shared out: three levels, in six stages
    assert max(sizes) <= piece
    assert max(work) <= 2
    assert not any(work[::block])  # when a block begins there is other work
