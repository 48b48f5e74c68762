"""How far back, or around it, a token looks: distances weighted by a coupling."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Memory", "memory_of"]


@dataclass(frozen=True)
class Memory:
    """Where the squares of a coupling lie, by distance |t - s|, over the later half of the tokens.

    Attributes:
        shares: (length,), the share of the squares at each distance, from 0 on; they sum to 1.
        mean: sum of distance times share, in tokens.
    """

    shares: Tensor
    mean: float

    def reach(self, share: float = 0.9) -> int:
        """Return the least distance within which so large a share of the squares lies, in tokens.

        Raises:
            ValueError: if the share is not between 0 and 1.
        """
        if not 0 < share <= 1:
            raise ValueError(f"share is {share}; it must be greater than 0 and at most 1.")
        # Of a sum that rounding may leave just below 1.
        return int((self.shares.cumsum(dim=0) < share * (1 - 1e-9)).sum())


def memory_of(coupling: Tensor) -> Memory:
    """Return how the squares of a coupling are spread over distances.

    Each token of the later half counts alike, whatever the size of its row; the earlier half has little past.

    Args:
        coupling: (..., length, length), weights or norms of a Jacobian.

    Raises:
        ValueError: if the coupling is not square, or is zero or not finite.
    """
    if coupling.ndim < 2 or coupling.shape[-1] != coupling.shape[-2] or not coupling.shape[-1]:
        raise ValueError(f"coupling has shape {tuple(coupling.shape)}; its last two dimensions must be equal.")
    length = coupling.shape[-1]
    late = coupling.double().reshape(-1, length, length)[:, length // 2 :].square()  # (samples, queries, keys)
    rows = late.sum(dim=-1, keepdim=True)
    if not rows.isfinite().all() or not rows.any():
        raise ValueError("the coupling must be finite and not all zero.")
    spread = torch.where(rows > 0, late / rows, 0).mean(dim=0) / (rows > 0).double().mean(dim=0).clamp(min=1e-300)
    places = torch.arange(length)
    distance = (places[length // 2 :, None] - places).abs()
    shares = torch.zeros(length, dtype=torch.float64).index_add_(0, distance.flatten(), spread.cpu().flatten())
    shares = shares / shares.sum()
    return Memory(shares, float((shares * places).sum()))
