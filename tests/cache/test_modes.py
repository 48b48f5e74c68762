"""A window and a state of modes against the convolution of all inputs."""

import copy
import random
from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache

from hf_seqmix import TNNConfig
from hf_seqmix.cache import join_rows, keep_rows
from hf_seqmix.ops import batch_invariant, toeplitz_matmul_dense
from hf_seqmix.ops.layout import token_layout
from hf_seqmix.ops.toeplitz.modal import ModalKernel
from tests.tolerances import assert_close

CHANNELS, LENGTH, REACH = 3, 431, 7
CONFIG = TNNConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, decoder_modes=[2], decoder_taps=REACH)
ALL_REAL = token_layout(None, 2, 1)


class Decoder:
    """An operator with a kernel of modes."""

    has_modes = True

    def __init__(self):
        self.exact = torch.randn(CHANNELS, REACH, dtype=torch.float64)
        self.weights = torch.randn(CHANNELS, 2, dtype=torch.complex128)

    def modal_kernel(self, dtype, device):
        poles = torch.tensor([0.99, 0.6 + 0.7j], dtype=torch.complex128)
        return ModalKernel(self.exact.to(device), poles, self.weights, dtype)


def problem(dtype=torch.float64, batch=2):
    decoder, x = Decoder(), torch.randn(batch, LENGTH, CHANNELS, dtype=torch.float64).to(dtype)
    return decoder, x, convolved(decoder, x)


def convolved(decoder, x):
    taps = decoder.modal_kernel(torch.float64, x.device).first(x.shape[1])
    return toeplitz_matmul_dense(x.transpose(1, 2).double(), taps).transpose(1, 2)


def feed(cache, decoder, x, layout=ALL_REAL):
    keys = x.unsqueeze(1)
    with torch.no_grad():
        assert not cache.layers[0].is_initialized or cache.layers[0].decodes(x.shape[1], layout, decoder)
        return cache.update(keys, keys[..., :0], 0, decoder=decoder, layout=layout)[0][:, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunks", [[1] * 211, [97, 1, 1, 13, 1, 200, 5, 1], [431], [64, 64, 64, 64]])
def test_equals_the_convolution_of_all_inputs(dtype, chunks):
    decoder, x, exact = problem(dtype)
    cache, done = DynamicCache(config=CONFIG), 0
    for count in chunks:
        y = feed(cache, decoder, x[:, done : done + count])
        assert y.dtype == dtype
        assert_close(y, exact[:, done : done + count])
        done += count
        assert cache.get_seq_length() == done
        assert cache.layers[0].keys.shape[2] < REACH + 64 + max(64, count)


def test_steps_of_a_finer_dtype_have_its_taps():
    decoder, x, _ = problem()
    cache = DynamicCache(config=CONFIG)
    for part in (x[:, :20], x[:, 20:21]):
        feed(cache, decoder, part.float())
    y = feed(cache, decoder, x[:, 21:23])
    assert_close(y, convolved(decoder, torch.cat([x[:, :21].float().double(), x[:, 21:23]], dim=1))[:, 21:])


def test_crops_and_reorders_at_random_equal_a_fresh_run():
    decoder, x, _ = problem()
    draw, rows, done = random.Random(0), x, 0
    cache = DynamicCache(config=CONFIG)
    for _ in range(60):
        if done + 60 > LENGTH or (done > 64 and draw.random() < 0.2):
            count = draw.randint(1, cache.layers[0].keys.shape[2] - REACH + 1)
            cache.crop(-count)
            done -= count
        if draw.random() < 0.2:
            order = torch.tensor([draw.randint(0, 1), draw.randint(0, 1)])
            cache.reorder_cache(order)
            rows = rows[order]
        rows = torch.cat([rows[:, :done], torch.randn_like(x)[:, done:]], dim=1)
        count = draw.choice([1, 1, 2, 30])
        y = feed(cache, decoder, rows[:, done : done + count])
        assert_close(y, convolved(decoder, rows[:, : done + count])[:, done:])
        done += count
        if draw.random() < 0.1:
            cache = copy.deepcopy(cache)
    assert cache.layers[0].state is not None


def test_a_crop_too_far_is_refused():
    decoder, x, _ = problem()
    cache = DynamicCache(config=CONFIG)
    feed(cache, decoder, x)
    with pytest.raises(ValueError, match="can only take back the last 64"):
        cache.crop(-65)
    cache.crop(-64)
    feed(cache, decoder, x[:, LENGTH - 64 :])
    feed(cache, decoder, x[:, :100])
    cache.crop(-100)  # whatever a later call added
    cache.crop(-LENGTH)
    assert cache.get_seq_length() == 0 and cache.layers[0].state is None


def test_a_recorded_first_call_can_be_taken_back():
    decoder, x, exact = problem()
    cache = DynamicCache(config=CONFIG)
    cache.activate_past_recording()
    feed(cache, decoder, x[:, :300])
    cache.crop(-299)
    assert_close(feed(cache, decoder, x[:, 1:200]), exact[:, 1:200])


def test_pads_after_tokens_take_no_time():
    decoder, x, _ = problem(batch=3)
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[0, 300:], mask[1, 150:199], mask[1, 310:330], mask[2, :60] = 0, 0, 0, 0
    cache, outputs, done = DynamicCache(config=CONFIG), [], 0
    for count in (149, 31, 40, 1, 1, 100, 9, 100):
        part = slice(done, done + count)
        layout = token_layout(mask[:, : done + count], 3, count, past_length=done, has_cache=True)
        outputs.append(feed(cache, decoder, layout.zero_pads(x[:, part]), layout))
        done += count
        if layout.realign:
            # Tokens after the last pad of any row stand where they stood.
            settled = count - 1 - max(i for i in range(count) if not mask[:, part][:, i].all())
            with pytest.raises(ValueError, match=f"the last {settled}: pads that followed tokens have moved"):
                cache.crop(-settled - 1)
    y = torch.cat(outputs, dim=1)
    for row in range(3):
        real = mask[row].bool()
        assert_close(y[row][real], convolved(decoder, x[row][real].unsqueeze(0))[0])


def test_the_window_of_rows_that_end_in_pads_does_not_grow():
    decoder, x, _ = problem()
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, 19::20] = 0
    cache = DynamicCache(config=CONFIG)
    for done in range(0, 420, 20):
        layout = token_layout(mask[:, : done + 20], 2, 20, past_length=done, has_cache=True)
        feed(cache, decoder, layout.zero_pads(x[:, done : done + 20]), layout)
        assert cache.layers[0].keys.shape[2] < REACH + 64 + 64


@pytest.mark.parametrize("lengths", [(300, 40), (40, 300), (200, 331), (3, 5)])
def test_rows_join_and_leave(lengths):
    decoder, x, exact = problem()
    caches = []
    for row, length in enumerate(lengths):
        caches.append(DynamicCache(config=CONFIG))
        feed(caches[-1], decoder, x[row : row + 1, :length])
    joined = join_rows(caches)
    for step in range(90):
        both = torch.stack([x[row, length + step] for row, length in enumerate(lengths)]).unsqueeze(1)
        wanted = torch.stack([exact[row, length + step] for row, length in enumerate(lengths)]).unsqueeze(1)
        assert_close(feed(joined, decoder, both), wanted)
    shorter = min(range(2), key=lambda row: lengths[row])
    keep_rows(joined, torch.tensor([shorter]), unused=max(lengths) - min(lengths))
    assert joined.get_seq_length() == min(lengths) + 90
    now = min(lengths) + 90
    assert_close(feed(joined, decoder, x[shorter, None, now : now + 1]), exact[shorter, None, now : now + 1])


def test_a_layer_without_a_state_is_a_history():
    decoder, x, exact = problem()
    cache = DynamicCache(config=CONFIG)
    keys = x.unsqueeze(1)
    with batch_invariant():
        assert not cache.layers[0].decodes(1, ALL_REAL, decoder)
    assert not cache.layers[0].decodes(1, ALL_REAL, SimpleNamespace(has_modes=False))
    history, _ = cache.update(keys[:, :, :200], keys[:, :, :200, :0], 0)
    assert torch.equal(history, keys[:, :, :200])
    assert_close(feed(cache, decoder, x[:, 200:201]), exact[:, 200:201])
    with pytest.raises(ValueError, match="start from an empty cache"):
        cache.update(keys[:, :, :1], keys[:, :, :1, :0], 0)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert_close(feed(cache, decoder, x[:, :5]), exact[:, :5])


def test_a_short_row_that_stays_alone_has_no_state_of_its_pads():
    decoder, x, exact = problem()
    caches = [DynamicCache(config=CONFIG), DynamicCache(config=CONFIG)]
    for row, length in enumerate((300, 40)):
        feed(caches[row], decoder, x[row : row + 1, :length])
    joined = join_rows(caches)
    keep_rows(joined, torch.tensor([1]), unused=260)
    assert joined.layers[0].state is None
    joined.crop(-38)  # as far as a row that was never joined
    assert_close(feed(joined, decoder, x[1:, 2:9]), exact[1:, 2:9])


def test_a_state_does_not_go_on_in_training():
    decoder, x, _ = problem()
    cache = DynamicCache(config=CONFIG)
    layer = cache.layers[0]
    with torch.no_grad():
        layer.update(x[:, None, :300], x[:, None, :300, :0], decoder=decoder)
    assert layer.state is not None
    assert layer.decodes(1, ALL_REAL, decoder)
    decoder.has_modes = False  # as in training
    assert not layer.decodes(1, ALL_REAL, decoder)
    with pytest.raises(ValueError, match="go on with the distilled model in evaluation mode"):
        layer.update(x[:, None, 300:], x[:, None, 300:, :0])
