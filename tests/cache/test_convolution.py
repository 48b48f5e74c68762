import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.cache import ConvolutionLayer
from hf_seqmix.ops import toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.online_kernel import OnlineKernel
from tests.tolerances import assert_close

CHANNELS = 3


class Decoder:
    """What a mixer hands to its layer: taps of an exponential kernel, which may end."""

    def __init__(self, end: int | None = None, decay: float = 0.99) -> None:
        self.end, self.decay = end, decay
        self.signs = torch.randn(CHANNELS, 4096, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def taps(self, length: int) -> Tensor:
        lags = torch.arange(length, dtype=torch.float64)
        return self.signs[:, :length] * self.decay**lags * (lags < (length if self.end is None else self.end))

    def decoder_end(self, dtype: torch.dtype, device: torch.device) -> int | None:
        return self.end

    def decoder_kernel(self, dtype: torch.dtype, device: torch.device, known: Tensor | None = None) -> OnlineKernel:
        def between(first: int, last: int) -> Tensor:
            return self.taps(last)[:, first:].to(device)

        return OnlineKernel(between, block=4, dtype=dtype, length=self.end)


def rows_of(batch: int, length: int, seed: int) -> Tensor:
    return torch.randn(batch, length, CHANNELS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected(inputs: Tensor, decoder: Decoder, new: int) -> Tensor:
    y = toeplitz_matmul_dense(inputs.transpose(1, 2), decoder.taps(inputs.shape[1]))
    return y.transpose(1, 2)[:, inputs.shape[1] - new :]


class Checked:
    """A layer, and the inputs that it should hold."""

    def __init__(self, decoder: Decoder, batch: int = 2) -> None:
        self.layer, self.decoder, self.seed = ConvolutionLayer(), decoder, 0
        self.inputs = rows_of(batch, 0, 0)

    def add(self, count: int) -> None:
        self.seed += 1
        x = rows_of(len(self.inputs), count, self.seed)
        self.inputs = torch.cat([self.inputs, x], dim=1)
        keys = x.unsqueeze(1)
        with torch.no_grad():
            if self.layer.decodes(count):
                y, nothing = self.layer.update(keys, keys[..., :0], decoder=self.decoder)
                assert_close(y[:, 0], expected(self.inputs, self.decoder, count))
                assert self.layer.state is not None and nothing.shape[-1] == 0
            else:
                history, nothing = self.layer.update(keys, keys[..., :0])
                assert torch.equal(history[:, 0], self.inputs) and nothing.shape == (*history.shape[:3], 0)
        assert self.layer.get_seq_length() == self.inputs.shape[1]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["step", "step", "few", "chunk", "crop", "select", "repeat", "join", "copy", "move"]),
            st.integers(1, 40),
        ),
        min_size=4,
        max_size=12,
    )
)
def test_whatever_is_done_to_a_layer_steps_are_those_of_the_inputs(actions: list[tuple[str, int]]):
    checked = Checked(Decoder())
    checked.add(13)
    for action, number in actions:
        layer, held = checked.layer, checked.inputs.shape[1]
        if action == "step":
            for _ in range(number):
                checked.add(1)
        elif action in ("few", "chunk"):
            checked.add(min(number, 12) if action == "few" else number + 12)
        elif action == "crop":
            layer.crop(-min(number, held - 1))
            checked.inputs = checked.inputs[:, : held - min(number, held - 1)]
        elif action == "select" and len(checked.inputs) > 1:
            kept = torch.tensor([number % 2, 0])
            layer.batch_select_indices(kept)
            checked.inputs = checked.inputs[kept]
        elif action == "repeat" and len(checked.inputs) < 3:
            layer.batch_repeat_interleave(2)
            checked.inputs = checked.inputs.repeat_interleave(2, dim=0)
        elif action == "join" and len(checked.inputs) < 4:
            other = Checked(checked.decoder, 1)
            other.seed = 100 + held
            other.add(number)
            layer.join([other.layer])
            longest = max(held, number)
            padded = [
                torch.nn.functional.pad(x, (0, 0, longest - x.shape[1], 0)) for x in (checked.inputs, other.inputs)
            ]
            checked.inputs = torch.cat(padded)
        elif action == "copy":
            checked.layer = copy.deepcopy(layer)
        elif action == "move":
            layer.offload()
            layer.prefetch()
    checked.add(3)
    assert torch.equal(checked.layer.keys[:, 0], checked.inputs)


def test_pads_at_the_front_leave_a_state_without_work():
    checked, pads = Checked(Decoder()), 9
    x = rows_of(2, 30, 7)
    x[:, :pads] = 0
    checked.inputs = x
    checked.layer.update(x.unsqueeze(1), x.unsqueeze(1)[..., :0])
    checked.add(1)
    state = checked.layer.state
    checked.layer.forget_first(pads)
    checked.inputs = checked.inputs[:, pads:]
    checked.add(1)
    assert checked.layer.state is state
    checked.layer.forget_first(20)  # most of the state: made again of the rest
    assert checked.layer.state is None and checked.layer.get_seq_length() == 3


def test_rows_join_states():
    a, b = Checked(Decoder(), 1), Checked(Decoder(), 2)
    a.add(30), b.add(11)
    for each in (a, b):
        each.add(1)
    state = a.layer.state
    a.layer.join([b.layer])
    assert a.layer.state is state  # the rows that were there are not made again
    short = torch.nn.functional.pad(b.inputs, (0, 0, 19, 0))
    a.inputs = torch.cat([a.inputs, short])
    a.add(1)
    a.layer.reset()
    assert a.layer.get_seq_length() == 0 and a.layer.keys is None and a.layer.kernel is None


def test_inputs_beyond_the_end_of_a_kernel_are_let_go():
    checked = Checked(Decoder(end=10))
    checked.add(40)
    sizes = []
    for count in range(200):
        checked.add(1)
        if count in (99, 199):
            sizes.append(checked.layer.state.memory)
    assert sizes[0] == sizes[1]
    checked.layer.crop(-3)
    checked.inputs = checked.inputs[:, :-3]
    checked.add(1)
    with pytest.raises(ValueError, match="cannot be cropped to 8"):
        checked.layer.crop(-230)
    # Read as a history, the layer knows what is gone.
    history = checked.layer.keys
    assert torch.equal(history[:, 0, -20:], checked.inputs[:, -20:]) and not history[:, :, :100].any()
    with pytest.raises(ValueError, match=r"the kernel ends after 10 lags.*Start from an empty cache"):
        checked.layer.crop(-230)
    # So do those without a kernel: a copy, and a layer whose weights may have changed.
    detached = copy.deepcopy(checked.layer)
    detached.detach()
    for other in (copy.deepcopy(checked.layer), detached):
        with pytest.raises(ValueError, match=r"the kernel ends after 10 lags.*Start from an empty cache"):
            other.crop(-230)
        other.crop(-2)
    checked.layer.crop(-2)
    checked.inputs = checked.inputs[:, :-2]
    keys = rows_of(2, 1, 99).unsqueeze(1)
    y, _ = checked.layer.update(keys, keys[..., :0], decoder=checked.decoder)
    assert_close(y[:, 0], expected(torch.cat([checked.inputs, keys[:, 0]], dim=1), checked.decoder, 1))


@pytest.mark.parametrize("rows", [[True, False, True], [-1, 0, 0], [2]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_of_a_state_are_named_as_those_of_a_tensor(rows, dtype):
    checked = Checked(Decoder(), 3)
    checked.add(9)
    checked.add(1)
    indices = torch.tensor(rows) if rows[0] is True else torch.tensor(rows, dtype=dtype)
    checked.layer.batch_select_indices(indices)
    assert checked.layer.state is not None
    checked.inputs = checked.inputs[indices]
    checked.add(1)


@pytest.mark.parametrize("new", [1, 20])
def test_other_numbers_of_rows_are_refused(new):
    checked = Checked(Decoder())
    checked.add(9)
    checked.add(1)
    checked.inputs = checked.inputs[:1]
    with pytest.raises(ValueError, match="1 rows cannot continue a cache of 2 rows: give as many rows"):
        checked.add(new)


def test_a_change_of_dtype_is_followed():
    checked = Checked(Decoder())
    checked.add(20)
    checked.add(1)
    keys = rows_of(2, 1, 50).unsqueeze(1).float()
    y, _ = checked.layer.update(keys, keys[..., :0], decoder=checked.decoder)
    inputs = torch.cat([checked.inputs.float(), keys[:, 0]], dim=1)
    assert y.dtype == torch.float32 and checked.layer.state.dtype == torch.float32
    assert_close(y[:, 0], expected(inputs.double(), checked.decoder, 1).float())


def test_joined_rows_cannot_be_cropped_to_where_inputs_of_a_shorter_row_are_gone():
    decoder = Decoder(end=5)
    longer, shorter = Checked(decoder, 1), Checked(decoder, 1)
    longer.add(200)
    shorter.add(20)
    for _ in range(100):
        shorter.add(1)
    longer.layer.join([shorter.layer])
    gone = shorter.layer.dropped  # counted from its own first position, 80 after that of the longer row
    assert gone > 0 and longer.layer.dropped == 80 + gone
    alone = copy.deepcopy(longer.layer)
    alone.batch_select_indices(torch.tensor([1]))
    alone.forget_first(80)
    for layer in (longer.layer, alone):
        with pytest.raises(ValueError, match="cannot be cropped to"):
            layer.crop(-(200 - 80 - gone - 4))
        layer.crop(-(200 - 80 - gone - 5))
    assert torch.equal(alone.keys[:, 0, gone:], shorter.inputs[:, gone : gone + 5])


def test_wanted_derivatives_and_first_tokens_go_the_way_of_a_history():
    layer = ConvolutionLayer()
    assert not layer.decodes(1)
    x = rows_of(1, 4, 0).unsqueeze(1)
    layer.update(x, x[..., :0])
    assert not layer.decodes(1)
    with torch.no_grad():
        assert layer.decodes(1) and layer.decodes(12) and not layer.decodes(13)


@pytest.mark.parametrize(("end", "length", "decodes"), [(3, 11, False), (3, 12, True), (None, 400, False)])
def test_an_accelerator_gives_up_a_history_that_is_longer_than_its_kernel(end: int | None, length: int, decodes: bool):
    checked = Checked(Decoder(end))
    checked.add(length)
    checked.layer.device = torch.device("cuda")  # asked for its type alone
    with torch.no_grad():
        assert not checked.layer.decodes(1)  # without a kernel that says where it ends
        assert checked.layer.decodes(1, None, checked.decoder) == decodes
        assert not checked.layer.decodes(100, None, checked.decoder)


class NoFloat64(TorchDispatchMode):
    """Refuses what devices without float64 refuse."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) and leaf.dtype == torch.float64 for leaf in tree_leaves(result)):
            raise TypeError("float64")
        return result


@torch.no_grad()
def test_a_model_whose_kernels_end_early_decodes_the_same_without_its_history():
    torch.manual_seed(0)
    config = TNNConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, decay=0.3, max_position_embeddings=512)
    model = TNNForCausalLM(config).eval()
    ids = torch.randint(9, (2, 402))
    cache: Any = DynamicCache(config=config)
    model(ids[:, :400], past_key_values=cache)
    for layer in cache.layers:
        layer.device = torch.device("cuda")  # asked for its type alone
    with NoFloat64():
        logits = [model(ids[:, n : n + 1], past_key_values=cache).logits for n in (400, 401)]
    assert all(layer.state is not None for layer in cache.layers)
    assert_close(torch.cat(logits, dim=1), model(ids).logits[:, 400:])


def test_a_kernel_that_says_nothing_of_its_end_keeps_its_history_on_an_accelerator():
    checked = Checked(Decoder(3))
    checked.add(40)
    checked.layer.device = torch.device("cuda")
    older = SimpleNamespace(decoder_kernel=checked.decoder.decoder_kernel)
    with torch.no_grad():
        assert not checked.layer.decodes(1, None, older)


def test_copies_and_files_have_the_history_alone():
    """The library's exporters make each tensor of a copied cache an input and an output of the graph of a step."""
    cache: Any = DynamicCache(config=TNNConfig(vocab_size=9, hidden_size=1, num_hidden_layers=1))
    checked = Checked(Decoder())
    checked.layer = cache.layers[0]
    assert isinstance(cache.layers[0], ConvolutionLayer)
    checked.add(9)
    checked.add(1)
    copied = copy.deepcopy(cache).layers[0]
    tensors = [value for value in vars(copied).values() if isinstance(value, Tensor)]
    assert len(tensors) == 1 and torch.equal(tensors[0][:, 0], checked.inputs)
    assert copied.state is None and copied.kernel is None
