"""Regression tasks that need a known separation rank, by name."""

from collections.abc import Callable, Mapping
from typing import Any

from .separation import SeparationTask
from .separation_functions import (
    determinant,
    gaussian_coupling,
    inner_product_parity,
    inner_product_power,
    legendre_products,
    nearest_neighbor,
    paired_product,
)

__all__ = ["SEPARATION_TASKS", "separation_task"]

SEPARATION_TASKS: Mapping[str, Callable[..., SeparationTask]] = {
    "inner_product_power": inner_product_power,
    "paired_product": paired_product,
    "paired_product_control": lambda **sizes: paired_product(**sizes, control=True),
    "legendre_products": legendre_products,
    "inner_product_parity": inner_product_parity,
    "determinant": determinant,
    "gaussian_coupling": gaussian_coupling,
    "nearest_neighbor": nearest_neighbor,
}
"""Name -> function that makes the task; its arguments are the sizes."""


def separation_task(name: str, **sizes: Any) -> SeparationTask:
    r"""Return a function of two halves whose separation rank is known, by the name of its family.

    | name | f(A, B) | separation rank |
    | --- | --- | --- |
    | `inner_product_power` (width m, power k) | $\langle a, b \rangle^k$ | $\binom{m + k - 1}{k}$ |
    | `paired_product` (num_tokens N, width D) | $\prod_i \langle x_i, x_{i + N/2} \rangle$ | $D^{N/2}$ |
    | `paired_product_control` | the same, neighbors paired | 1 (an even number of pairs), else D |
    | `legendre_products` (degree n) | $\sum_k p_k(a) p_{n - k}(b) / \sqrt{n + 1}$, of no lower degree | $n + 1$ |
    | `inner_product_parity` (bits m) | $(-1)^{\langle a, b \rangle}$ | $2^m$ |
    | `determinant` (size n) | $\det [A; B]$ | $\binom{n}{n/2}$ |
    | `gaussian_coupling` (width, bandwidth) | $e^{-|a - b|^2 / 2 h^2}$ | infinite, geometric spectrum |
    | `nearest_neighbor` (num_points, width) | $\arg\min_j |u - v_j|$ | not known |

    Raises:
        ValueError: there is no such family, or a size is out of range.
    """
    if name not in SEPARATION_TASKS:
        raise ValueError(f"there is no task {name!r}; there are {', '.join(SEPARATION_TASKS)}.")
    try:
        return SEPARATION_TASKS[name](**sizes)
    except TypeError as error:
        raise ValueError(f"the task {name!r} does not take these sizes, {sizes}: {error}.") from error
