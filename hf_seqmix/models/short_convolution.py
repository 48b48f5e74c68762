"""The short convolution before a mixer, and how a call of any convolution goes on after a cache."""

from typing import Any

from torch import Tensor, nn

from ..cache import previous_inputs
from ..modules.short_convolution import ShortConvolution
from ..ops.layout import TokenLayout
from .configuration import SeqMixConfig
from .toeplitz.axial import operator_of_axes

__all__ = ["build_short_convolution", "convolve_call"]


def build_short_convolution(config: SeqMixConfig, layer_idx: int) -> nn.Module | None:
    """Build the convolution before the mixer of a layer: along rows and columns, where the mixer mixes a grid so.

    Returns:
        None without `short_conv_taps`, and where the mixer is nothing else than such a convolution.
    """
    if config.short_conv_taps == 0 or config.layer_mixers[layer_idx] == "short_conv":
        return None

    def convolution(taps: int) -> ShortConvolution:
        return ShortConvolution(config.hidden_size, taps, config.is_causal, config.short_conv_init)

    return operator_of_axes(convolution, config.mixing_grid, config.is_causal, config.short_conv_taps)


def convolve_call(
    convolution: Any,
    name: str,
    hidden_states: Tensor,
    layout: TokenLayout,
    real: Tensor | None,
    past_key_values: Any,
    layer_idx: int,
) -> Tensor:
    """Convolve the inputs of a call, which go on after those that a cache holds.

    Args:
        convolution: a `ShortConvolution`, or, without a cache, one along rows and columns.
        name: of the convolution among those of its layer, which cannot share their inputs.
        hidden_states: (batch, length, channels), pads of any value.
        layout: where the real tokens of each sequence lie.
        real: (batch, length) bool, True at the real tokens of this call; None when all are.
        past_key_values: cache of the library, built for the model's configuration, or None.
        layer_idx: number of the layer.

    Returns:
        (batch, length, channels); pad positions are undefined.

    Raises:
        ValueError: for a cache that keeps no inputs, or together with a bidirectional
            convolution or packed sequences.
    """
    if past_key_values is None:
        return convolution(hidden_states, layout)
    if layout.sequence_ids is not None:
        raise ValueError("packed sequences cannot fill a cache: pass use_cache=False, or one sequence a row.")
    if not getattr(convolution, "is_causal", False):
        raise ValueError("past_key_values is given, but a bidirectional convolution has no cache: pass None.")
    if real is not None:
        hidden_states = hidden_states.masked_fill(~real.unsqueeze(-1), 0)  # the value at a pad may be NaN
    before = previous_inputs(past_key_values, layer_idx, name, hidden_states, real, convolution.taps - 1)
    return convolution.continued(hidden_states, before, real)
