"""The convolution whose inputs come one at a time against the dense product."""

import copy
import random

import pytest
import torch

from hf_seqmix.ops import toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.online import OnlineConvolution
from hf_seqmix.ops.toeplitz.online_kernel import OnlineKernel, lags_that_matter
from tests.tolerances import assert_close

CHANNELS, LENGTH = 3, 260


def problem(taps=None, dtype=torch.float64, block=4, batch=2, length=LENGTH, decay=1.0):
    """Return inputs (batch, length, channels), a kernel (of `taps` taps; None: without an end), outputs."""
    given = torch.randn(CHANNELS, 8 * length, dtype=torch.float64) * decay ** torch.arange(8 * length)
    x = torch.randn(batch, length, CHANNELS, dtype=torch.float64).to(dtype)
    exact = given[:, :length] * (torch.arange(length) < (taps or length))
    kernel = OnlineKernel(
        (lambda first, last: given[:, first:last]) if taps is None else given[:, :taps], block, dtype
    )
    return x, kernel, toeplitz_matmul_dense(x.transpose(1, 2).double(), exact).transpose(1, 2)


def run(state, x, prompt, draw=None):
    """Return the outputs of a prompt and of steps, of drawn numbers of tokens."""
    outputs = [state.prefill(x[:, :prompt])] if prompt else []
    while state.position < x.shape[1]:
        count = draw.choice([1, 1, 1, 2, 3, 20]) if draw else 1
        outputs.append(state.step(x[:, state.position : state.position + count]))
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("taps", [None, 1, 2, 5, 6, 7, 33, 1000])
@pytest.mark.parametrize("prompt", [0, 1, 7, 64, 97])
def test_equals_the_dense_product(taps, prompt):
    x, kernel, exact = problem(taps)
    state = OnlineConvolution(kernel, 2, x.dtype)
    assert_close(run(state, x, prompt, random.Random(prompt)), exact)
    assert state.position == LENGTH


@pytest.mark.parametrize("block", [1, 16, 64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_blocks_and_dtypes(block, dtype):
    x, kernel, exact = problem(None, dtype, block)
    y = run(OnlineConvolution(kernel, 2, dtype), x, 31)
    assert y.dtype == dtype
    assert_close(y, exact)


@pytest.mark.parametrize("piece", [1, 40])
def test_pieces_of_a_tile_are_ready_in_time(piece):
    x, kernel, exact = problem()
    assert_close(run(OnlineConvolution(kernel, 2, x.dtype, piece), x, 13), exact)


@pytest.mark.parametrize("taps", [None, 33, 300])
@pytest.mark.parametrize("seed", range(3))
def test_crop_and_extend_again_at_random_points(taps, seed):
    x, kernel, exact = problem(taps)
    draw, furthest = random.Random(seed), 0
    state = OnlineConvolution(kernel, 2, x.dtype, piece=[1, 40, 2**14][seed])
    for _ in range(60):
        start = state.position
        end = min(LENGTH, start + draw.choice([1, 2, 5, 30, 70]))
        if start < end:
            assert_close(state.step(x[:, start:end]), exact[:, start:end])
        furthest = max(furthest, end)
        length = max(0, end - draw.choice([0, 1, 2, 8, 33, 90]))
        try:
            state.crop(length)
        except ValueError:
            assert taps == 33 and furthest - length > 16


def test_rows_at_their_own_positions():
    x, kernel, _ = problem()
    starts = (0, 37)
    state = OnlineConvolution(kernel, 2, x.dtype)
    pads = torch.stack([torch.arange(LENGTH) < start for start in starts])
    together = run(state, x.masked_fill(pads.unsqueeze(-1), 0), 50)
    for row, start in enumerate(starts):
        alone = run(OnlineConvolution(kernel, 1, x.dtype), x[row : row + 1, start:], 50 - start)
        assert_close(together[row : row + 1, start:], alone)


def test_rows_are_reordered_selected_and_joined():
    x, kernel, exact = problem(batch=3)
    state = OnlineConvolution(kernel, 3, x.dtype)
    state.prefill(x[:, :100])
    rows = torch.tensor([2, 0, 0, 1])
    state.reorder(rows)
    for t in range(100, 150):
        assert_close(state.step(x[rows, t : t + 1]), exact[rows, t : t + 1])
    state.reorder(torch.tensor([0]))
    other = OnlineConvolution(kernel, 1, x.dtype)
    other.prefill(x[:1, :110])
    late = torch.nn.functional.pad(other.inputs(), (0, 0, 40, 0))
    state.load(torch.cat([state.inputs(), late]))
    for step in range(60):
        y = state.step(torch.cat([x[2:, 150 + step : 151 + step], x[:1, 110 + step : 111 + step]]))
        assert_close(y, torch.cat([exact[2:, 150 + step : 151 + step], exact[:1, 110 + step : 111 + step]]))


def test_guessed_tokens_are_taken_back_after_rows_have_changed():
    x, kernel, exact = problem(batch=2)
    rows = torch.tensor([1, 0])
    state, other = (OnlineConvolution(kernel, batch, x.dtype) for batch in (2, 1))
    state.prefill(x[:, :100])
    state.step(x[:, 100:103])
    state.reorder(rows)
    state.crop(101)
    assert_close(state.step(x[rows, 101:103]), exact[rows, 101:103])
    other.prefill(x[:1, :103])
    state.join(other.inputs())
    rows = torch.tensor([1, 0, 0])
    state.crop(102)
    assert_close(state.step(x[rows, 102:120]), exact[rows, 102:120])


@pytest.mark.parametrize("taps", [None, 33])
def test_a_state_is_copied_and_moved(taps):
    x, kernel, exact = problem(taps)
    state = OnlineConvolution(kernel, 2, x.dtype)
    state.prefill(x[:, :70])
    copied = copy.deepcopy(state)
    assert copied.kernel is kernel
    copied.step(-x[:, 70:80])  # what a copy sees does not reach the state
    memory = state.memory
    with torch.inference_mode():
        assert state.to("cpu") is state and state.to(torch.device("cpu"), non_blocking=True).memory == memory
    assert_close(run(state, x, 0), exact[:, 70:])
    copied.crop(70)
    assert_close(run(copied, x, 0), exact[:, 70:])


def tensors_of(value):
    """Yield the tensors of a state, without those of its kernel."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(each)
    elif type(value).__module__.startswith("hf_seqmix") and not isinstance(value, OnlineKernel):
        yield from tensors_of(vars(value))


def test_a_state_stored_elsewhere_leaves_no_tensor_behind():
    x, kernel, _ = problem()
    state = OnlineConvolution(kernel, 2, x.dtype)
    run(state, x[:, :70], 20)
    assert {each.device.type for each in tensors_of(state)} == {"cpu"}
    assert {each.device.type for each in tensors_of(state.to("meta"))} == {"meta"}


def test_a_decaying_kernel_keeps_bounded_memory():
    x, long, exact = problem(None, torch.float32, decay=0.6)
    kept = lags_that_matter(long.first(LENGTH))
    assert kept < 60
    kernel = OnlineKernel(long.first(kept), 4)
    state = OnlineConvolution(kernel, 2)
    outputs, sizes = [], []
    for t in range(LENGTH):
        outputs.append(state.step(x[:, t : t + 1]))
        sizes.append(state.memory)
    assert_close(torch.cat(outputs, dim=1), exact)
    assert len(set(sizes[150:])) == 1
    assert state.inputs().shape[1] >= kept - 1


def test_states_made_in_inference_mode_go_on_outside():
    x, kernel, exact = problem()
    with torch.inference_mode():
        state = OnlineConvolution(kernel, 2, x.dtype)
        state.prefill(x[:, :90])
        state.reorder(torch.arange(2))
    with torch.no_grad():
        assert_close(state.step(x[:, 90:120]), exact[:, 90:120])


def test_wrong_inputs_are_named():
    x, kernel, _ = problem()
    state = OnlineConvolution(kernel, 2, x.dtype)
    with pytest.raises(ValueError, match="is needed"):
        state.step(x[:1, :1])
    with pytest.raises(ValueError, match="is needed"):
        state.step(x[:, :1].float())
    with pytest.raises(ValueError, match="wants derivatives"):
        state.step(x[:, :1].requires_grad_())
    with pytest.raises(ValueError, match="make the kernel for that dtype"):
        OnlineConvolution(kernel, 2, torch.float32)
    state.step(x[:, :1].detach())


def test_rows_join_after_a_crop():
    x, kernel, exact = problem(batch=1)
    state, other = OnlineConvolution(kernel, 1, x.dtype), OnlineConvolution(kernel, 1, x.dtype)
    state.prefill(x[:, :200])
    state.crop(10)
    other.prefill(x[:, :10])
    state.join(other.inputs())
    for t in range(10, 150):
        assert_close(state.step(x[:, t : t + 1].repeat(2, 1, 1)), exact[:, t : t + 1].repeat(2, 1, 1))
