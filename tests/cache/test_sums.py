"""Running sums in a cache: what is held, what can be taken back, and what is refused."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from hf_seqmix.cache import SumsLayer, SumsStaticLayer, append_sums, read_sums


def fold(rows: Tensor) -> Tensor:
    """The sum of the outer products of rows, (batch, width * width)."""
    return torch.einsum("bni,bnj->bij", rows, rows).flatten(1)


class Cache:
    """A cache of one layer, as `append_sums` and `read_sums` see it."""

    def __init__(self, layer: SumsLayer | SumsStaticLayer) -> None:
        self.layers = [layer]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **kwargs: object) -> tuple[Tensor, Tensor]:
        return self.layers[layer_idx].update(keys, values, **kwargs)


def total(cache: Cache) -> Tensor:
    sums, recent = read_sums(cache, 0)
    parts = ([] if sums is None else [sums]) + ([] if recent is None else [fold(recent)])
    return sum(parts)


def filled(sizes: list[int], layer: SumsLayer | SumsStaticLayer | None = None) -> tuple[Cache, Tensor]:
    cache = Cache(SumsLayer() if layer is None else layer)
    rows = torch.randn(2, sum(sizes), 3, dtype=torch.float64)
    for part in rows.split(sizes, dim=1):
        append_sums(cache, 0, part, fold)
    return cache, rows


@pytest.mark.parametrize(
    "sizes", [[1] * 300, [300], [100, 1, 1, 198], [64, 64, 64], [5]], ids=lambda s: f"{len(s)} calls"
)
def test_sums_and_rows_together_stand_for_every_step(sizes):
    cache, rows = filled(sizes)
    torch.testing.assert_close(total(cache), fold(rows))
    assert cache.layers[0].get_seq_length() == rows.shape[1]


@pytest.mark.parametrize(("size", "pads"), [(10, 3), (300, 30), (100, 40)], ids=["held", "summed", "both"])
def test_pads_of_every_row_are_forgotten(size, pads):
    cache, rows = Cache(SumsLayer()), torch.randn(2, size, 3, dtype=torch.float64)
    rows[:, :pads] = 0
    append_sums(cache, 0, rows, fold)
    cache.layers[0].forget_first(pads)
    assert cache.layers[0].get_seq_length() == size - pads
    torch.testing.assert_close(total(cache), fold(rows))
    back = min(SumsLayer.kept, size - pads - 1)
    cache.layers[0].crop(-back)
    assert cache.layers[0].get_seq_length() == size - pads - back
    torch.testing.assert_close(total(cache), fold(rows[:, :-back]))


def test_memory_is_constant():
    cache, _ = filled([1] * 1000)
    held = cache.layers[0].keys.shape[2]
    assert SumsLayer.kept <= held <= 2 * SumsLayer.kept
    assert cache.layers[0].keys.untyped_storage().nbytes() <= 2 * 2 * SumsLayer.kept * 3 * 8


@pytest.mark.parametrize("sizes", [[1] * 300, [300], [200, 90, 10]], ids=str)
@pytest.mark.parametrize("remove", [1, 10, 64])
def test_a_crop_within_the_last_steps_is_exact(sizes, remove):
    cache, rows = filled(sizes)
    cache.layers[0].crop(-remove)
    torch.testing.assert_close(total(cache), fold(rows[:, :-remove]))
    assert cache.layers[0].get_seq_length() == 300 - remove
    append_sums(cache, 0, rows[:, -remove:], fold)
    torch.testing.assert_close(total(cache), fold(rows))


def test_all_that_the_last_call_added_can_be_cropped():
    cache, rows = filled([50, 150])
    cache.layers[0].crop(-150)
    torch.testing.assert_close(total(cache), fold(rows[:, :50]))


def test_a_recorded_first_call_can_be_cropped_as_far_as_it_goes():
    layer = SumsLayer()
    layer.activate_past_recording()
    cache, rows = filled([300], layer)
    layer.crop(-200)
    torch.testing.assert_close(total(cache), fold(rows[:, :100]))
    append_sums(cache, 0, rows[:, 100:], fold)
    append_sums(cache, 0, rows[:, :1], fold)
    torch.testing.assert_close(total(cache), fold(rows) + fold(rows[:, :1]))
    assert layer.keys.shape[2] <= 201


def test_cropping_everything():
    cache, _ = filled([1] * 100)
    with pytest.raises(ValueError, match=r"crop\(60\) is not supported"):
        cache.layers[0].crop(60)
    cache.layers[0].crop(-100)
    assert cache.layers[0].get_seq_length() == 0
    assert read_sums(cache, 0) == (None, None)


def test_a_deeper_crop_is_refused_and_changes_nothing():
    cache, rows = filled([300])
    with pytest.raises(ValueError, match=r"65 tokens were to be cropped from a cache of 300.* the last 64"):
        cache.layers[0].crop(-65)
    torch.testing.assert_close(total(cache), fold(rows))


def test_rows_of_the_batch_are_repeated_chosen_and_reordered():
    cache, rows = filled([1] * 150)
    cache.layers[0].batch_repeat_interleave(2)
    torch.testing.assert_close(total(cache), fold(rows[[0, 0, 1, 1]]))
    cache.layers[0].batch_select_indices(torch.tensor([0, 3]))
    cache.layers[0].reorder_cache(torch.tensor([1, 0]))
    torch.testing.assert_close(total(cache), fold(rows[[1, 0]]))


def test_a_preallocated_layer_keeps_the_sums_alone():
    cache, rows = filled([7, 1, 1, 20], SumsStaticLayer(max_cache_len=10))
    torch.testing.assert_close(total(cache), fold(rows))
    assert int(cache.layers[0].get_seq_length()) == 29
    assert cache.layers[0].keys.shape == (2, 1, 1, 9)
    cache.layers[0].reset()
    assert not total(cache).any() and int(cache.layers[0].get_seq_length()) == 0


def test_sums_of_a_preallocated_layer_stay_as_they_were_read():
    cache, rows = filled([7], SumsStaticLayer(max_cache_len=10))
    before, _ = read_sums(cache, 0)
    append_sums(cache, 0, rows, fold)
    torch.testing.assert_close(before, fold(rows))
    torch.testing.assert_close(total(cache), 2 * fold(rows))


def test_other_rows_continue_a_preallocated_layer_only_after_a_reset():
    cache, rows = filled([7], SumsStaticLayer(max_cache_len=10))
    with pytest.raises(ValueError, match="1 rows cannot continue a cache of 2 rows: give as many rows"):
        append_sums(cache, 0, rows[:1], fold)
    torch.testing.assert_close(total(cache), fold(rows))
    cache.layers[0].reset()
    append_sums(cache, 0, rows[:1], fold)
    torch.testing.assert_close(total(cache), fold(rows[:1]))


def fade(sums: Tensor, rows: Tensor) -> Tensor:
    """What is left after rows, the first number of each of which is the logarithm of a gate."""
    return sums * rows[:, :, :1].sum(dim=1).exp()


def faded(rows: Tensor) -> Tensor:
    """The sum of rows, each multiplied by the gates after it."""
    gates = rows[:, :, :1]
    return (rows * (gates.sum(dim=1, keepdim=True) - gates.cumsum(dim=1)).exp()).sum(dim=1)


@pytest.mark.parametrize("sizes", [[1] * 300, [300], [100, 1, 1, 198]], ids=lambda s: f"{len(s)} calls")
@pytest.mark.parametrize("static", [False, True])
def test_sums_that_fade(static, sizes):
    rows = torch.randn(2, 300, 3, dtype=torch.float64)
    rows[:, :, 0] = -0.05 * rows[:, :, 0].abs()
    cache = Cache(SumsStaticLayer(max_cache_len=10) if static else SumsLayer())
    for part in rows.split(sizes, dim=1):
        append_sums(cache, 0, part, faded, fade)
    if not static:
        cache.layers[0].crop(-20)
        append_sums(cache, 0, rows[:, 280:], faded, fade)
    sums, recent = read_sums(cache, 0)
    assert sums is not None
    torch.testing.assert_close(sums if recent is None else fade(sums, recent) + faded(recent), faded(rows))


def test_sums_of_an_older_release_are_refused_where_they_should_fade():
    cache, rows = filled([5])
    cache.layers[0].carries = False
    append_sums(cache, 0, rows, fold)
    with pytest.raises(ValueError, match="running sums of an older release, which cannot fade by gates"):
        append_sums(cache, 0, rows, fold, fade)


def test_a_cache_of_another_kind_is_refused():
    message = r"the cache holds no layer 0 yet, but .*build the cache with DynamicCache\(config=model.config\)"
    with pytest.raises(
        ValueError, match=message + r".*without a model, .* PolyTransformerConfig\(num_hidden_layers=2\)"
    ):
        read_sums(DynamicCache(), 0)
