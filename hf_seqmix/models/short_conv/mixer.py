"""The mixer that is a short convolution alone."""

from typing import Any

from torch import Tensor, nn

from ...cache import count_steps
from ...modules.short_convolution import ShortConvolution
from ...ops.layout import TokenLayout
from ..mixers import register_mixer
from ..short_convolution import convolve_call
from ..toeplitz.gated_unit import GatedToeplitzUnit
from .configuration_short_conv import ShortConvConfig

__all__ = ["ShortConvOperator", "build_short_conv_mixer"]


class ShortConvOperator(nn.Module):
    """A short convolution in the place of a Toeplitz operator.

    Args:
        convolution: what is applied.
        layer_idx: which layer of a cache is this operator's.
    """

    def __init__(self, convolution: ShortConvolution, layer_idx: int = 0) -> None:
        super().__init__()
        self.convolution = convolution
        self.layer_idx = layer_idx

    def forward(self, values: Tensor, layout: TokenLayout, past_key_values: Any = None) -> Tensor:
        """Mix positions.

        Args:
            values: (batch, length, channels), pads of any value.
            layout: where the real tokens lie.
            past_key_values: cache that these tokens continue; causal only.

        Returns:
            (batch, length, channels); pad positions are undefined.

        Raises:
            ValueError: for a cache given to a bidirectional operator, or together with packed sequences.
        """
        mixed = convolve_call(self.convolution, "mixer", values, layout, layout.mask, past_key_values, self.layer_idx)
        if past_key_values is not None:
            count_steps(past_key_values, self.layer_idx, values)
        return mixed


def build_short_conv_mixer(config: ShortConvConfig, layer_idx: int) -> GatedToeplitzUnit:
    """Build the gated unit of one layer, with a short convolution instead of a Toeplitz operator."""
    convolution = ShortConvolution(config.mixer_size, config.taps, config.is_causal, config.taps_init)
    operator = ShortConvOperator(convolution)
    return GatedToeplitzUnit(config.hidden_size, config.mixer_size, operator, config.hidden_act, layer_idx)


register_mixer("short_conv", ShortConvConfig, build_short_conv_mixer)
