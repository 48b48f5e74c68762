"""The largest value up to each position."""

import torch
from torch import Tensor

from .dispatch import dispatch

__all__ = ["running_max"]


def running_max(x: Tensor) -> Tensor:
    """Return max over s <= t of x_s, at each position t.

    Args:
        x: (batch, length).

    Returns:
        (batch, length).
    """
    if dispatch(x)[0] != "real":
        return x.cummax(dim=1)[0]
    # Other runtimes know no running maximum: take the maximum of each row of a triangle, O(length^2).
    positions = torch.arange(x.shape[1], device=x.device)
    seen = positions <= positions.unsqueeze(1)
    return torch.where(seen, x.unsqueeze(1), x.unsqueeze(2)).amax(dim=2)
