"""The kernels that a model has learned, as numbers and as plots."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..modules.toeplitz_operator import ToeplitzOperator

__all__ = ["LearnedKernels", "learned_kernels", "plot_kernels", "typical_channels"]


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
        """Magnitude of the frequency response |sum_t k(t) exp(-i w t)|.

        Args:
            bins: number of frequencies.

        Returns:
            (bins,) angular frequencies from 0 to pi, and (channels, bins) magnitudes.
        """
        frequencies = torch.linspace(0, math.pi, bins, dtype=self.taps.dtype)
        waves = torch.exp(-1j * self.lags[:, None] * frequencies)  # (lags, bins)
        return frequencies, (self.taps.to(waves.dtype) @ waves).abs()

    def reach(self) -> Tensor:
        """Mean distance |t| that each channel looks over, weighted by k(t)^2: (channels,), in tokens."""
        energy = self.taps.square()
        return (energy * self.lags.abs()).sum(dim=1) / energy.sum(dim=1).clamp(min=torch.finfo(energy.dtype).tiny)


@torch.no_grad()
def learned_kernels(model: nn.Module, length: int) -> list[LearnedKernels]:
    """Collect the kernels of every Toeplitz layer of a model, in order.

    Args:
        model: any model or module with `ToeplitzOperator`s in it.
        length: number of lags from 0 on.

    Raises:
        ValueError: if there is no Toeplitz layer, or `length` is not positive.
    """
    if length < 1:
        raise ValueError(f"length is {length}; at least 1 lag is needed.")
    found = [
        LearnedKernels(name, module.is_causal, module.kernel(length).cpu())
        for name, module in model.named_modules()
        if isinstance(module, ToeplitzOperator)
    ]
    if not found:
        raise ValueError(f"{type(model).__name__} has no Toeplitz layer, so there is no kernel to look at.")
    return found


def typical_channels(kernels: LearnedKernels, count: int = 2) -> list[int]:
    """Pick channels that show what a layer has learned: among the stronger half, spread from short to long reach.

    Args:
        kernels: kernels of one layer.
        count: how many channels, at most as many as there are.
    """
    strength = kernels.taps.norm(dim=1)
    strong = strength.argsort(descending=True)[: max(count, len(strength) // 2)]
    by_reach = strong[kernels.reach()[strong].argsort()]
    places = torch.linspace(0, len(by_reach) - 1, count + 2)[1:-1].round().long()
    return by_reach[places].tolist()


def plot_kernels(kernels: Sequence[LearnedKernels], path: str | os.PathLike[str], *, channels: int = 2) -> None:
    """Draw kernels over the lag, linear and logarithmic, and their frequency responses, a row for each layer.

    Args:
        kernels: layers to draw.
        path: image file; the extension gives the format.
        channels: how many typical channels of each layer.

    Raises:
        ValueError: if there is nothing to draw.
    """
    from matplotlib.figure import Figure

    if not kernels or channels < 1:
        raise ValueError(f"nothing to draw: {len(kernels)} layers, {channels} channels of each.")
    figure = Figure(figsize=(12, 2.9 * len(kernels)), layout="constrained")
    for layer, axes in zip(kernels, figure.subplots(len(kernels), 3, squeeze=False), strict=True):
        frequencies, response = layer.response()
        reach = layer.reach()
        for channel in typical_channels(layer, channels):
            taps = layer.taps[channel]
            label = f"channel {channel}, reach {reach[channel]:.1f}"
            axes[0].plot(layer.lags, taps, label=label, linewidth=1.4)
            magnitude = taps.abs()
            axes[1].semilogy(layer.lags, magnitude.masked_fill(magnitude < 1e-8, math.nan), linewidth=1.2)
            axes[2].plot(frequencies / math.pi, response[channel], linewidth=1.4)
        axes[0].set(title=layer.name, xlabel="lag (tokens)", ylabel="k(t)")
        # The first tokens hold most of a kernel, and would hide in the width of a line.
        shown = min(64, int(layer.lags[-1])) or 1
        axes[0].set_xlim(0 if layer.is_causal else -shown, shown)
        axes[0].legend(frameon=False, fontsize=8)
        axes[1].set(title="magnitude, all lags", xlabel="lag (tokens)", ylabel="|k(t)|")
        axes[2].set(title="frequency response", xlabel="frequency (of Nyquist)", ylabel="|K|", ylim=(0, None))
        for axis in axes:
            axis.grid(color="#E5E5E5", linewidth=0.8)
            axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
