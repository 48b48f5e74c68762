"""An activated gate times what it gates."""

from torch import Tensor, nn
from transformers.activations import ACT2FN

from ..ops.common.gating import silu_gate

__all__ = ["activate_and_gate"]

_SILU = (nn.SiLU, type(ACT2FN["silu"]))


def activate_and_gate(activation: nn.Module, gate: Tensor, values: Tensor) -> Tensor:
    """Compute activation(gate) * values, elementwise, in one step where the activation is SiLU."""
    if type(activation) in _SILU:
        return silu_gate(gate, values)
    return activation(gate) * values
