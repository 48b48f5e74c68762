"""Ranks of singular values: of matrices whose ranks are known, in batches, and what is refused."""

import math

import pytest
import torch

from hf_seqmix.analysis.degree.separation_rank import separation_spectrum
from hf_seqmix.analysis.spectra import entropy_rank, eps_rank, stable_rank, tail_squares


@pytest.mark.parametrize("count", [1, 5, 8])
def test_equal_values_have_full_rank(count: int) -> None:
    values = torch.full((count,), 3.0, dtype=torch.float64)
    assert eps_rank(values, 0).item() == count
    assert stable_rank(values).item() == pytest.approx(count)
    assert entropy_rank(values).item() == pytest.approx(count)


def test_ranks_of_a_product() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(17, 3, dtype=torch.float64) @ torch.randn(3, 11, dtype=torch.float64)
    values = torch.linalg.svdvals(matrix)
    assert eps_rank(values, 1e-7).item() == 3
    assert eps_rank(values, 1).item() == 0
    assert 1 < stable_rank(values).item() < entropy_rank(values).item() < 3


def test_ranks_by_hand() -> None:
    # Squares 16, 4, 4, 1 of 25.
    values = torch.tensor([4.0, 2, 2, 1], dtype=torch.float64)
    assert tail_squares(values).tolist() == [25, 9, 5, 1, 0]
    cuts = {0.0: 4, 0.19: 4, 0.2: 3, 0.44: 3, 0.45: 2, 0.59: 2, 0.6: 1, 0.99: 1, 1.0: 0}
    assert {eps: eps_rank(values, eps).item() for eps in cuts} == cuts
    assert stable_rank(values).item() == 25 / 16
    shares = [16 / 25, 4 / 25, 4 / 25, 1 / 25]
    assert entropy_rank(values).item() == pytest.approx(math.prod(p**-p for p in shares))


def test_batches_are_their_samples() -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(torch.randn(2, 3, 7, 5, dtype=torch.float64))
    for rank in (stable_rank, entropy_rank, lambda x: eps_rank(x, 0.3)):
        batched = rank(values)
        assert batched.shape == (2, 3)
        torch.testing.assert_close(batched, torch.stack([torch.stack([rank(x) for x in row]) for row in values]))


def test_small_tails_keep_their_digits() -> None:
    values = torch.tensor([1.0, 1e-9, 1e-10], dtype=torch.float64)
    assert tail_squares(values)[1].item() == pytest.approx(1.01e-18, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_huge_and_tiny_values(scale: float) -> None:
    values = torch.tensor([2.0, 1], dtype=torch.float64) * scale
    assert eps_rank(values, 0.1).item() == 2
    assert stable_rank(values).item() == pytest.approx(1.25)
    assert entropy_rank(values).item() == pytest.approx(0.8**-0.8 * 0.2**-0.2)


def test_squares_beyond_the_range_of_half_precision() -> None:
    values = torch.tensor([300.0, 200, 100], dtype=torch.float16)
    assert eps_rank(values, 0.1).item() == 3


def test_zero_has_rank_zero() -> None:
    values = torch.zeros(2, 3)
    for rank in (stable_rank(values), entropy_rank(values), eps_rank(values, 0.0)):
        assert rank.tolist() == [0, 0]


def test_the_separation_spectrum_uses_these_ranks() -> None:
    torch.manual_seed(2)
    spectrum = separation_spectrum(torch.randn(9, 6))
    values = spectrum.singular_values
    assert spectrum.eps_rank(0.4) == eps_rank(values, 0.4).item()
    tails = tail_squares(values)
    assert spectrum.mse_bound(2) == (tails[2] / tails[0]).item()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.tensor(1.0), r"shape \(\) and dtype torch.float32; give real numbers of shape"),
        (torch.zeros(3, 0), r"shape \(3, 0\)"),
        (torch.arange(3).flip(0), "dtype torch.int64"),
        (torch.tensor([1.0, 2.0]), "descending in the last dimension; torch.linalg.svdvals"),
        (torch.tensor([1.0, -1.0]), "at least 0"),
        (torch.tensor([math.nan, 1.0]), "must be finite"),
        (torch.tensor([math.inf, 1.0]), "must be finite"),
    ],
)
def test_wrong_values_are_refused(values: torch.Tensor, message: str) -> None:
    for rank in (tail_squares, stable_rank, entropy_rank, lambda x: eps_rank(x, 0.1)):
        with pytest.raises(ValueError, match=message):
            rank(values)


@pytest.mark.parametrize("eps", [-1.0, math.nan])
def test_wrong_errors_are_refused(eps: float) -> None:
    with pytest.raises(ValueError, match=f"eps is {eps}; give a relative error of at least 0"):
        eps_rank(torch.ones(2), eps)
