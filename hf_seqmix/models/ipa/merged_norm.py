"""The norm of the results of IPA's centers, side by side."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...modules.norms import SimpleRMSNorm
from ...ops.common.dispatch import cast, compute_dtype
from ...ops.common.rms_norm import rms_normalize

__all__ = ["MergedNorm"]


class MergedNorm(SimpleRMSNorm):
    """`SimpleRMSNorm` with a learned scale, y = w x / sqrt(mean(x^2) + eps), in float32 at least.

    Args:
        channels: channels in and out.
        eps: added to the mean square.
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__(eps)
        self.weight = nn.Parameter(torch.ones(channels))

    def init_weights(self, config: Any = None) -> None:
        """Start from the scale 1."""
        init.ones_(self.weight)

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalize (..., channels) over the channels; `mask` is not needed."""
        dtype = compute_dtype(hidden_states.dtype)
        y = rms_normalize(cast(hidden_states, dtype), self.eps, cast(self.weight, dtype))
        return cast(y, hidden_states.dtype)

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return f"{len(self.weight)}, {super().extra_repr()}"
