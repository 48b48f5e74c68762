"""The mixer of the Toeplitz neural network, usable in any model."""

from collections.abc import Sequence

from ..toeplitz.axial import operator_of_axes
from ..toeplitz.encoder import RelativePositionEncoder
from ..toeplitz.gated_unit import GatedToeplitzUnit
from ..toeplitz.operator import ToeplitzOperator
from .kernel import ToeplitzKernel

__all__ = ["TNNMixer"]


class TNNMixer(GatedToeplitzUnit):
    """Gated Toeplitz unit whose kernel is an encoder of the lag times a decay.

    `mixer(hidden_states, attention_mask=None, past_key_values=None)` maps (batch, length, hidden_size) to the same
    shape. Source: Qin et al. 2023 (arXiv 2305.04749).

    With `grid_size` the mixer is for images: rows and then columns, each with a kernel of its own (see
    `AxialOperator`). Images of another size come with `mixer(hidden_states, grid_size=(height, width))`.

    Args:
        hidden_size: channels in and out.
        mixer_size: channels mixed along the sequence; 3 hidden_size by default.
        decay: the kernel at lag t is multiplied by decay^|t|; 1 for none. In two dimensions one number, or two: along
            rows and along columns.
        channel_decays: one for each of equal blocks of channels (see `TNNConfig`); `decay` does not count then.
        is_causal: whether a token sees the past and itself only.
        activation: activation of both branches.
        rpe_hidden_size, rpe_num_layers, rpe_activation, rpe_norm_type, norm_eps: see `RelativePositionEncoder`.
        kernel_max_lag: taps at greater lags are zero; None for no limit.
        layer_idx: which layer of a cache is this mixer's. Mixers that share a cache need a number each: where two have
            the same, outputs are wrong in silence.
        grid_size: (height, width) of the grid of an image, whose places come row after row; None for sequences.

    Raises:
        TypeError: for sizes that are no integers.
        ValueError: for a causal grid, two decays without one, an unknown activation or norm, and sizes out of range.
    """

    def __init__(
        self,
        hidden_size: int,
        mixer_size: int | None = None,
        *,
        decay: float | Sequence[float] | None = 0.99,
        channel_decays: Sequence[float] | None = None,
        is_causal: bool = True,
        activation: str = "silu",
        rpe_hidden_size: int = 64,
        rpe_num_layers: int = 3,
        rpe_activation: str = "relu",
        rpe_norm_type: str = "simple_rms",
        norm_eps: float = 1e-6,
        kernel_max_lag: int | None = None,
        layer_idx: int = 0,
        grid_size: tuple[int, int] | None = None,
    ) -> None:
        mixer_size = 3 * hidden_size if mixer_size is None else mixer_size

        def operator_for(axis_decay: float | None) -> ToeplitzOperator:
            encoder = RelativePositionEncoder(
                mixer_size, rpe_hidden_size, rpe_num_layers, rpe_activation, rpe_norm_type, norm_eps
            )
            decays = axis_decay if channel_decays is None else channel_decays
            if decays is None:
                raise ValueError("decay is None, and so is channel_decays: give one of both.")
            kernel = ToeplitzKernel(encoder, decays, is_causal, kernel_max_lag)
            return ToeplitzOperator(kernel, is_causal)

        operator = operator_of_axes(operator_for, grid_size, is_causal, decay)
        super().__init__(hidden_size, mixer_size, operator, activation, layer_idx)
