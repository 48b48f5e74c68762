"""How far a token looks."""

import pytest
import torch

from hf_seqmix.analysis.inside import memory_of


def test_a_shift_looks_as_far_as_it_shifts():
    for delay in (0, 1, 3):
        memory = memory_of(torch.ones(8 - delay).diag(-delay))
        assert memory.mean == delay
        assert memory.reach() == delay
        assert memory.shares[delay] == 1


def test_shares_are_of_squares_and_of_the_later_half():
    coupling = torch.zeros(2, 4, 4)
    coupling[:, :2] = 5.0  # the earlier half
    coupling[:, 2, 2], coupling[:, 2, 0] = 3.0, 4.0
    coupling[:, 3, 3] = 1e-3  # the size of a row does not count
    memory = memory_of(coupling)
    torch.testing.assert_close(memory.shares, torch.tensor([(9 / 25 + 1) / 2, 0, 8 / 25, 0], dtype=torch.float64))
    assert memory.mean == pytest.approx(2 * 8 / 25)
    assert [memory.reach(share) for share in (0.5, 0.7, 1.0)] == [0, 2, 2]


def test_even_weights_look_back_a_third_of_the_tokens():
    length = 301
    weights = torch.ones(length, length).tril() / torch.arange(1, length + 1).unsqueeze(1)
    assert memory_of(weights).mean == pytest.approx(0.75 * length / 2, rel=0.01)


def test_rows_of_zeros_do_not_count():
    coupling = torch.eye(4)
    coupling[3] = 0
    assert memory_of(coupling).shares.tolist() == [1, 0, 0, 0]


def test_bad_couplings_are_refused():
    with pytest.raises(ValueError, match=r"coupling has shape \(2, 3\)"):
        memory_of(torch.ones(2, 3))
    with pytest.raises(ValueError, match="finite and not all zero"):
        memory_of(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="share is 0; it must be greater than 0"):
        memory_of(torch.eye(3)).reach(0)
