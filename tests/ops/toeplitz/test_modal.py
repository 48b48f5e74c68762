"""Windows and states of modes against the taps of the whole kernel."""

import pytest
import torch

from hf_seqmix.ops import toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.distillation import modal_taps
from hf_seqmix.ops.toeplitz.modal import ModalKernel
from tests.tolerances import assert_close

CHANNELS, LENGTH, REACH = 3, 83, 6
POLES = torch.tensor([0.95, 0.5 + 0.6j, -0.8], dtype=torch.complex128)


def kernel(dtype=torch.float64):
    weights = torch.randn(CHANNELS, len(POLES), dtype=torch.complex128)
    exact = torch.randn(CHANNELS, REACH, dtype=torch.float64)
    return ModalKernel(exact, POLES, weights, dtype), torch.cat([exact, modal_taps(POLES, weights, LENGTH)], dim=1)


def dense(x, taps):
    return toeplitz_matmul_dense(x.transpose(1, 2).double(), taps[:, : x.shape[1]]).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("leaving", [(1,), (41,), (7, 1, 30, 2)])
def test_a_state_stands_for_the_inputs_before_a_window(dtype, leaving):
    modal, taps = kernel(dtype)
    x = torch.randn(2, LENGTH, CHANNELS, dtype=dtype)
    assert_close(modal.first(LENGTH), taps[:, :LENGTH])
    state, start = None, 0
    for count in leaving:
        state = modal.advance(state, x[:, start : start + count])
        start += count
    first = REACH - 1
    near = dense(x[:, start:], taps)[:, first:]
    assert_close(near + modal.outputs(state, first, near.shape[1]), dense(x, taps)[:, start + first :], dtype)


def test_windows_that_begin_later_in_some_rows():
    modal, taps = kernel()
    x = torch.randn(3, LENGTH, CHANNELS, dtype=torch.float64)
    late = torch.tensor([0, 4, 9])
    # Row r has late[r] zeros between what left the window and the rest of its inputs.
    state = modal.advance(None, x[:, :20])
    rows = [
        torch.cat([row.new_zeros(int(n), CHANNELS), row[20 : LENGTH - int(n)]]) for row, n in zip(x, late, strict=True)
    ]
    window = torch.stack(rows)
    exact = torch.stack([dense(row[None, : LENGTH - int(n)], taps)[0, -30:] for row, n in zip(x, late, strict=True)])
    first = window.shape[1] - 30
    assert_close(dense(window, taps)[:, first:] + modal.outputs(state, first, 30, late), exact)
    together = modal.advance(state, window[:, :15], 15 - late)
    assert_close(dense(window[:, 15:], taps)[:, -30:] + modal.outputs(together, first - 15, 30), exact)


def test_channels_must_agree():
    modal, _ = kernel()
    with pytest.raises(ValueError, match="undo_distillation"):
        ModalKernel(modal.exact[:2], POLES, torch.zeros(CHANNELS, 3, dtype=torch.complex128))


def test_taps_of_long_prompts_are_not_kept():
    modal, _ = kernel()
    modal.first(50)
    before = sum(value.nbytes for value in vars(modal).values() if isinstance(value, torch.Tensor))
    assert modal.first(5000).shape == (CHANNELS, 5000)
    assert sum(value.nbytes for value in vars(modal).values() if isinstance(value, torch.Tensor)) == before


def test_autocast_changes_nothing():
    (modal, _), x = kernel(torch.float32), torch.randn(2, 9, CHANNELS)
    state = modal.advance(None, x)
    outputs = modal.outputs(state, REACH - 1, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(modal.advance(None, x), state)
        assert torch.equal(modal.outputs(state, REACH - 1, 3), outputs)
