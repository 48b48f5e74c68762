"""Absolute positions that are added to embeddings."""

import math

import torch
from torch import Tensor, nn

__all__ = ["PositionEmbedding", "sinusoids"]


class PositionEmbedding(nn.Embedding):
    """A table of learned positions: unlike token embeddings, not scaled."""


def sinusoids(positions: Tensor, channels: int) -> Tensor:
    """Sinusoidal positions (Vaswani et al. 2017): sines, then cosines, of wavelengths 2 pi to 2 pi 10000, in float32.

    Args:
        positions: (batch or 1, length).
        channels: width; an odd one drops the last cosine.
    """
    half = (channels + 1) // 2
    frequencies = torch.exp(
        torch.arange(half, device=positions.device, dtype=torch.float32) * (-math.log(10000.0) / max(half - 1, 1))
    )
    angles = positions.float().unsqueeze(-1) * frequencies  # (batch or 1, length, half)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :channels]
