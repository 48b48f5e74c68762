"""Layouts of padded and packed batches, against each sequence alone."""

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops.layout import token_layout


def cumulative(rows: Tensor) -> Tensor:
    """An operation that any leak between positions would show in: running sums, and the sum of all."""
    return rows.cumsum(dim=1) + 100 * rows.sum(dim=1, keepdim=True)


MASKS = {
    "left": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]],
    "inside": [[1, 0, 1, 0, 1], [1, 1, 0, 0, 1]],
    "both ends": [[0, 1, 1, 1, 0], [0, 0, 0, 0, 1]],
    "empty row": [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
    "none": [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]],
}


@pytest.mark.parametrize("name", MASKS)
def test_a_padded_row_is_mixed_as_the_row_alone(name):
    mask = torch.tensor(MASKS[name])
    values = torch.randn(2, 5, 3, dtype=torch.float64)
    mixed = token_layout(mask, 2, 5).mix(cumulative, values)
    for row in range(2):
        real = mask[row].bool()
        torch.testing.assert_close(mixed[row][real], cumulative(values[row][real][None])[0])


def test_rows_contiguous_at_one_end_are_not_gathered():
    for name in ("left", "right", "both ends", "none"):
        assert not token_layout(torch.tensor(MASKS[name]), 2, 5).gather
    assert token_layout(torch.tensor(MASKS["inside"]), 2, 5).gather
    assert token_layout(torch.tensor(MASKS["none"]), 2, 5).mask is None


def boundaries(kind: str) -> dict[str, Tensor]:
    """Two rows of sequences of lengths (2, 3) and (4, 1)."""
    if kind == "position_ids":
        return {"position_ids": torch.tensor([[0, 1, 0, 1, 2], [0, 1, 2, 3, 0]])}
    if kind == "cu_seq_lens_q":
        return {"cu_seq_lens_q": torch.tensor([0, 2, 5, 9, 10], dtype=torch.int32)}
    return {"seq_idx": torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.int32)}


@pytest.mark.parametrize("all_ones_mask", [False, True])
@pytest.mark.parametrize("kind", ["position_ids", "cu_seq_lens_q", "seq_idx"])
def test_packed_sequences_are_mixed_alone(kind, all_ones_mask):
    values = torch.randn(2, 5, 3, dtype=torch.float64)
    mask = torch.ones(2, 5, dtype=torch.long) if all_ones_mask else None
    mixed = token_layout(mask, 2, 5, **boundaries(kind)).mix(cumulative, values)
    for row, start, stop in [(0, 0, 2), (0, 2, 5), (1, 0, 4), (1, 4, 5)]:
        torch.testing.assert_close(mixed[row, start:stop], cumulative(values[None, row, start:stop])[0])


@pytest.mark.parametrize("ends", [[0, 0, 2, 5], [0, 2, 2, 2, 5], [0, 2, 5, 5]])
def test_a_sequence_may_have_no_tokens(ends):
    values = torch.randn(1, 5, 3, dtype=torch.float64)
    mixed = token_layout(None, 1, 5, cu_seq_lens_q=torch.tensor(ends)).mix(cumulative, values)
    torch.testing.assert_close(mixed, torch.cat([cumulative(values[:, :2]), cumulative(values[:, 2:])], dim=1))


def test_packing_costs_at_most_twice_its_tokens():
    lengths = torch.tensor([700, 1, 1, 1, 300, 17, 40, 64, 128] + [5] * 200)
    boundaries = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    total = int(lengths.sum())
    layout = token_layout(None, 1, total, cu_seq_lens_q=boundaries)
    assert sum(group.numel() for group in layout.gather) <= 2 * total
    assert len(layout.gather) <= 10
    values = torch.randn(1, total, 2, dtype=torch.float64)
    expected = torch.cat([cumulative(part) for part in values.split(lengths.tolist(), dim=1)], dim=1)
    torch.testing.assert_close(layout.mix(cumulative, values), expected)


def test_groups_have_lengths_that_kernels_are_compiled_for():
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        starts = torch.randint(0, 12, (8, 200), generator=generator) == 0
        layout = token_layout(None, 8, 200, seq_idx=starts.long().cumsum(1) * 2**50)
        *others, longest = [group.shape[1] for group in layout.gather]
        assert longest == max(int(there.sum(dim=1).max()) for there in layout.gathered)
        assert all(length % 16 == 0 or length in (1, 2, 4, 6, 8, 12) for length in others)
        assert [*others, longest] == sorted({*others, longest})


def test_a_few_tokens_join_the_next_group():
    lengths = [3, 20, 45, 188, 250, 256, 256]
    boundaries = torch.tensor([0, *lengths]).cumsum(0)
    layout = token_layout(None, 1, sum(lengths), cu_seq_lens_q=boundaries)
    assert [group.shape for group in layout.gather] == [(3, 48), (4, 256)]


def test_places_without_a_token_read_different_ones():
    """The gradients of these are added up one after another where all of them read the same token."""
    mask = torch.arange(200).expand(2, 200) < 190
    layout = token_layout(mask, 2, 200, seq_idx=(torch.arange(200) // 70).expand(2, 200))
    read = torch.cat([places[~there] for places, there in zip(layout.gather, layout.gathered, strict=True)])
    for reads in (read, layout.scatter[~mask]):
        assert len(reads) > 1
        assert reads.unique(return_counts=True)[1].max() == 1


def test_pads_within_packed_rows():
    positions = torch.tensor([[0, 0, 1, 0, 1, 0]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 0]])
    values = torch.randn(1, 6, 2, dtype=torch.float64)
    mixed = token_layout(mask, 1, 6, position_ids=positions).mix(cumulative, values)
    for start, stop in [(1, 3), (3, 5)]:
        torch.testing.assert_close(mixed[0, start:stop], cumulative(values[:, start:stop])[0])


def test_positions_of_left_pads_are_not_a_restart():
    # What `generate` makes of a left-padded row.
    layout = token_layout(torch.tensor([[0, 0, 1, 1]]), 1, 4, position_ids=torch.tensor([[0, 0, 0, 1]]))
    assert layout.sequence_ids is None


def test_explicit_boundaries_win_over_positions():
    layout = token_layout(None, 1, 4, position_ids=torch.arange(4)[None], cu_seq_lens_q=torch.tensor([0, 1, 4]))
    assert layout.sequence_ids is not None
    assert layout.sequence_ids.tolist() == [[0, 1, 1, 1]]


def test_gradients_reach_real_tokens_only():
    mask = torch.tensor(MASKS["inside"])
    values = torch.randn(2, 5, 3, requires_grad=True)
    mixed = token_layout(mask, 2, 5).mix(cumulative, values)
    mixed[mask.bool()].sum().backward()
    assert values.grad is not None
    assert values.grad[mask.bool()].abs().min() > 0
    assert not values.grad[~mask.bool()].any()


def test_tracing_takes_the_route_with_static_shapes(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for name in MASKS:
        mask = torch.tensor(MASKS[name])
        values = torch.randn(2, 5, 3, dtype=torch.float64)
        layout = token_layout(mask, 2, 5)
        assert [group.shape for group in layout.gather] == [(2, 5)]
        mixed = layout.mix(cumulative, values)
        for row in range(2):
            real = mask[row].bool()
            torch.testing.assert_close(mixed[row][real], cumulative(values[row][real][None])[0])


def test_history_places_keep_real_tokens_together_at_the_end():
    # Rows hold 2 positions already; of 3 new tokens some are pads.
    mask = torch.tensor([[1, 0, 1], [1, 1, 1]])
    places = token_layout(mask, 2, 3, past_length=2).history_places(2, 7)
    assert places.tolist() == [[1, 2, 3, 0, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("name", [name for name in MASKS if name != "none"])
def test_positions_after_the_last_pad_do_not_move(name):
    mask = torch.tensor(MASKS[name])
    layout = token_layout(mask, 2, 5, past_length=2)
    moved = int(layout.moved())
    assert not mask[:, moved - 1].all() and mask[:, moved:].all()
    places = layout.history_places(2, 9)
    assert torch.equal(places[:, 2 + moved :], torch.arange(2 + moved, 9).expand(2, -1))


def test_a_layout_of_real_tokens_moves_nothing():
    with pytest.raises(ValueError, match="without a mask has nothing to realign"):
        token_layout(None, 2, 5).moved()


def test_left_pads_of_a_first_chunk_need_no_realignment():
    assert not token_layout(torch.tensor([[0, 0, 1], [1, 1, 1]]), 2, 3).realign
    assert token_layout(torch.tensor([[1, 0, 0], [1, 1, 1]]), 2, 3).realign
    # Second chunk of a prompt whose first chunk was all padding in row 0.
    full = torch.tensor([[0, 0, 0, 1], [1, 1, 1, 1]])
    assert not token_layout(full, 2, 2, past_length=2).realign
    assert token_layout(full[:, 2:], 2, 2, past_length=2).realign


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"attention_mask": torch.ones(2, 4)}, r"attention_mask has shape \(2, 4\).*\(2, 5\)"),
        ({"attention_mask": torch.ones(3, 5)}, r"\(2, 5\)"),
        ({"attention_mask": torch.ones(2, 1, 5, 5)}, r"\(2, 5\)"),
        (
            {"attention_mask": torch.ones(2, 6), "past_length": 3},
            r"after 3 cached ones it must be \(2, 5\) or \(2, 8\)",
        ),
        ({"position_ids": torch.ones(2, 4)}, "position_ids has shape"),
        ({"seq_idx": torch.ones(2, 4)}, "seq_idx has shape"),
        ({"cu_seq_lens_q": torch.tensor([0, 5])}, "from 0 to the number of tokens, 10"),
        ({"cu_seq_lens_q": torch.tensor([0, 7, 10])}, "boundary at the end of each of the 2 rows"),
        ({"cu_seq_lens_q": torch.tensor([0, 5, 3, 10])}, "must rise"),
        ({"cu_seq_lens_q": torch.tensor([0, 2, 5, 10]), "past_length": 3}, "cannot continue a cache"),
    ],
)
def test_what_does_not_fit_is_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        token_layout(kwargs.pop("attention_mask", None), 2, 5, **kwargs)


def test_a_sequence_may_be_one_token():
    layout = token_layout(None, 1, 4, position_ids=torch.tensor([[0, 0, 1, 0]]))
    assert layout.sequence_ids is not None
    assert layout.sequence_ids.tolist() == [[0, 1, 1, 2]]
