"""Random sums of monomials: their exact separation rank, and their singular values by moments instead of samples."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .modular_rank import modular_rank

__all__ = ["MEASURES", "MonomialSum", "random_monomial_sum"]

MEASURES = ("normal", "uniform")


@dataclass(frozen=True)
class MonomialSum:
    """f(A, B) = sum_i a^left_i b^right_i, each with the coefficient 1; a monomial that occurs twice counts twice.

    Attributes:
        left: (terms, inputs of half A), exponents of each monomial.
        right: (terms, inputs of half B).
    """

    left: np.ndarray
    right: np.ndarray

    @property
    def separation_rank(self) -> int:
        """The rank of the matrix of coefficients, over monomials of A and of B: exact, by elimination modulo a prime.

        A rank modulo a prime is never too large. It would be too small only if the prime divided minors.
        """
        return modular_rank(self._factored()[1])

    def singular_values(self, measure: str = "normal") -> Tensor:
        """Return the singular values of f in L2, descending, float64, without sampling.

        With the coefficients C and the moments G_A = E[m m^T] of the monomials m of A, and G_B of those of B, the
        values are those of L_A^T C L_B, where G = L L^T (Cholesky).

        Args:
            measure: of independent inputs, "normal" (mean 0, variance 1) or "uniform" on [-1, 1].

        Raises:
            ValueError: the measure is unknown.
        """
        if measure not in MEASURES:
            raise ValueError(f"measure is {measure!r}; give one of {', '.join(map(repr, MEASURES))}.")
        left, coefficients, right = self._factored()
        roots = [_root_of_moments(exponents, measure) for exponents in (left, right)]
        return torch.linalg.svdvals(roots[0].T @ torch.tensor(coefficients, dtype=torch.float64) @ roots[1])

    def _factored(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return distinct monomials of A (m, inputs), coefficients (m, n), distinct monomials of B (n, inputs)."""
        left, rows = np.unique(self.left, axis=0, return_inverse=True)
        right, columns = np.unique(self.right, axis=0, return_inverse=True)
        coefficients = np.zeros((len(left), len(right)), dtype=np.int64)
        np.add.at(coefficients, (rows.reshape(-1), columns.reshape(-1)), 1)
        return left, coefficients, right


def random_monomial_sum(terms: int, degree: int, inputs: int, rng: np.random.Generator) -> MonomialSum:
    """Draw a sum of monomials, each the product of `degree` inputs drawn uniformly, with repetition.

    Args:
        terms: monomials, at least 1.
        degree: of each monomial, at least 1.
        inputs: at least 2; the first half is A, and the rest is B.
        rng: draws.

    Raises:
        ValueError: a number is too small.
    """
    if terms < 1 or degree < 1 or inputs < 2:
        raise ValueError(f"terms is {terms}, degree {degree} and inputs {inputs}; give at least 1, 1 and 2.")
    exponents = rng.multinomial(degree, [1 / inputs] * inputs, size=terms)
    return MonomialSum(exponents[:, : inputs // 2], exponents[:, inputs // 2 :])


def _root_of_moments(exponents: np.ndarray, measure: str) -> Tensor:
    """Return the Cholesky factor of E[x^(e_i + e_j)], (monomials, monomials)."""
    highest = 2 * int(exponents.max())
    moments = np.zeros(highest + 1)  # E x^k; odd moments are 0
    for k in range(0, highest + 1, 2):
        moments[k] = math.prod(range(k - 1, 0, -2)) if measure == "normal" else 1 / (k + 1)
    products = moments[exponents[:, None] + exponents].prod(axis=-1)
    return torch.linalg.cholesky(torch.tensor(products))
