"""The last inputs of short convolutions, alone and beside what cache layers keep."""

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix.cache import (
    ConvolutionLayer,
    HistoryLayer,
    HistoryStaticLayer,
    ModesLayer,
    SumsLayer,
    SumsStaticLayer,
)
from hf_seqmix.cache.inputs import InputsLayer, InputsStaticLayer
from hf_seqmix.cache.key_inputs import KeyInputsLayer, KeyInputsStaticLayer
from hf_seqmix.cache.recent_inputs import RecentInputs, last_real
from tests.tolerances import assert_close

GROWING = (KeyInputsLayer, InputsLayer, HistoryLayer, ConvolutionLayer, ModesLayer, SumsLayer)
PREALLOCATED = (KeyInputsStaticLayer, InputsStaticLayer, HistoryStaticLayer, SumsStaticLayer)
LAYERS = GROWING + PREALLOCATED


def make(kind: Any) -> Any:
    return kind(max_cache_len=40) if kind.is_compileable else kind()


def push(layer: Any, inputs: Tensor, real: Tensor | None = None, count: int = 2, name: str = "block") -> Tensor:
    """As a block does: inputs first, then what a mixer keeps."""
    before = layer.push_inputs(name, inputs, real, count)
    keys = inputs[:, None, :, : 0 if isinstance(layer, (InputsLayer, InputsStaticLayer)) else 3]
    attends = isinstance(layer, (KeyInputsLayer, KeyInputsStaticLayer))
    layer.update(keys, keys if attends else keys[..., :0], fold=partial(torch.sum, dim=1))
    return before


def test_last_real_inputs():
    x = torch.arange(1.0, 6).view(1, 5, 1)
    real = torch.tensor([[True, False, True, True, False]])
    x = x * real.unsqueeze(-1)
    assert last_real(x, real, 2).flatten().tolist() == [3, 4]
    assert last_real(x, real, 4).flatten().tolist() == [0, 1, 3, 4]
    assert last_real(x, None, 2).flatten().tolist() == [4, 0]


@pytest.mark.parametrize("keep_first", [True, False])
@pytest.mark.parametrize("steps", [1, 7, 64, 150])
def test_inputs_held(steps, keep_first):
    """However many steps were taken, the last two inputs are known, and 64 steps can be taken back."""
    x = torch.randn(1, 400, 4, dtype=torch.float64)
    real = torch.rand(1, 400) > 0.3
    x = x * real.unsqueeze(-1)
    recent, past = RecentInputs(), 0
    for chunk, flags in zip(x.split(steps, 1), real.split(steps, 1), strict=True):
        before = recent.push(chunk, flags, 2, keep_first)
        assert_close(before, last_real(x[:, :past], real[:, :past], 2))
        past += chunk.shape[1]
        assert min(past, 64) <= recent.inputs.shape[1] <= max(2 * 64, 2 * steps)
    assert recent.seen == past
    recent.check_crop(-64)
    recent.crop(-64)
    past -= 64
    assert_close(recent.push(x[:, past:], real[:, past:], 2), last_real(x[:, :past], real[:, :past], 2))


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_calls_without_pads_among_calls_with_pads(seed, count):
    """Where no row has had a pad lately, the last inputs are the last ones held; crops and joined rows in between."""
    draw = torch.Generator().manual_seed(seed)
    recent, x, real = RecentInputs(), torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.bool)
    for call in range(120):
        length = int(torch.randint(1, 4, (), generator=draw))
        padded = call % 40 < 3
        flags = torch.rand(len(x), length, generator=draw) > 0.5 if padded else torch.ones(len(x), length).bool()
        new = torch.randn(len(x), length, 4, generator=draw) * flags.unsqueeze(-1)
        assert torch.equal(recent.push(new, flags if padded else None, count), last_real(x, real, count))
        x, real = torch.cat([x, new], 1), torch.cat([real, flags], 1)
        if call % 11 == 10:
            gone = int(torch.randint(1, 6, (), generator=draw))
            recent.crop(-gone)
            x, real = x[:, :-gone], real[:, :-gone]
        if call == 60:
            row = torch.randn(1, 5, 4, generator=draw)
            other = RecentInputs()
            other.push(row, None, count)
            recent.join([other])
            before = x.shape[1] - 5
            x = torch.cat([x, torch.nn.functional.pad(row, (0, 0, before, 0))])
            real = torch.cat([real, torch.arange(x.shape[1])[None] >= before])


@pytest.mark.parametrize("lengths", [(127, 200), (200, 127), (64, 300), (5, 200)])
def test_joined_rows_know_what_was_let_go(lengths):
    """Inputs of long rows were let go but for the last ones; zeros stand before them where others hold more."""
    rows = [torch.randn(1, length, 2) for length in lengths]
    first, second = RecentInputs(), RecentInputs()
    for recent, x in zip((first, second), rows, strict=True):
        recent.push(x, None, 65, keep_first=False)
    first.join([second])
    before = first.push(torch.randn(2, 1, 2), None, 65)
    for row, x in enumerate(rows):
        assert torch.equal(before[row], torch.nn.functional.pad(x[0], (0, 0, 65, 0))[-65:])


def test_a_long_first_call_is_let_go():
    x = torch.randn(1, 500, 4)
    recent = RecentInputs()
    recent.push(x, None, 3, keep_first=False)
    assert recent.inputs.shape[1] == 64
    with pytest.raises(ValueError, match=r"65 tokens were to be cropped from a cache of 500.*only the last 64 are"):
        recent.check_crop(-65)
    recent.crop(-64)
    assert torch.equal(recent.push(x[:, :1], None, 3), x[:, 433:436])


def test_forgotten_positions_leave_the_last_ones_to_be_cropped():
    x = torch.randn(1, 500, 4)
    recent = RecentInputs()
    recent.push(x, None, 3, keep_first=False)
    recent.forget_first(400)
    recent.check_crop(-64)
    recent.crop(-64)
    assert recent.seen == 36 and torch.equal(recent.push(x[:, :1], None, 3), x[:, 433:436])


@pytest.mark.parametrize("kind", LAYERS)
def test_inputs_before_each_call(kind):
    """(batch, count, channels): the last real ones, zeros first where there were fewer."""
    real = torch.tensor([[0, 0, 1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0]]).bool()
    x = torch.randn(2, 9, 4) * real.unsqueeze(-1)
    layer, past = make(kind), 0
    for size in (1, 3, 2, 3):
        part, flags = x[:, past : past + size], real[:, past : past + size]
        before = push(layer, part, flags)
        assert before.shape == (2, 2, 4)
        assert torch.equal(before, last_real(x[:, :past], real[:, :past], 2))
        past += size
    assert layer.get_seq_length() == 9


@pytest.mark.parametrize("kind", LAYERS)
def test_two_convolutions_of_a_layer_keep_their_own(kind):
    layer, x = make(kind), torch.randn(1, 5, 4)
    layer.push_inputs("mixer", 2 * x[..., :2], None, 3)
    push(layer, x)
    assert torch.equal(layer.push_inputs("mixer", x[:, :1, :2], None, 3), 2 * x[:, 2:, :2])
    assert torch.equal(push(layer, x[:, :1]), x[:, 3:])


@pytest.mark.parametrize("kind", LAYERS)
def test_rows_are_reordered_with_their_inputs(kind):
    layer, x = make(kind), torch.randn(3, 5, 4)
    push(layer, x)
    layer.reorder_cache(torch.tensor([2, 2, 0]))
    assert torch.equal(push(layer, x[:, :1]), x[[2, 2, 0], 3:])


@pytest.mark.parametrize("kind", LAYERS)
def test_a_reset_forgets_all(kind):
    layer, x = make(kind), torch.randn(2, 5, 4)
    push(layer, x)
    layer.reset()
    assert layer.get_seq_length() == 0
    assert not push(layer, x).any()


@pytest.mark.parametrize("kind", GROWING)
def test_rows_are_repeated_and_selected(kind):
    layer, x = make(kind), torch.randn(2, 5, 4)
    layer.batch_repeat_interleave(2)  # of nothing
    push(layer, x)
    layer.batch_repeat_interleave(2)
    layer.batch_select_indices(torch.tensor([3, 0, 1]))
    assert torch.equal(push(layer, x[[0, 0, 1], :1]), x[[1, 0, 0], 3:])


@pytest.mark.parametrize("kind", GROWING)
def test_rows_are_joined_and_lose_their_pads(kind):
    """A shorter row begins with pads; pads of every row go, and what follows goes on after real inputs."""
    x, y = torch.randn(1, 90, 4), torch.randn(2, 7, 4)
    long, short = make(kind), make(kind)
    for part in x.split(1, dim=1):
        push(long, part)
    push(short, y)
    long.join([short])
    assert long.get_seq_length() == 90
    new = torch.randn(3, 1, 4)
    assert torch.equal(push(long, new), torch.cat([x[:, -2:], y[:, -2:]]))
    long.batch_select_indices(torch.tensor([2, 1]))
    long.forget_first(83)
    assert long.get_seq_length() == 8
    assert torch.equal(push(long, new[:2]), torch.cat([y[[1, 0], -1:], new[[2, 1]]], dim=1))


@pytest.mark.parametrize("kind", GROWING)
def test_copies_and_moves_keep_the_inputs(kind):
    layer, x = make(kind), torch.randn(2, 100, 4)
    push(layer, x)
    layer.offload()
    layer.prefetch()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer):
        assert torch.equal(push(other, x[:, :1]), x[:, -2:])


@pytest.mark.parametrize("kind", GROWING)
def test_a_crop_too_deep_is_refused(kind):
    layer, x = make(kind), torch.randn(1, 300, 4)
    for chunk in x.split(10, 1):
        push(layer, chunk)
    with pytest.raises(ValueError, match="250 tokens were to be cropped from a cache of 300, but"):
        layer.crop(-250)
    assert layer.get_seq_length() == 300
    layer.crop(-64)
    assert layer.get_seq_length() == 236
    assert torch.equal(push(layer, x[:, :1]), x[:, 234:236])
    layer.crop(-237)
    assert layer.get_seq_length() == 0
    assert not push(layer, x).any()


def test_all_of_a_first_call_is_kept_on_request():
    layer, x = InputsLayer(), torch.randn(1, 300, 4)
    layer.activate_past_recording()
    push(layer, x)
    layer.crop(-250)
    assert torch.equal(push(layer, x[:, :1]), x[:, 48:50])


def test_a_layer_of_inputs_alone_is_constant_in_size():
    layer, x = InputsLayer(), torch.randn(1, 3000, 4)
    push(layer, x)
    assert layer.get_seq_length() == 3000
    assert sum(t.numel() for t in (layer.keys, layer.values)) == 0
    assert layer.companions["block"].inputs.untyped_storage().nbytes() == 64 * 4 * 4
