"""Products and ranks of integer matrices modulo a prime."""

import numpy as np

__all__ = ["PRIME", "modular_matmul", "modular_rank"]

PRIME = 2147483629
"""The largest prime below 2^31 - 1: a product of two residues fits into 64 bits."""

_PANEL = 64


def modular_matmul(a: np.ndarray, b: np.ndarray, prime: int = PRIME) -> np.ndarray:
    """Multiply (rows, inner) by (inner, columns) modulo a prime below 2^31, in float64 products of 16-bit halves.

    Exact for inner <= 2^20: a sum of products of two halves stays below 2^52.
    """
    a_high, a_low = (half.astype(np.float64) for half in (a >> 16, a & 0xFFFF))
    b_high, b_low = (half.astype(np.float64) for half in (b >> 16, b & 0xFFFF))
    high = (a_high @ b_high).astype(np.int64) % prime
    middle = (a_high @ b_low + a_low @ b_high).astype(np.int64) % prime
    low = (a_low @ b_low).astype(np.int64)
    return ((((high << 16) + middle) % prime << 16) + low) % prime


def modular_rank(matrix: np.ndarray, prime: int = PRIME) -> int:
    """Return the rank of an integer matrix modulo a prime, by Gaussian elimination in panels of columns.

    Args:
        matrix: (rows, columns) of integers.
        prime: below 2^31.

    Raises:
        ValueError: the matrix has not two dimensions or is not of integers, or the prime is too large.
    """
    if matrix.ndim != 2 or not np.issubdtype(matrix.dtype, np.integer):
        raise ValueError(f"matrix has shape {matrix.shape} and dtype {matrix.dtype}; give integers in two dimensions.")
    if not 1 < prime < 2**31:
        raise ValueError(f"prime is {prime}; it must lie between 2 and 2^31, so that products fit into 64 bits.")
    rest = matrix.astype(np.int64) % prime  # what is left to eliminate: rows without a pivot, columns not yet seen
    rank = 0
    while rest.size and rest.any():
        panel, trailing = rest[:, :_PANEL], rest[:, _PANEL:]
        factors, order, found = _eliminate_panel(panel.copy(), prime)
        rank += found
        trailing = trailing[order]
        upper = trailing[:found]
        for row in range(1, found):
            product = modular_matmul(factors[row : row + 1, :row], upper[:row], prime)
            upper[row] = (upper[row] - product[0]) % prime
        rest = (trailing[found:] - modular_matmul(factors[found:], upper, prime)) % prime
    return rank


def _eliminate_panel(panel: np.ndarray, prime: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Eliminate (rows, columns): return factors (rows, found) below the pivots, order of rows, number of pivots."""
    rows, columns = panel.shape
    order = np.arange(rows)
    factors = np.zeros((rows, columns), dtype=np.int64)
    found = 0
    for column in range(columns):
        candidates = np.flatnonzero(panel[found:, column])
        if not len(candidates):
            continue
        swap = [found, found + int(candidates[0])]
        for array in (panel, factors, order):
            array[swap] = array[swap[::-1]]
        inverse = pow(int(panel[found, column]), -1, prime)
        factor = panel[found + 1 :, column] * inverse % prime
        factors[found + 1 :, found] = factor
        update = factor[:, None] * panel[found, column + 1 :] % prime
        panel[found + 1 :, column + 1 :] = (panel[found + 1 :, column + 1 :] - update) % prime
        found += 1
        if found == rows:
            break
    return factors[:, :found], order, found
