"""Crops of growing caches, and rows of several caches in one: both give what a run from the start gives."""

import random

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from hf_seqmix import (
    IPAConfig,
    IPAForCausalLM,
    PolyTransformerConfig,
    PolyTransformerForCausalLM,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
)
from hf_seqmix.cache import HistoryLayer, join_rows, keep_rows
from tests.models.suite import VOCAB, perturb
from tests.tolerances import assert_close

SMALL = {"vocab_size": VOCAB, "hidden_size": 16}


def of_all_layers() -> PreTrainedModel:
    """A history, keys and values, running sums, and keys with their inputs."""
    own = {
        "attention": {"num_heads": 2},
        "ipa": {"num_centers": 4, "token_shift": 3},
        "poly_transformer": {"num_attention_heads": 2},
    }
    types = ["tnn", "attention", "poly_transformer", "ipa"]
    return SeqMixHybridForCausalLM(SeqMixHybridConfig(**SMALL, mixer_types=types, mixer_configs=own))


def convolved() -> PreTrainedModel:
    """The same with the inputs of short convolutions, and layers of such inputs alone."""
    own = {
        "attention": {"num_heads": 2},
        "ipa": {"num_centers": 4, "token_shift": 3},
        "poly_transformer": {"num_attention_heads": 2},
        "short_conv": {"taps": 3},
    }
    types = ["short_conv", "tnn", "attention", "poly_transformer", "ipa"]
    fields = {"mixer_types": types, "mixer_configs": own, "short_conv_taps": 4, "short_conv_init": "uniform"}
    return SeqMixHybridForCausalLM(SeqMixHybridConfig(**SMALL, **fields))


def with_copy_keys() -> PreTrainedModel:
    """Keys of the copy head, with and without the inputs of keys."""
    return IPAForCausalLM(
        IPAConfig(
            **SMALL,
            num_hidden_layers=2,
            num_centers=4,
            copy_head=True,
            copy_head_tokens=2,
            copy_head_state=True,
            token_shift=2,
        )
    )


def fading() -> PreTrainedModel:
    """Running sums that fade, of several degrees."""
    fields = {**SMALL, "num_attention_heads": 4, "head_degrees": [2, 3, 4, 5], "forget_gate": True}
    return PolyTransformerForCausalLM(PolyTransformerConfig(**fields, num_hidden_layers=2))


def squared() -> PreTrainedModel:
    """Running sums of symmetric powers that fade and divide."""
    fields = {**SMALL, "num_attention_heads": 4, "kernel_power": 2, "forget_gate": True, "denominator": True}
    return PolyTransformerForCausalLM(PolyTransformerConfig(**fields, num_hidden_layers=2))


@pytest.fixture(
    scope="module",
    params=[convolved, pytest.param(of_all_layers, marks=pytest.mark.slow), with_copy_keys, fading, squared],
    ids=lambda make: make.__name__,
)
def model(request):
    torch.manual_seed(0)
    return perturb(request.param()).double().eval()


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.slow), True])
@torch.no_grad()
def test_tokens_may_come_and_be_taken_back_in_any_order(model, padded):
    draw, cropped = random.Random(1), 0
    pads = torch.tensor([[0], [3 * padded]])
    for _ in range(4):
        cache = DynamicCache(config=model.config)
        ids = torch.empty(2, 0, dtype=torch.long)
        for size in (draw.choice([5, 90, 150]), *draw.choices([1, 2, 3, 40, 130], k=9)):
            new = torch.randint(VOCAB, (2, size))
            ids = torch.cat([ids, new], dim=1)
            mask = (torch.arange(ids.shape[1]) >= pads).long()
            actual = model(new, attention_mask=mask, past_key_values=cache).logits
            real = mask[:, -size:].bool()
            assert_close(actual[real], model(ids, attention_mask=mask).logits[:, -size:][real])
            back = min(draw.choice([0, 1, 5, 63, 200]), ids.shape[1] - 4)
            try:
                cache.crop(-back)
            except ValueError as error:
                # Refused, never wrong: a layer does not hold what the crop needs any more.
                assert back > 5 and f"{back} tokens were to be cropped from a cache of {ids.shape[1]}" in str(error)
                break
            ids, cropped = ids[:, : ids.shape[1] - back], cropped + (back > 0)
            assert cache.get_seq_length() == ids.shape[1]
    assert cropped > 10


@torch.no_grad()
def test_turns_that_end_in_pads_are_taken_back_or_refused(model):
    """A turn of two rows ends in pads of one; crops into such turns are right, or refused."""
    draw, deep, refused = random.Random(2), 0, 0
    for _ in range(5):
        cache = DynamicCache(config=model.config)
        ids, mask = torch.empty(2, 0, dtype=torch.long), torch.empty(2, 0, dtype=torch.long)
        for _ in range(6):
            size = draw.choice([1, 3, 5, 20])
            new, own = torch.randint(VOCAB, (2, size)), torch.ones(2, size, dtype=torch.long)
            own[draw.randrange(2), size - draw.choice([0, 0, size // 2]) :] = 0
            ids, mask = torch.cat([ids, new], dim=1), torch.cat([mask, own], dim=1)
            actual = model(new, attention_mask=mask, past_key_values=cache).logits
            for row in range(2):
                expected = model(ids[row][mask[row].bool()].unsqueeze(0)).logits[0]
                assert_close(actual[row][own[row].bool()], expected[len(expected) - int(own[row].sum()) :])
            back = min(draw.choice([0, 1, 4, 8]), ids.shape[1] - 1)
            try:
                cache.crop(-back)
            except ValueError as error:
                assert "which can only take back the last" in str(error)
                refused += 1
                break
            deep += bool(mask[:, ids.shape[1] - back :].eq(0).any())
            ids, mask = ids[:, : ids.shape[1] - back], mask[:, : mask.shape[1] - back]
    assert deep or refused


@torch.no_grad()
def test_joined_rows_are_taken_back_as_far_as_each_holds_what_it_needs(model):
    """Of rows of 300, 90 and 9 tokens the first has let go of most: no row may go back further than that one."""
    lengths, taken = (300, 90, 9), 0
    for back in (3, 50, 63, 70, 80, 95):
        rows, caches = [torch.randint(VOCAB, (length,)) for length in lengths], []
        for ids in rows:
            caches.append(DynamicCache(config=model.config))
            for part in ids.split(60):
                model(part.unsqueeze(0), past_key_values=caches[-1])
        cache = join_rows(caches)
        try:
            cache.crop(-back)
        except ValueError as error:
            assert back > 63 and "tokens were to be cropped from a cache of 300" in str(error)
            continue
        taken += 1
        rows = [ids[: max(0, len(ids) - back)] for ids in rows]
        new = torch.randint(VOCAB, (3, 4))
        mask = torch.tensor([[0] * (lengths[0] - back - len(ids)) + [1] * (len(ids) + 4) for ids in rows])
        actual = model(new, attention_mask=mask, past_key_values=cache).logits
        for ids, more, own in zip(rows, new, actual, strict=True):
            assert_close(own, model(torch.cat([ids, more]).unsqueeze(0)).logits[0, -4:])
    assert taken >= 3


@torch.no_grad()
def test_rows_of_several_caches_go_on_together(model):
    """Rows of 4, 150 and 70 tokens join, take steps, and one more joins after the longest has left."""

    def read(length):
        ids, cache = torch.randint(VOCAB, (1, length)), DynamicCache(config=model.config)
        for part in ids.split(60, dim=1):
            model(part, past_key_values=cache)
        return ids[0].tolist(), cache

    def step(rows, cache):
        longest = max(map(len, rows))
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * (len(row) + 1) for row in rows])
        positions = torch.tensor([[len(row)] for row in rows])
        new = torch.randint(VOCAB, (len(rows), 1))
        logits = model(new, attention_mask=mask, position_ids=positions, past_key_values=cache).logits
        for row, token, actual in zip(rows, new, logits, strict=True):
            row += token.tolist()
            assert_close(actual, model(torch.tensor([row])).logits[0, -1:])

    rows, caches = map(list, zip(*(read(length) for length in (4, 150, 70)), strict=True))
    cache = join_rows(caches)
    for _ in range(3):
        step(rows, cache)
    rows = [rows[2], rows[0]]
    keep_rows(cache, torch.tensor([2, 0]), unused=80)
    assert cache.get_seq_length() == 73
    step(rows, cache)
    row, other = read(9)
    rows.append(row)
    join_rows([cache, other])
    step(rows, cache)
    assert join_rows([cache]) is cache


@torch.no_grad()
def test_a_history_has_room_for_steps():
    """Steps write beside what is held, and what a caller still has of an earlier step stays as it was."""
    layer, x = HistoryLayer(), torch.randn(2, 1, 40, 3)
    layer.update(x[:, :, :10], x[:, :, :10, :0])
    layer.update(x[:, :, 10:11], x[:, :, 10:11, :0])
    place = layer.keys.data_ptr()
    for t in range(11, 40):
        keys, values = layer.update(x[:, :, t : t + 1], x[:, :, t : t + 1, :0])
        assert keys.data_ptr() == place and values.shape == (2, 1, t + 1, 0)
    assert torch.equal(keys, x)
    layer.crop(-4)
    assert torch.equal(layer.update(x[:, :, :2], x[:, :, :2, :0])[0], torch.cat([x[:, :, :36], x[:, :, :2]], dim=2))
    layer.batch_select_indices(torch.tensor([1]))
    assert torch.equal(layer.update(x[1:, :, :1], x[1:, :, :1, :0])[0][:, :, :36], x[1:, :, :36])
    layer.offload()
    assert layer.room is None  # it would stay on the device
    with torch.inference_mode():
        assert torch.equal(layer.update(x[1:, :, :1], x[1:, :, :1, :0])[0][:, :, :36], x[1:, :, :36])
    assert torch.equal(layer.update(x[1:, :, :1], x[1:, :, :1, :0])[0][:, :, :36], x[1:, :, :36])


def test_a_history_takes_gradients():
    x = torch.randn(2, 1, 9, 3, requires_grad=True)
    layer = HistoryLayer()
    for part in x.split(3, dim=2):
        keys, _ = layer.update(part, part[..., :0])
    keys.square().sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())


@pytest.mark.parametrize("make", [of_all_layers, convolved, with_copy_keys], ids=lambda make: make.__name__)
def test_other_numbers_of_rows_are_refused(make):
    model = make().eval()
    cache = DynamicCache(config=model.config)
    for _ in range(2):
        model(torch.randint(1, VOCAB, (2, 3)), past_key_values=cache)
    with pytest.raises(ValueError, match="3 rows cannot continue a cache of 2 rows: give as many rows"):
        model(torch.randint(1, VOCAB, (3, 1)), past_key_values=cache)


OF_ONE_MIXER = {
    "attention": {"num_heads": 2},
    "ipa": {"num_centers": 4},
    "poly_transformer": {"num_attention_heads": 2},
    "poly_transformer of degree 5": {"num_attention_heads": 2, "degree": 5},
    "poly_transformer that forgets": {"num_attention_heads": 2, "forget_gate": True},
    "short_conv": {"taps": 3},
}


@pytest.mark.parametrize("named", OF_ONE_MIXER)
def test_each_layer_refuses_other_numbers_of_rows(named):
    mixer = named.split()[0]
    config = SeqMixHybridConfig(**SMALL, mixer_types=[mixer], mixer_configs={mixer: OF_ONE_MIXER[named]})
    model = SeqMixHybridForCausalLM(config).eval()
    cache = DynamicCache(config=model.config)
    model(torch.randint(1, VOCAB, (2, 3)), past_key_values=cache)
    with pytest.raises(ValueError, match="1 rows cannot continue a cache of 2 rows: give as many rows"):
        model(torch.randint(1, VOCAB, (1, 1)), past_key_values=cache)


@pytest.mark.parametrize("make", [of_all_layers, convolved, with_copy_keys], ids=lambda make: make.__name__)
def test_a_crop_of_an_empty_cache_does_nothing(make):
    model = make()
    cache = DynamicCache(config=model.config)
    for layer in cache.layers:
        if type(layer) is not DynamicLayer:  # before transformers 5.22 the library's own cannot
            layer.crop(-3)
    assert cache.get_seq_length() == 0
    model(torch.randint(1, VOCAB, (2, 3)), past_key_values=cache)
    assert cache.get_seq_length() == 3
