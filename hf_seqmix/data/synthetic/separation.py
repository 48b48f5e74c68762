"""Functions of two halves of an input, with what is proven of their separation rank."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Half", "SeparationTask", "flat_spectrum", "require_positive"]

Half = np.ndarray

MOST_VALUES = 2**20  # singular values that a spectrum lists at most


@dataclass(frozen=True)
class SeparationTask:
    """A function f(A, B) of two halves drawn independently, with what is proven of its separation rank.

    sep(f) = min{R: f(a, b) = sum_{r <= R} g_r(a) h_r(b)}. |f| is the root mean square over the distributions of the
    two halves.

    Attributes:
        name: name of the family.
        num_tokens, width: an input is (rows, num_tokens, width); half A is the first half of the tokens, B the rest.
        evaluate: (halves of shape (..., num_tokens / 2, width), broadcast against each other) -> (...).
        draw: (rows, generator) -> inputs (rows, num_tokens, width).
        rank: sep(f); None if it is infinite or not known.
        spectrum: the singular values in L2, relative to |f|, squared and descending, up to `rank`; None if not known.
        least_degree: f is orthogonal to every polynomial of lower total degree; 0 if that is not known.
    """

    name: str
    num_tokens: int
    width: int
    evaluate: Callable[[Half, Half], np.ndarray]
    draw: Callable[[int, np.random.Generator], np.ndarray]
    rank: int | None
    spectrum: tuple[float, ...] | None
    least_degree: int = 0

    def values(self, inputs: np.ndarray) -> np.ndarray:
        """Return the targets (rows,) of inputs (rows, num_tokens, width)."""
        half = self.num_tokens // 2
        return self.evaluate(inputs[:, :half], inputs[:, half:])

    def mse_bound(self, rank: int, degree: float = math.inf) -> float:
        """Return the least mean square error over |f|^2 of any model of this separation rank; 0 if nothing is known.

        Args:
            rank: of the model.
            degree: of the model, if it is a polynomial. One below `least_degree` leaves all of f: the bound is 1.

        Raises:
            ValueError: `rank` or `degree` is negative.
        """
        if rank < 0:
            raise ValueError(f"rank is {rank}; it must be at least 0.")
        if not degree >= 0:
            raise ValueError(f"degree is {degree}; it must be at least 0.")
        if degree < self.least_degree:
            return 1.0
        return float(sum(self.spectrum[rank:])) if self.spectrum is not None else 0.0


def flat_spectrum(rank: int) -> tuple[float, ...]:
    """Return the spectrum of a task whose `rank` singular values are equal: squares over their sum."""
    if rank > MOST_VALUES:
        raise ValueError(
            f"the separation rank of this task is {rank:,}; make it smaller, so that there are at most "
            f"{MOST_VALUES:,} singular values to list."
        )
    return (1 / rank,) * rank


def require_positive(**sizes: int) -> None:
    """Raise a `ValueError` that names the first size below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1.")
