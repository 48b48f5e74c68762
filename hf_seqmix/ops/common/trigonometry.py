"""Cosines of multiples of a fraction of a turn."""

import math

import torch
from torch import Tensor

__all__ = ["cosines"]


def cosines(steps: Tensor, period: int, dtype: torch.dtype) -> Tensor:
    """Return cos(2 pi s / period) of whole numbers s, to the rounding of `dtype`.

    Angles are reduced in whole numbers, and the cosine is taken as a sine of an angle from -pi / 2 to pi / 2, which is
    small where the result is.

    Args:
        steps: s, of any shape.
        period: steps of a turn, even.
        dtype: of the result.
    """
    # By a quotient: in some runtimes the remainder of a tensor takes no size that is known when the graph runs only.
    # Rounded toward zero, and of an absolute value, as the cosine is even: inductor (torch 2.13) simplifies whole
    # numbers that it makes itself, and gets s - (2 s + period) // (2 period) * period wrong.
    steps = steps.abs()
    turns = torch.div(2 * steps + period, 2 * period, rounding_mode="trunc")
    distance = (steps - turns * period).abs()  # 0 to period / 2
    return torch.sin((period - 4 * distance).to(dtype) * (math.pi / (2 * period)))
