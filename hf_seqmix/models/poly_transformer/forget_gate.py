"""Gates by which a mixer forgets, one for each head and token."""

from typing import Any

import torch
from torch import Tensor
from transformers import initialization as init

from .factor_linear import FactorLinear

__all__ = ["ForgetGate", "log_gates"]

_FIRST_LOGITS = (4.0, 6.0)
"""Of the first and the last head: gates of 0.982 and 0.998, which fade to 1/e in 55 and 404 tokens."""


class ForgetGate(FactorLinear):
    """Logits of the gates f_t = sigmoid(w x_t + b) of heads, (batch, length, hidden_size) -> (batch, length, heads).

    Weights begin as those of other projections, N(0, 1 / hidden_size), and the biases of heads evenly from 4 to 6.

    Source: Lin et al. 2025, "Forgetting Transformer" (arXiv 2503.02130), for the gate; where biases begin is ours.

    Args:
        hidden_size: channels in.
        heads: gates a token.
    """

    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__(hidden_size, heads)

    @torch.no_grad()
    def init_weights(self, config: Any = None) -> None:
        """Draw the parameters."""
        super().init_weights(config)
        low, high = _FIRST_LOGITS
        heads = self.out_features
        places = torch.linspace(low, high, heads + 2 * (heads == 1), device=self.bias.device)
        init.copy_(self.bias, places[1:2] if heads == 1 else places)


def log_gates(logits: Tensor) -> Tensor:
    """Return log sigmoid, at most 0, in float32 (float64), of the logits of `ForgetGate`."""
    return torch.nn.functional.logsigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))
