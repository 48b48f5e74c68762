"""Quantiles of Student's t distribution, without scipy."""

import math

__all__ = ["student_quantile"]


def student_quantile(probability: float, freedom: int) -> float:
    """Return t with P(T <= t) = `probability` for Student's distribution, by bisection of its finite sums.

    With n degrees of freedom and t = sqrt(n) tan(theta),

        n odd:  P(|T| <= t) = 2/pi (theta + sin(theta) (cos(theta) + 2/3 cos^3(theta) + ... up to cos^(n - 2)))
        n even: P(|T| <= t) = sin(theta) (1 + 1/2 cos^2(theta) + 1/2 3/4 cos^4(theta) + ... up to cos^(n - 2))

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.

    Args:
        probability: between 0 and 1.
        freedom: n, at least 1.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError(
            f"probability is {probability} and freedom {freedom}; give a number between 0 and 1, and at least 1 degree"
            " of freedom."
        )
    inside = abs(2 * probability - 1)
    low, high = 0.0, math.pi / 2
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < inside else (low, middle)
    return math.copysign(math.sqrt(freedom) * math.tan(low), probability - 0.5)


def _inside(theta: float, freedom: int) -> float:
    """Return P(|T| <= sqrt(n) tan(theta))."""
    odd = freedom % 2
    total, term = 0.0, math.cos(theta) if odd else 1.0
    for j in range(1, freedom // 2 + 1):
        total += term
        term *= math.cos(theta) ** 2 * (2 * j - 1 + odd) / (2 * j + odd)
    return 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total
