"""IPA's row operation: gated affine maps of each position, the family's feed-forward."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

__all__ = ["PiecewiseRow", "scale_output"]


class PiecewiseRow(nn.Module):
    """Map each position by P affine maps, weighted by a softmax over them that depends on the position.

    y = sum_p g^p(x) (C^p x + d^p) + d,   g = softmax(W_g x + b_g), in the low-rank form C^p = P B^p A^p, d^p = P B^p a^p,
    that is y = B ((A x + a) * repeat(g, h / P) * P) + d: a feed-forward whose hidden units are gated in P blocks. The factor P
    keeps the scale that h units have without gates. Source: Shamsi, Hua, Williams 2023 (arXiv 2306.12317), the row operation
    under its diagonal constraint; its maps are not published in detail. Gates are computed in float32.

    Args:
        hidden_size: channels in and out.
        intermediate_size: h, units of all maps together.
        num_centers: P, which must divide h.

    Raises:
        ValueError: if the maps do not divide the units.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, num_centers: int = 8) -> None:
        super().__init__()
        if num_centers < 1 or intermediate_size % num_centers:
            raise ValueError(
                f"num_centers is {num_centers}; it must divide intermediate_size {intermediate_size} into equal blocks."
            )
        self.num_centers = num_centers
        self.up_proj = nn.Linear(hidden_size, intermediate_size)
        self.gate_proj = nn.Linear(hidden_size, num_centers)
        self.down_proj = nn.Linear(intermediate_size, hidden_size)

    def init_weights(self, config: Any) -> None:
        """Scale the last projection by 1 / sqrt(2 layers), as many branches as are added up."""
        scale_output(self.down_proj.weight, config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Map (batch, length, hidden_size) to the same shape, each position alone."""
        logits = self.gate_proj(hidden_states)
        gates = torch.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        units = self.up_proj(hidden_states)
        gates = (gates * self.num_centers).to(units.dtype).unsqueeze(-1)
        return self.down_proj((units.unflatten(-1, (self.num_centers, -1)) * gates).flatten(-2))


def scale_output(weight: Tensor, config: Any, fan_in: int | None = None) -> None:
    """Draw the weight of a branch's last projection as `config.linear_init` says, 1 / sqrt(2 layers) as large.

    Args:
        weight: (out, in), or any shape whose `fan_in` is given.
        config: the model's configuration.
        fan_in: inputs of an output; by default the last dimension.
    """
    factor = 1 / math.sqrt(2 * config.num_hidden_layers)
    if config.linear_init == "uniform":
        bound = factor / math.sqrt(weight.shape[-1] if fan_in is None else fan_in)
        init.uniform_(weight, -bound, bound)
    else:
        init.normal_(weight, mean=0.0, std=factor * config.initializer_range)
