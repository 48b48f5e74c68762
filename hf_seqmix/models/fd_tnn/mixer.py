"""The mixer of FD-TNN, usable in any model."""

from ..toeplitz.axial import axis_lengths, operator_of_axes
from ..toeplitz.encoder import RelativePositionEncoder
from ..toeplitz.gated_unit import GatedToeplitzUnit
from ..toeplitz.operator import ToeplitzOperator
from .kernel import FrequencyKernel

__all__ = ["FDTNNMixer"]


class FDTNNMixer(GatedToeplitzUnit):
    """Gated Toeplitz unit whose kernel is given by its frequency response.

    `mixer(hidden_states, attention_mask=None, past_key_values=None)` maps (batch, length, hidden_size) to the same
    shape. Source: Moreno, Mei, Walters 2023 (arXiv 2305.09028), sections 3.3.1 and 3.3.2.

    Args:
        hidden_size: channels in and out.
        max_length: M, the response is sampled at M + 1 frequencies; see `FrequencyKernel` for inputs of other lengths.
        mixer_size: channels mixed along the sequence; 3 hidden_size by default.
        frequency_input: "cosine" or "omega" (the paper), see `FrequencyKernel`.
        is_causal: whether a token sees the past and itself only.
        activation: activation of both branches.
        rpe_hidden_size, rpe_num_layers, rpe_activation, rpe_norm_type, norm_eps: see `RelativePositionEncoder`.
        kernel_max_lag: taps at greater lags are zero; None for no limit but M.
        layer_idx: which layer of a cache is this mixer's. Mixers that share a cache need a number each: where two have
            the same, outputs are wrong in silence.
        grid_size: (height, width) of the grid of an image, mixed along rows and then columns, each axis with a
            response of its own on the grid of its own length; `max_length` is not used then. None for sequences.

    Raises:
        TypeError: for sizes that are no integers.
        ValueError: for a causal grid, an unknown input, activation or norm, and sizes out of range.
    """

    def __init__(
        self,
        hidden_size: int,
        max_length: int,
        mixer_size: int | None = None,
        *,
        frequency_input: str = "cosine",
        is_causal: bool = True,
        activation: str = "silu",
        rpe_hidden_size: int = 64,
        rpe_num_layers: int = 3,
        rpe_activation: str = "silu",
        rpe_norm_type: str = "simple_rms",
        norm_eps: float = 1e-6,
        kernel_max_lag: int | None = None,
        layer_idx: int = 0,
        grid_size: tuple[int, int] | None = None,
    ) -> None:
        mixer_size = 3 * hidden_size if mixer_size is None else mixer_size
        outputs = mixer_size if is_causal else 2 * mixer_size  # a bidirectional response is complex

        def operator_for(length: int) -> ToeplitzOperator:
            encoder = RelativePositionEncoder(
                outputs, rpe_hidden_size, rpe_num_layers, rpe_activation, rpe_norm_type, norm_eps
            )
            kernel = FrequencyKernel(encoder, length, frequency_input, is_causal, kernel_max_lag)
            return ToeplitzOperator(kernel, is_causal)

        lengths = axis_lengths(grid_size, max_length)
        operator = operator_of_axes(operator_for, grid_size, is_causal, lengths)
        super().__init__(hidden_size, mixer_size, operator, activation, layer_idx)
