"""IPA's row operation: gated affine maps of each position, the family's feed-forward."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...modules.sharding import number_of_devices, own_part, weight_of
from ...ops.common.dispatch import cast, compute_dtype
from ..mixers import branch_scale

__all__ = ["OutputLinear", "PiecewiseRow"]


class OutputLinear(nn.Linear):
    """A linear layer that ends a branch, whose weight starts `branch_scale` times as large as others'.

    A class, because the library asks only modules with parameters of their own to draw these parameters.
    """

    def init_weights(self, config: Any) -> None:
        """Draw the weight as `config.linear_init` says, and the bias as in other linear layers."""
        scale = branch_scale(config)
        if config.linear_init == "uniform":
            bound = self.in_features**-0.5
            init.uniform_(self.weight, -scale * bound, scale * bound)
            init.uniform_(self.bias, -bound, bound)
        else:
            init.normal_(self.weight, mean=0.0, std=scale * config.initializer_range)
            init.zeros_(self.bias)


class PiecewiseRow(nn.Module):
    """Map each position by P affine maps, weighted by a softmax over them that depends on the position.

    y = sum_p g^p(x) (C^p x + d^p) + d, with gates g = softmax(W_g x + b_g) normalized over the P centers and maps of
    low rank, C^p = P B^p A^p and d^p = P B^p a^p. That is y = B ((A x + a) * repeat(g, h / P) * P) + d, a feed-forward
    whose hidden units are gated in P blocks. The factor P keeps the scale that h units have without gates. Gates are
    computed in float32. Source: Shamsi, Hua, Williams 2023 (arXiv 2306.12317), the row operation under its diagonal
    constraint. The paper does not publish the maps in detail.

    Args:
        hidden_size: channels in and out.
        intermediate_size: h, units of all maps together.
        num_centers: P, which must divide h.

    Raises:
        ValueError: if the centers do not divide the units.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, num_centers: int = 8) -> None:
        super().__init__()
        if num_centers < 1 or intermediate_size % num_centers:
            raise ValueError(
                f"num_centers is {num_centers}; it must divide intermediate_size {intermediate_size} into blocks."
            )
        self.num_centers = num_centers
        self.up_proj = nn.Linear(hidden_size, intermediate_size)
        self.gate_proj = nn.Linear(hidden_size, num_centers)
        self.down_proj = OutputLinear(intermediate_size, hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Map (batch, length, hidden_size) to the same shape, each position alone."""
        logits = self.gate_proj(hidden_states)
        gates = torch.softmax(logits, dim=-1, dtype=compute_dtype(logits.dtype))
        units = self.up_proj(hidden_states)
        gates = cast(gates * self.num_centers, units.dtype)
        weight = weight_of(self.up_proj)
        devices = number_of_devices(weight)
        if self.num_centers % devices:
            # A device has parts of blocks, so that each unit has its own gate.
            gates = gates.repeat_interleave(units.shape[-1] * devices // self.num_centers, dim=-1)
        gates = own_part(gates, weight, dim=-1)
        return self.down_proj((units.unflatten(-1, (gates.shape[-1], -1)) * gates.unsqueeze(-1)).flatten(-2))
