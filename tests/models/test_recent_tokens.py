"""The last real tokens at each place, against a walk through each row."""

import pytest
import torch

from hf_seqmix.models.recent_tokens import last_tokens, recent_tokens, sum_of_parts
from hf_seqmix.ops.layout import TokenLayout


def walked(ids: list[int], real: list[int], sequences: list[int], count: int, earlier: list[int]) -> list[list[int]]:
    """The newest real tokens at each place, -1 where there are fewer; a sequence begins anew with its number."""
    seen, found, current = list(reversed(earlier)), [], sequences[0]
    for token, is_real, sequence in zip(ids, real, sequences, strict=True):
        if sequence != current:
            seen, current = [], sequence
        if is_real:
            seen.append(token)
        found.append(([-1] * count + seen)[: -count - 1 : -1])
    return found


@pytest.mark.parametrize("earlier", [None, [[7, 8, -1], [-1, -1, -1], [6, 9, 5]]])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 13])
def test_pads_are_passed_over(length: int, count: int, earlier: list[list[int]] | None) -> None:
    ids = torch.randint(9, (3, length))
    mask = torch.rand(3, length) < 0.5
    layout = TokenLayout(mask=mask)
    given = None if earlier is None else torch.tensor(earlier)
    found = recent_tokens(ids, layout, count, given).tokens()
    for row in range(3):
        before = [token for token in (earlier or [[]] * 3)[row] if token >= 0]
        expected = walked(ids[row].tolist(), mask[row].tolist(), [0] * length, count, before)
        assert found[row].tolist() == expected


@pytest.mark.parametrize("real", [[1] * 9, [1, 0, 1, 1, 0, 1, 1, 0, 1]], ids=["no pads", "pads"])
@pytest.mark.parametrize("count", [1, 3])
def test_packed_sequences_are_told_apart(count: int, real: list[int]) -> None:
    ids, mask = torch.randint(9, (1, 9)), torch.tensor([real]).bool()
    sequences = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2, 2]])
    layout = TokenLayout(mask=None if mask.all() else mask, sequence_ids=sequences)
    found = recent_tokens(ids, layout, count).tokens()
    expected = torch.tensor(walked(ids[0].tolist(), real, sequences[0].tolist(), count, []))
    assert torch.equal(found[mask], expected[mask[0]])  # a pad in a packed row has no sequence of its own


def test_the_last_tokens_of_a_cache() -> None:
    ids = torch.tensor([[3, -1, 4, 5, 8], [-1, -1, -1, 6, 8], [-1, -1, -1, -1, 8]])
    assert last_tokens(ids, 4, 3).tolist() == [[5, 4, 3], [6, -1, -1], [-1, -1, -1]]
    assert last_tokens(ids, torch.tensor(5), 2).tolist() == [[8, 5], [8, 6], [8, -1]]


@pytest.mark.parametrize("turns", [1, 3])
def test_parts_are_added_by_their_turn(turns: int) -> None:
    ids, mask = torch.randint(9, (2, 7)), torch.rand(2, 7) < 0.7
    recent = recent_tokens(ids, TokenLayout(mask=mask), turns)
    table = torch.randn(9, turns, 5, dtype=torch.float64)
    parts = torch.where((recent.ids < 0)[..., None, None], 0, table[recent.ids.clamp(min=0)]).flatten(2)
    found = sum_of_parts(parts, recent.slots)
    for row in range(2):
        for place, tokens in enumerate(recent.tokens()[row].tolist()):
            expected = torch.zeros(5, dtype=torch.float64)
            for turn, token in enumerate(tokens):
                expected = expected + (table[token, turn] if token >= 0 else 0)
            torch.testing.assert_close(found[row, place], expected)
