"""Ranks of singular values, as functions of tensors with any leading dimensions."""

import torch
from torch import Tensor

__all__ = ["entropy_rank", "eps_rank", "stable_rank", "tail_squares"]


def tail_squares(singular_values: Tensor) -> Tensor:
    """Return what the best matrix of each rank leaves: sum_{k > R} sigma_k^2 for R = 0, 1, ..., count.

    The squares are summed from the smallest on, so that small tails keep their digits.

    Args:
        singular_values: (..., count), descending.

    Returns:
        (..., count + 1); the first entry is the square of the Frobenius norm, the last one is 0.

    Raises:
        ValueError: there are no values, or the values are not real, finite, non-negative and descending.
    """
    _check(singular_values)
    squares = singular_values.square()
    squares = torch.cat([squares, squares.new_zeros(*squares.shape[:-1], 1)], dim=-1)
    return squares.flip(-1).cumsum(-1).flip(-1)


def eps_rank(singular_values: Tensor, eps: float) -> Tensor:
    """Return min{R: sum_{k > R} sigma_k^2 <= eps^2 sum_k sigma_k^2}, (...), integers.

    By Eckart and Young, that is the least rank of a matrix within the relative error `eps` in the Frobenius norm.
    Rounding errors count below eps = 1e-8. A zero matrix has rank 0.

    Args:
        singular_values: (..., count), descending.
        eps: relative error.

    Raises:
        ValueError: `eps` is negative, or the values are wrong as in `tail_squares`.
    """
    if not eps >= 0:
        raise ValueError(f"eps is {eps}; give a relative error of at least 0.")
    tails = tail_squares(_relative(singular_values))
    return (tails > eps**2 * tails[..., :1]).sum(dim=-1)


def stable_rank(singular_values: Tensor) -> Tensor:
    """Return sum_k sigma_k^2 / sigma_1^2, (...); 0 for a zero matrix.

    Args:
        singular_values: (..., count), descending.

    Raises:
        ValueError: the values are wrong as in `tail_squares`.
    """
    return _relative(singular_values).square().sum(dim=-1)


def entropy_rank(singular_values: Tensor) -> Tensor:
    """Return exp(-sum_k p_k ln p_k) with p_k = sigma_k^2 / sum_j sigma_j^2, (...); 0 for a zero matrix.

    Args:
        singular_values: (..., count), descending.

    Raises:
        ValueError: the values are wrong as in `tail_squares`.
    """
    squares = _relative(singular_values).square()
    total = squares.sum(dim=-1, keepdim=True)
    entropy = torch.special.entr(squares / total.clamp(min=1)).sum(dim=-1)  # a total is 0, or at least 1
    return torch.where(total[..., 0] > 0, entropy.exp(), 0)


def _relative(singular_values: Tensor) -> Tensor:
    """Divide by the largest value, so that squares stay in range; zero matrices stay zero."""
    _check(singular_values)
    largest = singular_values[..., :1]
    return singular_values / torch.where(largest > 0, largest, 1)


def _check(singular_values: Tensor) -> None:
    if singular_values.ndim < 1 or not singular_values.shape[-1] or not singular_values.is_floating_point():
        raise ValueError(
            f"singular_values have shape {tuple(singular_values.shape)} and dtype {singular_values.dtype};"
            " give real numbers of shape (..., count), at least one each."
        )
    descending = (singular_values.diff(dim=-1) <= 0).all()
    if not singular_values.isfinite().all() or (singular_values < 0).any() or not descending:
        raise ValueError(
            "singular_values must be finite, at least 0 and descending in the last dimension;"
            " torch.linalg.svdvals gives such values."
        )
