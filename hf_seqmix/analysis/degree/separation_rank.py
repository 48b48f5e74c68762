"""Separation rank of functions of two halves of their inputs: of polynomials exactly, of any model numerically."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..spectra.ranks import eps_rank, tail_squares
from .modular_rank import PRIME, modular_rank

__all__ = [
    "ExactRank",
    "SeparationSpectrum",
    "exact_separation_rank",
    "generic_separation_rank",
    "separation_spectrum",
]

Pairs = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From assignments of half A, (rows, 1, inputs of A), and of half B, (1, columns, inputs of B), integers in [0,
prime), to the polynomial's values at all pairs, (rows, columns), modulo the prime."""


@dataclass(frozen=True)
class ExactRank:
    """Result of `exact_separation_rank`.

    Attributes:
        rank: of the sampled matrix; never more than the separation rank.
        size: rows and columns that were sampled.
        is_complete: the matrix had more rows than its rank, so that (but for an event of probability about
            degree / prime) the rank is the separation rank itself.
    """

    rank: int
    size: int
    is_complete: bool


def exact_separation_rank(
    pairs: Pairs,
    left_inputs: int,
    right_inputs: int,
    *,
    start: int = 64,
    max_size: int = 4096,
    limit: int = PRIME,
    seed: int = 0,
    prime: int = PRIME,
) -> ExactRank:
    """Return the separation rank of a polynomial f(A, B) with integer coefficients, without a tolerance.

    sep(f) = min{R: f(a, b) = sum_{r <= R} g_r(a) h_r(b)} is the largest rank of a matrix [f(a_i, b_j)]. Random
    assignments modulo a large prime reach it with overwhelming probability once there are more of them than the rank
    (Schwartz-Zippel); a rank modulo a prime is never above the one over the rationals, and the rank of a sample never
    above that of f. So the matrix is doubled until its rank no longer fills it.

    Args:
        pairs: values at all pairs of assignments, see `Pairs`.
        left_inputs: numbers in the first half.
        right_inputs: numbers in the second half.
        start: rows and columns of the first matrix.
        max_size: of the largest one; a rank that fills it is a lower bound only.
        limit: assignments are integers in [0, limit); a small one lets functions without a modulus stay below 2^63.
        seed: of the assignments.
        prime: the modulus.

    Raises:
        ValueError: a number is below 1, or the values do not have the shape of the pairs.
    """
    if min(left_inputs, right_inputs, start) < 1 or max_size < start:
        raise ValueError(
            f"left_inputs {left_inputs}, right_inputs {right_inputs}, start {start} and max_size {max_size} must be at"
            " least 1, and max_size no less than start."
        )
    rng = np.random.default_rng(seed)
    size = start
    while True:
        left = rng.integers(limit, size=(size, 1, left_inputs))
        right = rng.integers(limit, size=(1, size, right_inputs))
        rows = max(1, 2**18 // size)  # some MiB at once
        values = [pairs(left[row : row + rows], right) for row in range(0, size, rows)]
        matrix = np.concatenate(values)
        if matrix.shape != (size, size):
            raise ValueError(f"pairs gave values of shape {matrix.shape} for {size} times {size} assignments.")
        rank = modular_rank(matrix, prime)
        if rank < size or size == max_size:
            return ExactRank(rank, size, rank < size)
        size = min(2 * size, max_size)


def generic_separation_rank(degree: int, left_inputs: int, right_inputs: int) -> int:
    """Return the largest separation rank that a homogeneous polynomial can have.

    sep = sum_{k=0}^{n} min(C(a + k - 1, k), C(b + n - k - 1, n - k)): the part of degree k in the a inputs of one half
    and of degree n - k in the b inputs of the other is a matrix over their monomials.

    Args:
        degree: n, at least 0.
        left_inputs: a, at least 1.
        right_inputs: b, at least 1.

    Raises:
        ValueError: a number is too small.
    """
    if degree < 0 or min(left_inputs, right_inputs) < 1:
        raise ValueError(
            f"degree {degree} must be at least 0, left_inputs {left_inputs} and right_inputs {right_inputs} at"
            " least 1."
        )
    return sum(
        min(math.comb(left_inputs + k - 1, k), math.comb(right_inputs + degree - k - 1, degree - k))
        for k in range(degree + 1)
    )


@dataclass(frozen=True)
class SeparationSpectrum:
    """How well sums of R products g_r(A) h_r(B) can follow a sampled function, in the metric L2(mu_A x mu_B).

    A function of two halves, drawn independently from mu_A and mu_B, is a Hilbert-Schmidt kernel; the best sum of R
    products leaves the mean square sum_{k > R} sigma_k^2 (Eckart-Young). Singular values of the sampled matrix over
    sqrt(rows columns) estimate sigma_k; on a quadrature grid with equal weights they are exact where the quadrature
    is. Ranks cannot exceed the smaller number of samples, and small singular values of few samples are biased upwards.

    Attributes:
        singular_values: sigma_k, descending, float64.
    """

    singular_values: Tensor

    def eps_rank(self, eps: float) -> int:
        """Return min{R: sum_{k > R} sigma_k^2 <= eps^2 |f|^2}; below eps = 1e-8 rounding errors count.

        Raises:
            ValueError: `eps` is negative.
        """
        return int(eps_rank(self.singular_values, eps))

    def mse_bound(self, rank: int) -> float:
        """Return sum_{k > rank} sigma_k^2 / |f|^2, the least mean square error of any model of that separation rank.

        Raises:
            ValueError: `rank` is negative.
        """
        if rank < 0:
            raise ValueError(f"rank is {rank}; it must be at least 0.")
        tails = tail_squares(self.singular_values)
        return (tails[min(rank, len(tails) - 1)] / tails[0]).item()


def separation_spectrum(matrix: Tensor) -> SeparationSpectrum:
    """Return the spectrum of a matrix [f(a_i, b_j)], (rows, columns); see `SeparationSpectrum`.

    Raises:
        ValueError: the matrix has not two dimensions, is zero or not finite.
    """
    if matrix.ndim != 2 or not matrix.isfinite().all() or not matrix.any():
        raise ValueError("the sampled matrix must have two dimensions and finite values, not all zero.")
    return SeparationSpectrum(torch.linalg.svdvals(matrix.double()) / math.sqrt(matrix.numel()))
