"""Linear layers of polynomial mixers, which draw their own weights."""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init

from ..mixers import branch_scale

__all__ = ["FactorLinear"]


class FactorLinear(nn.Linear):
    """A linear layer with weights from N(0, 1 / fan_in) and biases 0, so that products of projections keep their size.

    A class, because the library asks only modules with parameters of their own to draw these parameters.

    Args:
        in_features, out_features: channels in and out.
        bias: whether there is a bias.
        ends_branch: whether the weight begins `branch_scale` times as large.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, ends_branch: bool = False) -> None:
        self.ends_branch = ends_branch
        super().__init__(in_features, out_features, bias)

    def reset_parameters(self) -> None:
        """Draw the parameters of a layer that is used alone."""
        self.init_weights()

    @torch.no_grad()
    def init_weights(self, config: Any = None) -> None:
        """Draw the parameters."""
        scale = branch_scale(config) if self.ends_branch and config is not None else 1.0
        init.normal_(self.weight, std=scale * self.in_features**-0.5)
        if self.bias is not None:
            init.zeros_(self.bias)
