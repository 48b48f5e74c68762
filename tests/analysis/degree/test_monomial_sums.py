"""Sums of monomials: ranks by hand and by sampling, singular values by quadrature, and shares that are known."""

import math

import numpy as np
import pytest
import torch

from hf_seqmix.analysis.degree.modular_rank import PRIME
from hf_seqmix.analysis.degree.monomial_sums import MonomialSum, random_monomial_sum
from hf_seqmix.analysis.degree.separation_rank import exact_separation_rank


def _sum(*monomials: tuple[list[int], list[int]]) -> MonomialSum:
    return MonomialSum(np.array([a for a, _ in monomials]), np.array([b for _, b in monomials]))


def test_ranks_by_hand() -> None:
    assert _sum(([1, 0], [1, 0]), ([0, 1], [0, 1])).separation_rank == 2  # a1 b1 + a2 b2
    assert _sum(([1, 0], [1, 0]), ([0, 1], [1, 0])).separation_rank == 1  # (a1 + a2) b1
    assert _sum(([1, 0], [1, 0]), ([1, 0], [1, 0])).separation_rank == 1  # 2 a1 b1
    # (a1 + a2) (b1 + b2), and the same without a term
    product = [([1, 0], [1, 0]), ([1, 0], [0, 1]), ([0, 1], [1, 0]), ([0, 1], [0, 1])]
    assert _sum(*product).separation_rank == 1
    assert _sum(*product[:3]).separation_rank == 2
    assert _sum(([0], [0])).separation_rank == 1  # a constant


def test_ranks_are_those_of_sampled_functions() -> None:
    rng = np.random.default_rng(0)

    def power(x: np.ndarray, exponents: np.ndarray) -> np.ndarray:
        result = np.ones(x.shape[:-1], dtype=np.int64)
        for place, exponent in enumerate(exponents):
            for _ in range(exponent):
                result = result * x[..., place] % PRIME
        return result

    found = []
    for _ in range(12):
        one = random_monomial_sum(7, 3, 5, rng)
        assert one.left.shape == (7, 2)
        assert one.right.shape == (7, 3)
        assert (one.left.sum(axis=1) + one.right.sum(axis=1) == 3).all()

        def values(a: np.ndarray, b: np.ndarray, one: MonomialSum = one) -> np.ndarray:
            terms = zip(one.left, one.right, strict=True)
            return sum(power(a, left) * power(b, right) % PRIME for left, right in terms) % PRIME

        assert exact_separation_rank(values, 2, 3, start=16).rank == one.separation_rank
        found.append(one.separation_rank)
    assert len(set(found)) > 1


def test_singular_values_by_hand() -> None:
    # a b + a^2 b^2 of normal inputs: odd and even parts are orthogonal, E a^2 = 1 and E a^4 = 3.
    values = _sum(([1], [1]), ([2], [2])).singular_values()
    assert values.tolist() == pytest.approx([3, 1])
    # 1 + a^2 b^2 of uniform inputs: orthonormal are 1 and e = (a^2 - 1/3) sqrt(45/4); a^2 = 1/3 + 2/sqrt(45) e.
    slope = 2 / math.sqrt(45)
    matrix = np.array([[1 + 1 / 9, slope / 3], [slope / 3, slope**2]])
    values = _sum(([0], [0]), ([2], [2])).singular_values("uniform")
    assert values.tolist() == pytest.approx(np.linalg.svd(matrix, compute_uv=False).tolist())


@pytest.mark.parametrize("measure", ["normal", "uniform"])
def test_singular_values_are_those_of_a_quadrature(measure: str) -> None:
    one = random_monomial_sum(6, 4, 2, np.random.default_rng(3))
    if measure == "normal":
        points, weights = np.polynomial.hermite_e.hermegauss(12)
    else:
        points, weights = np.polynomial.legendre.leggauss(12)
    roots = np.sqrt(weights / weights.sum())
    grid = sum(np.outer(points**left, points**right) for (left,), (right,) in zip(one.left, one.right, strict=True))
    exact = np.linalg.svd(roots[:, None] * grid * roots, compute_uv=False)
    values = one.singular_values(measure)
    assert values.dtype == torch.float64
    assert values.tolist() == pytest.approx(exact[: len(values)].tolist(), abs=1e-9)
    assert exact[one.separation_rank :].max() < 1e-9
    assert exact[one.separation_rank - 1] > 1e-3


def test_shares_that_are_known() -> None:
    rng = np.random.default_rng(1)
    draws = 500
    # One input a monomial: a + b has rank 2, a + a' or 2 a has rank 1.
    share = sum(random_monomial_sum(2, 1, 6, rng).separation_rank == 2 for _ in range(draws)) / draws
    assert share == pytest.approx(0.5, abs=0.06)
    # a^k b^(n - k), k binomial: the rank is 2 unless both k agree.
    share = sum(random_monomial_sum(2, 4, 2, rng).separation_rank == 2 for _ in range(draws)) / draws
    assert share == pytest.approx(1 - math.comb(8, 4) / 4**4, abs=0.06)


def test_wrong_arguments_are_refused() -> None:
    rng = np.random.default_rng(0)
    for sizes in ((0, 1, 2), (1, 0, 2), (1, 1, 1)):
        message = "terms is {}, degree {} and inputs {}; give at least 1, 1 and 2".format(*sizes)
        with pytest.raises(ValueError, match=message):
            random_monomial_sum(*sizes, rng)
    with pytest.raises(ValueError, match="measure is 'sphere'; give one of 'normal', 'uniform'"):
        random_monomial_sum(1, 1, 2, rng).singular_values("sphere")
