"""IPA's column operation with kernels that are products of a factor of the query and one of the key, in linear time."""

import torch
from torch import Tensor

__all__ = ["separable_column"]


def separable_column(query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, causal: bool) -> Tensor:
    """Return g(x_l) sum_j h(x_j) v_j / count for contiguous rows, in linear time.

    Args:
        query, key: g and h, (rows, centres, positions, 1).
        value: (rows, centres, positions, rank).
        real: (rows, positions) bool, False at keys to hide, or None.
        causal: whether later keys are hidden.

    Returns:
        (rows, positions, centres x rank).
    """
    dtype = torch.promote_types(value.dtype, torch.float32)
    weighted = key.to(dtype) * value.to(dtype)
    ones = torch.ones_like(weighted[:, :1, :, :1]) if real is None else real.to(dtype)[:, None, :, None]
    if causal:
        sums, counts = weighted.cumsum(dim=2), ones.cumsum(dim=2)
    else:
        sums, counts = (weighted * ones).sum(dim=2, keepdim=True), ones.sum(dim=2, keepdim=True)
    mixed = query.to(dtype) * sums / counts.clamp(min=1)
    return mixed.to(value.dtype).transpose(1, 2).flatten(2)
