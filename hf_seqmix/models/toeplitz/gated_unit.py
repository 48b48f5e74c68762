"""The gated Toeplitz unit."""

from typing import Any

from torch import Tensor, nn

from ...modules.glu import activate_and_gate, named_activation
from ...ops.layout import TokenLayout
from ..mixers import NumberedModule, layout_of_call

__all__ = ["GatedToeplitzUnit"]


class GatedToeplitzUnit(NumberedModule):
    """Sequence mixing: y = (act(x W_u + b_u) * T(act(x W_v + b_v))) W_o + b_o, with T along the sequence.

    Source: Qin et al. 2023 (arXiv 2305.04749), GTU with SiLU.

    Args:
        hidden_size: channels in and out.
        mixer_size: channels that T mixes.
        operator: module that mixes (batch, length, mixer_size) along the sequence: `operator(values, layout,
            past_key_values)`.
        activation: name of the activation of both branches; models pass the `hidden_act` of their configuration, which
            their feed-forwards have, too.
        layer_idx: which layer of a cache is this mixer's, and, from then on, its operator's. Mixers that share a cache
            need a number each: where two have the same, outputs are wrong in silence.

    Raises:
        ValueError: for an unknown activation.
    """

    def __init__(
        self, hidden_size: int, mixer_size: int, operator: nn.Module, activation: str = "silu", layer_idx: int = 0
    ) -> None:
        super().__init__()
        self.u_proj = nn.Linear(hidden_size, mixer_size)
        self.v_proj = nn.Linear(hidden_size, mixer_size)
        self.o_proj = nn.Linear(mixer_size, hidden_size)
        self.operator = operator
        self.layer_idx = layer_idx
        self.activation = named_activation(activation)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | TokenLayout | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """Mix positions and channels.

        Args:
            hidden_states: (batch, length, hidden_size).
            attention_mask: (batch, length) or (batch, past + length), nonzero at real tokens; or a `TokenLayout`.
            past_key_values: cache of the library, for causal mixers.
            **kwargs: boundaries of packed sequences: `position_ids` that restart, `cu_seq_lens_q`, `seq_idx`; of a
                mixer of images, the `grid_size` of these.

        Returns:
            (batch, length, hidden_size); pad positions are undefined.

        Raises:
            TypeError: for a mask that is no tensor.
            ValueError: for hidden states of other than three dimensions, a mask by another name, a grid given to a
                mixer of sequences, and a cache given to a bidirectional mixer or together with packed sequences.
        """
        mixes_grid = "grid_size" in kwargs and hasattr(self.operator, "grid_size")
        layout = layout_of_call(attention_mask, hidden_states, past_key_values, self.layer_idx, mixes_grid, **kwargs)
        gate = self.u_proj(hidden_states)
        values = self.activation(self.v_proj(hidden_states))
        mixed = self.operator(values, layout, past_key_values)
        return self.o_proj(activate_and_gate(self.activation, gate, mixed))
