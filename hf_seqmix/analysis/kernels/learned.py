"""The kernels that a model has learned, as numbers and as plots."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ...models.ski_tnn.operator import SKIOperator
from ...models.toeplitz.axial import AxialOperator
from ...models.toeplitz.operator import ToeplitzOperator
from ...ops.ski.interpolation import InducingGrid, interpolation_matrix

__all__ = [
    "LearnedKernels",
    "learned_kernels",
    "plot_kernels",
    "ski_taps",
    "toeplitz_operators",
    "typical_channels",
]


@dataclass(frozen=True)
class LearnedKernels:
    """The kernels of one Toeplitz layer.

    Attributes:
        name: path of the layer in the model.
        is_causal: whether negative lags are absent.
        taps: (channels, lags) on the CPU, in float32 or float64.
    """

    name: str
    is_causal: bool
    taps: Tensor

    @property
    def lags(self) -> Tensor:
        """(lags,) from 0, or from -(length - 1), upwards."""
        count = self.taps.shape[1]
        return torch.arange(count) - (0 if self.is_causal else count // 2)

    def response(self, bins: int = 512) -> tuple[Tensor, Tensor]:
        """Return the magnitude of the frequency response |sum_t k(t) exp(-i w t)|.

        Args:
            bins: number of frequencies.

        Returns:
            (bins,) angular frequencies from 0 to pi, and (channels, bins) magnitudes.
        """
        frequencies, response = self.complex_response(bins)
        return frequencies, response.abs()

    def complex_response(self, bins: int = 512) -> tuple[Tensor, Tensor]:
        """Return the frequency response sum_t k(t) exp(-i w t): as `response`, complex."""
        frequencies = torch.linspace(0, math.pi, bins, dtype=self.taps.dtype)
        waves = torch.exp(-1j * self.lags[:, None] * frequencies)  # (lags, bins)
        return frequencies, self.taps.to(waves.dtype) @ waves

    def reach(self) -> Tensor:
        """Return the mean distance |t| that each channel looks over, weighted by k(t)^2: (channels,), in tokens."""
        energy = self.taps.square()
        return (energy * self.lags.abs()).sum(dim=1) / energy.sum(dim=1).clamp(min=torch.finfo(energy.dtype).tiny)


def toeplitz_operators(model: nn.Module) -> list[tuple[str, ToeplitzOperator | SKIOperator, int | None]]:
    """Find every operator along an axis, in order.

    Returns:
        (name, operator, places): path in the model, and for one axis of a grid how many places it has, else None.

    Raises:
        ValueError: there is no Toeplitz layer.
    """
    places: dict[nn.Module, int] = {}
    found: list[tuple[str, ToeplitzOperator | SKIOperator, int | None]] = []
    for name, module in model.named_modules():
        if isinstance(module, AxialOperator):
            height, width = module.grid_size
            places |= {module.row_operator: width, module.column_operator: height}
        elif isinstance(module, ToeplitzOperator | SKIOperator):
            found.append((name, module, places.get(module)))
    if not found:
        raise ValueError(f"{type(model).__name__} has no Toeplitz layer, so there is no kernel to look at.")
    return found


@torch.no_grad()
def ski_taps(operator: SKIOperator, length: int, grid: InducingGrid | None = None) -> Tensor:
    """Return the kernel that a SKI operator realizes: the mean of each diagonal of its matrix, conv + W A W^T.

    The matrix is Toeplitz but for the interpolation, which differs with the places of tokens between inducing points.

    Args:
        operator: the operator.
        length: n tokens.
        grid: other inducing points than the operator's own.

    Returns:
        (channels, 2 length - 1), lags -(length - 1) to length - 1, on the CPU, in float32 (float64).
    """
    grid = operator.grid if grid is None else grid
    weights = interpolation_matrix(length, grid)  # (length, points)
    points = weights.shape[1]
    # In the dtype that the kernel computes in, whatever torch's default is.
    dtype = torch.promote_types(operator.conv_weight.dtype, torch.float32)
    lags = torch.arange(1 - points, points, device=operator.conv_weight.device, dtype=dtype) * grid.spacing
    values = operator.kernel(lags).double().cpu()
    taps = values.new_zeros(values.shape[0], 2 * length - 1)
    distance = torch.arange(points)[:, None] - torch.arange(points) + points - 1  # lag in spacings, counted from 0
    for lag in range(1 - length, length):
        rows = weights[max(lag, 0) : length + min(lag, 0)]
        columns = weights[max(-lag, 0) : length - max(lag, 0)]
        pairs = (rows.T @ columns) / (length - abs(lag))  # weight of A[p, q] in the mean of this diagonal
        share = pairs.new_zeros(2 * points - 1).index_add_(0, distance.flatten(), pairs.flatten())
        taps[:, lag + length - 1] = values @ share
    half = operator.conv_weight.shape[1] // 2
    reach = min(half, length - 1)
    # The convolution's weight q is its kernel at lag half - q.
    short = operator.conv_weight.detach().cpu().double().flip(-1)[:, half - reach : half + reach + 1]
    taps[:, length - 1 - reach : length + reach] += short
    return taps.to(dtype)


@torch.no_grad()
def learned_kernels(model: nn.Module, length: int) -> list[LearnedKernels]:
    """Collect the kernels of every Toeplitz layer of a model, in order, of a grid those of each axis.

    Args:
        model: any model or module with a `ToeplitzOperator` or `SKIOperator` in it.
        length: number of lags from 0 on; along an axis of a grid at most its number of places.

    Raises:
        ValueError: if there is no Toeplitz layer, or `length` is not positive.
    """
    if length < 1:
        raise ValueError(f"length is {length}; at least 1 lag is needed.")
    kernels = []
    for name, operator, places in toeplitz_operators(model):
        lags = length if places is None else min(length, places)
        if isinstance(operator, SKIOperator):
            kernels.append(LearnedKernels(name, False, ski_taps(operator, lags)))
        else:
            kernels.append(LearnedKernels(name, operator.is_causal, operator.kernel(lags).cpu()))
    return kernels


def typical_channels(kernels: LearnedKernels, count: int = 2) -> list[int]:
    """Pick channels that show what a layer has learned: among the stronger half, spread from short to long reach.

    Args:
        kernels: kernels of one layer.
        count: how many channels, at most as many as there are.
    """
    strength = kernels.taps.norm(dim=1)
    strong = strength.argsort(descending=True)[: max(count, len(strength) // 2)]
    by_reach = strong[kernels.reach()[strong].argsort()]
    count = min(count, len(by_reach))
    last = len(by_reach) - 1
    places = torch.linspace(0, last, count + 2)[1:-1].round().long()
    if len(places.unique()) < count:  # few channels: from end to end
        places = torch.linspace(0, last, count).round().long()
    return by_reach[places].tolist()


def plot_kernels(kernels: Sequence[LearnedKernels], path: str | os.PathLike[str], *, channels: int = 2) -> None:
    """Draw kernels over the lag, linear and logarithmic, and magnitude and phase over the frequency, a row a layer.

    Args:
        kernels: layers to draw.
        path: image file; the extension gives the format.
        channels: how many typical channels of each layer.

    Raises:
        ValueError: if there is nothing to draw.
    """
    from ..plots.figures import draw_grid

    if not kernels or channels < 1:
        raise ValueError(f"nothing to draw: {len(kernels)} layers, {channels} channels of each.")
    with draw_grid(path, 15, 2.9 * len(kernels), len(kernels), 4) as (_, panels):
        for layer, axes in zip(kernels, panels, strict=True):
            _draw_kernels(layer, axes, channels)


def _draw_kernels(layer: LearnedKernels, axes: np.ndarray, channels: int) -> None:
    """Draw typical channels of a layer: kernel, magnitude, frequency response and phase."""
    from ..plots.figures import COLORS

    frequencies, response = layer.complex_response()
    reach = layer.reach()
    for index, channel in enumerate(typical_channels(layer, channels)):
        color = COLORS[index % len(COLORS)]
        taps = layer.taps[channel]
        label = f"channel {channel}, reach {reach[channel]:.1f}"
        axes[0].plot(layer.lags, taps, label=label, linewidth=1.4, color=color)
        magnitude = taps.abs()
        axes[1].semilogy(layer.lags, magnitude.masked_fill(magnitude < 1e-8, math.nan), linewidth=1.2, color=color)
        size = response[channel].abs()
        axes[2].plot(frequencies / math.pi, size, linewidth=1.4, color=color)
        # Where nothing is let through the phase is rounding.
        phase = np.unwrap(response[channel].angle().numpy()) / math.pi
        phase[(size < 1e-3 * size.max()).numpy()] = math.nan
        axes[3].plot(frequencies / math.pi, phase, linewidth=1.4, color=color)
    axes[0].set(title=layer.name, xlabel="lag (tokens)", ylabel="k(t)")
    # The first tokens hold most of a kernel, and would hide in the width of a line.
    shown = min(64, int(layer.lags[-1])) or 1
    axes[0].set_xlim(0 if layer.is_causal else -shown, shown)
    axes[0].legend(fontsize=8)
    axes[1].set(title="magnitude, all lags", xlabel="lag (tokens)", ylabel="|k(t)|")
    axes[2].set(title="frequency response", xlabel="frequency (of Nyquist)", ylabel="|K|", ylim=(0, None))
    axes[3].set(title="its phase", xlabel="frequency (of Nyquist)", ylabel="arg K (of π)")
