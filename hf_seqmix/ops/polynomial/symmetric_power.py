"""Symmetric powers of vectors: features whose inner products are powers of inner products."""

import math
from functools import lru_cache
from itertools import combinations_with_replacement

import torch
from torch import Tensor

__all__ = ["number_of_features", "symmetric_power", "whole_power"]


def number_of_features(width: int, power: int) -> int:
    """Return C(width + power - 1, power), the number of products of `power` out of `width` numbers."""
    return math.comb(width + power - 1, power)


def symmetric_power(x: Tensor, power: int) -> Tensor:
    """Map vectors to features with <phi(x), phi(y)> = <x, y>^p exactly, p the power.

    phi(x) has one number for each multiset a of p channels, sqrt(p! / prod_i a_i!) prod_i x_i^a_i, a_i how often the
    multiset has channel i. The p-fold outer product of x has width^p numbers, each of these features several times.

    Source: Kumar et al. 2025, "Scaling context requires rethinking attention" (arXiv 2507.04239), whose kernels keep
    features of whole tiles of channels; here are no more than there are.

    Args:
        x: (..., width).
        power: p, at least 1.

    Returns:
        (..., C(width + p - 1, p)) in the dtype of `x`; `x` itself for p = 1.
    """
    if power == 1:
        return x
    channels, weights = _multisets(x.shape[-1], power)
    # Rows of tokens, which are gathered and added up much faster than single numbers.
    rows = x.mT
    places = torch.tensor(channels, device=x.device)
    product = rows.index_select(-2, places[0])
    for place in places[1:]:
        product = product * rows.index_select(-2, place)
    return (product * torch.tensor(weights, dtype=x.dtype, device=x.device).unsqueeze(-1)).mT


def whole_power(x: Tensor, power: int) -> Tensor:
    """Multiply x with itself, `power` times in all."""
    y = x
    for _ in range(power - 1):
        y = y * x
    return y


@lru_cache(maxsize=16)
def _multisets(width: int, power: int) -> tuple[list[list[int]], list[float]]:
    """Return the channels of each feature, a list for each factor, and the weight of each feature."""
    sets = list(combinations_with_replacement(range(width), power))
    weights = [
        math.sqrt(math.factorial(power) / math.prod(math.factorial(each.count(i)) for i in set(each))) for each in sets
    ]
    return [[each[k] for each in sets] for k in range(power)], weights
