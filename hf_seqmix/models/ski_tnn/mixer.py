"""The mixer of SKI-TNN, usable in any bidirectional model."""

import math
from collections.abc import Sequence

from ...ops.ski.interpolation import InducingGrid
from ..toeplitz.axial import axis_lengths, operator_of_axes
from ..toeplitz.gated_unit import GatedToeplitzUnit
from .configuration_ski_tnn import DEGREES
from .kernel import InverseTimeWarpKernel
from .operator import SKIOperator

__all__ = ["SKITNNMixer", "default_decay"]


def default_decay(length: int) -> float:
    """Return lambda = exp(-5 / length): the inverse time warp has fallen to 0.7 % at the end of the sequence.

    A departure: the published models take the decay of a TNN. At 0.9 or less the kernel is then zero at all inducing
    points but the first.
    """
    return math.exp(-5 / length)


class SKITNNMixer(GatedToeplitzUnit):
    """Gated Toeplitz unit whose Toeplitz matrix is a short convolution plus W A W^T over inducing points.

    `mixer(hidden_states, attention_mask=None)` maps (batch, length, hidden_size) to the same shape; bidirectional.
    Source: Moreno, Mei, Walters 2023 (arXiv 2305.09028), section 3.2. Departures: see `SKIOperator`.

    Args:
        hidden_size: channels in and out.
        max_length: tokens that the inducing points cover; inputs of other lengths keep the spacing (a departure).
        mixer_size: channels mixed along the sequence; 3 hidden_size by default.
        num_inducing_points: r, also the knots on each side of the kernel. With a grid one number, or two: along rows
            and along columns.
        conv_kernel_size: m, odd: taps of the short convolution.
        interpolation: "linear" or "cubic".
        decay: lambda of the inverse time warp, in (0, 1), `default_decay` of each axis' length by default. With a grid
            one number, or two.
        channel_decays: one for each of equal blocks of channels (see `SKITNNConfig`); `decay` does not count then.
        scale_kernel: whether the kernel is divided by sqrt(max_length), or by that of an axis (see `SKITNNConfig`).
        activation: activation of both branches.
        layer_idx: number of the layer.
        grid_size: (height, width) of the grid of an image, mixed along rows and then columns, each axis with inducing
            points and a kernel of its own; `max_length` is not used then. None for sequences.

    Raises:
        ValueError: for a decay outside (0, 1), an even convolution, more inducing points than positions, or a grid of
            anything but two numbers.
    """

    def __init__(
        self,
        hidden_size: int,
        max_length: int,
        mixer_size: int | None = None,
        *,
        num_inducing_points: int | Sequence[int] = 32,
        conv_kernel_size: int = 17,
        interpolation: str = "linear",
        decay: float | Sequence[float] | None = None,
        channel_decays: Sequence[float] | None = None,
        scale_kernel: bool = True,
        activation: str = "silu",
        layer_idx: int = 0,
        grid_size: tuple[int, int] | None = None,
    ) -> None:
        mixer_size = 3 * hidden_size if mixer_size is None else mixer_size
        if interpolation not in DEGREES:
            raise ValueError(f"interpolation is {interpolation!r}; it must be one of {', '.join(map(repr, DEGREES))}.")

        def operator_for(length: int, points: int, axis_decay: float | None) -> SKIOperator:
            if not 2 <= points <= length:
                raise ValueError(
                    f"num_inducing_points is {points}, but there are {length} positions: it must be from 2 to that."
                )
            axis_decay = default_decay(length) if axis_decay is None else axis_decay
            decays = axis_decay if channel_decays is None else channel_decays
            kernel = InverseTimeWarpKernel(mixer_size, points, decays, length, scale_kernel)
            return SKIOperator(kernel, InducingGrid(length, points, DEGREES[interpolation]), conv_kernel_size)

        lengths = axis_lengths(grid_size, max_length)
        operator = operator_of_axes(operator_for, grid_size, False, lengths, num_inducing_points, decay)
        super().__init__(hidden_size, mixer_size, operator, activation, layer_idx)
