"""Separation rank: elimination modulo a prime, spectra with known values."""

import math

import numpy as np
import pytest
import torch

from hf_seqmix.analysis.degree.modular_rank import PRIME, modular_matmul, modular_rank
from hf_seqmix.analysis.degree.separation_rank import (
    exact_separation_rank,
    generic_separation_rank,
    separation_spectrum,
)


def test_products_modulo_a_prime():
    rng = np.random.default_rng(0)
    a, b = rng.integers(PRIME, size=(5, 37)), rng.integers(PRIME, size=(37, 3))
    a[0], b[:, 0] = PRIME - 1, PRIME - 1  # the largest residues
    exact = (a.astype(object) @ b.astype(object)) % PRIME
    assert (modular_matmul(a, b) == exact.astype(np.int64)).all()


@pytest.mark.parametrize(("rows", "columns", "rank"), [(200, 150, 97), (70, 201, 64), (1, 5, 1), (130, 130, 130)])
def test_rank_modulo_a_prime(rows, columns, rank):
    rng = np.random.default_rng(1)
    matrix = modular_matmul(rng.integers(PRIME, size=(rows, rank)), rng.integers(PRIME, size=(rank, columns)))
    assert modular_rank(matrix) == rank
    # Columns and rows without a pivot in between.
    matrix[:, ::3] = 0
    matrix[: rows // 2] = matrix[rows // 2 : rows // 2 + 1]
    exact = np.linalg.matrix_rank(matrix[:20, :20].astype(float)) if rows < 20 else None
    assert modular_rank(matrix) <= rank
    if exact is not None:
        assert modular_rank(matrix) == exact


@pytest.mark.parametrize("prime", [2, 7, 101])
def test_rank_over_small_fields(prime):
    rng = np.random.default_rng(2)
    for _ in range(20):
        matrix = rng.integers(-5, 6, size=(9, 7))
        assert modular_rank(matrix, prime) == _rank_by_rows(matrix, prime)


def _rank_by_rows(matrix, prime):
    rows, rank = [[int(x) % prime for x in row] for row in matrix], 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        inverse = pow(rows[rank][column], -1, prime)
        for i in range(rank + 1, len(rows)):
            factor = rows[i][column] * inverse
            rows[i] = [(x - factor * y) % prime for x, y in zip(rows[i], rows[rank], strict=True)]
        rank += 1
    return rank


def test_zero_and_wrong_matrices():
    assert modular_rank(np.zeros((3, 4), dtype=np.int64)) == 0
    assert modular_rank(np.zeros((0, 4), dtype=np.int64)) == 0
    with pytest.raises(ValueError, match="give integers in two dimensions"):
        modular_rank(np.ones((2, 2)))
    with pytest.raises(ValueError, match="prime is 2147483648"):
        modular_rank(np.ones((2, 2), dtype=np.int64), 2**31)


def test_the_sample_grows_until_the_rank_no_longer_fills_it():
    def power(a, b):
        result = np.ones((), dtype=np.int64)
        for _ in range(40):
            result = result * ((a + b)[..., 0] % PRIME) % PRIME
        return result

    found = exact_separation_rank(power, 1, 1, start=8)  # (a + b)^40 has 41 monomials
    assert (found.rank, found.size, found.is_complete) == (41, 64, True)
    short = exact_separation_rank(power, 1, 1, start=8, max_size=16)
    assert (short.rank, short.size, short.is_complete) == (16, 16, False)
    with pytest.raises(ValueError, match="max_size"):
        exact_separation_rank(power, 1, 1, start=32, max_size=16)
    with pytest.raises(ValueError, match="gave values of shape"):
        exact_separation_rank(lambda a, b: a[..., 0], 1, 1)


def test_generic_rank():
    assert [generic_separation_rank(n, 1, 1) for n in (0, 1, 12, 81)] == [1, 2, 13, 82]
    assert [generic_separation_rank(n, 2, 2) for n in (4, 8, 16, 9, 27)] == [9, 25, 81, 30, 210]
    with pytest.raises(ValueError, match="degree -1"):
        generic_separation_rank(-1, 1, 1)


def test_analytic_singular_values():
    # rho(u, v) = 1 + 2 sin(2 pi u) sin(2 pi v), Jiang and Li 2024, D.3; a midpoint grid integrates it exactly.
    grid = (torch.arange(24, dtype=torch.float64) + 0.5) / 24

    def rho(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return 1 + 2 * torch.sin(2 * math.pi * u) * torch.sin(2 * math.pi * v)

    plain = separation_spectrum(rho(grid[:, None], grid))
    assert plain.singular_values[:2].tolist() == pytest.approx([1, 1])
    sheared = separation_spectrum(rho(grid[:, None], grid[:, None] + grid))
    expected = [math.sqrt((7 + math.sqrt(33)) / 8), 0.5, math.sqrt((7 - math.sqrt(33)) / 8)]
    assert sheared.singular_values[:3].tolist() == pytest.approx(expected)
    assert sheared.singular_values[:3].tolist() == pytest.approx([1.26217, 0.5, 0.39614], abs=1e-5)
    assert sheared.singular_values[3:].max() < 1e-9 and plain.singular_values[2:].max() < 1e-9
    # The largest two carry 1.593 + 0.25 of 2.
    assert sheared.mse_bound(2) == pytest.approx(expected[2] ** 2 / 2)
    assert [sheared.eps_rank(eps) for eps in (1e-6, 0.27, 0.29, 0.46, 1.0)] == [3, 3, 2, 1, 0]


def test_ranks_of_a_spectrum():
    flat = separation_spectrum(torch.eye(8))
    assert flat.mse_bound(2) == pytest.approx(0.75)
    assert flat.mse_bound(99) == 0
    assert flat.eps_rank(0.5) == 6


def test_wrong_samples():
    with pytest.raises(ValueError, match="not all zero"):
        separation_spectrum(torch.zeros(3, 3))
    spectrum = separation_spectrum(torch.eye(3))
    with pytest.raises(ValueError, match="eps is -1"):
        spectrum.eps_rank(-1)
    with pytest.raises(ValueError, match="rank is -1"):
        spectrum.mse_bound(-1)
