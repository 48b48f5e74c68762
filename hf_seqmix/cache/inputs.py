"""Cache layers for mixers that keep nothing but the last inputs of a short convolution: constant in size."""

from typing import Any

from torch import Tensor

from .._compat import register_layer_type
from .history import HistoryLayer, HistoryStaticLayer

__all__ = ["INPUTS", "InputsLayer", "InputsStaticLayer", "count_steps"]

INPUTS = "seqmix_inputs"
"""The name by which a config's `layer_types` asks for such a layer."""


class InputsLayer(HistoryLayer):
    """A history of inputs of width 0, which counts steps, beside the last inputs of the convolution."""

    _layer_type = INPUTS
    record_past = False

    def get_seq_length(self) -> int:
        """Return the number of steps seen."""
        # Not the library's, for which no numbers are no steps.
        return self.keys.shape[2] if self.keys is not None and self.keys.ndim == 4 else 0


class InputsStaticLayer(HistoryStaticLayer):
    """The same for compiled decoding."""

    _layer_type = INPUTS
    keeps_tokens = False


register_layer_type(InputsLayer, InputsStaticLayer)


def count_steps(past_key_values: Any, layer_idx: int, values: Tensor) -> None:
    """Tell a layer of a cache of this call's inputs, (batch, length, channels), which it is not to keep."""
    nothing = values[:, None, :, :0]
    past_key_values.update(nothing, nothing, layer_idx)
