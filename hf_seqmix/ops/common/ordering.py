"""Stable orders of two kinds of positions, counted and not sorted: other runtimes have no stable sort."""

import torch
from torch import Tensor

__all__ = ["inverse_order", "places_first"]


def places_first(first: Tensor) -> Tensor:
    """Return where each position of a row goes if some go first and all keep their order otherwise.

    Args:
        first: (batch, length) bool, True at the positions that go first.

    Returns:
        (batch, length) long, a permutation of 0 to length - 1 in each row.
    """
    positions = torch.arange(first.shape[1], device=first.device)
    counted = first.long().cumsum(dim=1)
    return torch.where(first, counted - 1, counted[:, -1:] + positions - counted)


def inverse_order(places: Tensor) -> Tensor:
    """Return the inverse of each row's permutation, (batch, length) long: which position goes to a place."""
    positions = torch.arange(places.shape[1], device=places.device)
    return torch.zeros_like(places).scatter(1, places, positions.expand_as(places))
