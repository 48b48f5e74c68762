"""The gated linear unit that follows each mixer, and its activated gate."""

from torch import Tensor, nn
from transformers.activations import ACT2FN

from ..ops.common.gating import silu_gate

__all__ = ["GatedLinearUnit", "activate_and_gate", "named_activation"]

_SILU = (nn.SiLU, type(ACT2FN["silu"]))


def named_activation(name: str) -> nn.Module:
    """Return the activation that the library knows by a name.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in ACT2FN:
        raise ValueError(f"activation is {name!r}; it must be one of {', '.join(map(repr, ACT2FN))}.")
    return ACT2FN[name]


def activate_and_gate(activation: nn.Module, gate: Tensor, values: Tensor) -> Tensor:
    """Compute activation(gate) * values, elementwise, in one step where the activation is SiLU."""
    if type(activation) in _SILU:
        return silu_gate(gate, values)
    return activation(gate) * values


class GatedLinearUnit(nn.Module):
    """Channel mixing: y = (act(x W_1 + b_1) * (x W_2 + b_2)) W_3 + b_3.

    Source: Qin et al. 2023 (arXiv 2305.04749), GLU with SiLU.

    Args:
        hidden_size: channels in and out.
        intermediate_size: width of the gate.
        activation: name of the activation of the gate.

    Raises:
        ValueError: for an unknown activation.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str = "silu") -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size)
        self.up_proj = nn.Linear(hidden_size, intermediate_size)
        self.down_proj = nn.Linear(intermediate_size, hidden_size)
        self.activation = named_activation(activation)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Map (batch, length, hidden_size) to the same shape, each position alone."""
        gate = self.gate_proj(hidden_states)
        return self.down_proj(activate_and_gate(self.activation, gate, self.up_proj(hidden_states)))
