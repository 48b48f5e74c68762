"""Numbers of parameters: what is timed beside each other has as many."""

from torch import nn

__all__ = ["count", "in_tiles"]


def count(module: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def in_tiles(width: float, hidden_size: int) -> int:
    """Return the nearest inner width that matrix products of a GPU do well: a multiple of 16.

    A Llama layer of 2,767 inner channels has half the speed of one with 2,800 on an H200, in bfloat16. Layers narrower
    than 256 channels, which are there to try the scripts, get smaller multiples.
    """
    tile = min(16, max(1, hidden_size // 16))
    return tile * max(1, round(width / tile))
