"""Symmetric powers of vectors: features whose inner products are powers of inner products."""

import math

import torch
from torch import Tensor

__all__ = ["LARGEST_POWER", "monomials", "multinomials", "number_of_features", "symmetric_power", "whole_power"]

LARGEST_POWER = 16
"""Its factorial is an integer of 64 bits."""


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
        power: p, from 1 to 16.

    Returns:
        (..., C(width + p - 1, p)) in the dtype of `x`.

    Raises:
        ValueError: for another power.
    """
    channels, orders = _multisets(x.shape[-1], power, x.device)
    return (_multiplied(x.mT, channels) * orders.to(x.dtype).sqrt().unsqueeze(-1)).mT


def monomials(x: Tensor, power: int) -> Tensor:
    """Multiply channels: the features of `symmetric_power` without their weights, positions last.

    Args:
        x: (..., length, width).
        power: p, from 1 to 16.

    Returns:
        (..., C(width + p - 1, p), length), so that what is gathered and added up are rows of positions.
    """
    if power == 1:
        return x.mT
    return _multiplied(x.mT.contiguous(), _multisets(x.shape[-1], power, x.device)[0])


def multinomials(width: int, power: int, like: Tensor) -> Tensor:
    """Return p! / prod_i a_i! of each feature, (features, 1), the weight of a product of two monomials."""
    return _multisets(width, power, like.device)[1].to(like.dtype).unsqueeze(-1)


def whole_power(x: Tensor, power: int) -> Tensor:
    """Multiply x with itself, `power` times in all."""
    y = x
    for _ in range(power - 1):
        y = y * x
    return y


def _multiplied(rows: Tensor, channels: Tensor) -> Tensor:
    """Multiply the rows (..., width, length) that each feature names, for channels (power, features)."""
    product = rows.index_select(-2, channels[0])
    for place in channels[1:]:
        product = product * rows.index_select(-2, place)
    return product


def _multisets(width: int, power: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the channels of each feature, in order, (power, features), and p! / prod_i a_i!, (features,).

    Of ordinary operations alone, and anew in each call: a graph holds them, and a tensor that is kept could come from
    `torch.inference_mode`. Nothing is copied from the host, so that a CUDA graph can record the call.
    """
    if not 1 <= power <= LARGEST_POWER:
        raise ValueError(f"power is {power}; it must be from 1 to {LARGEST_POWER}.")
    channels = torch.arange(width, device=device).unsqueeze(0)
    orders = torch.ones_like(channels[0])
    repeats = sizes = orders
    for k in range(2, power + 1):
        # With a channel in front go all sets whose channels are not before it, which stand last.
        sizes = sizes.flip(0).cumsum(dim=0).flip(0)
        ends = sizes.cumsum(dim=0)
        places = torch.arange(number_of_features(width, k), device=device)
        first = torch.zeros_like(places).index_fill(0, ends[:-1], 1).cumsum(dim=0)
        behind = sizes[0] - ends[first] + places
        rest = channels[:, behind]
        repeats = torch.where(first == rest[0], repeats[behind] + 1, 1)
        orders = orders[behind] * repeats
        channels = torch.cat([first.unsqueeze(0), rest])
    return channels, math.factorial(power) // orders
