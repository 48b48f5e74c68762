"""The two parts of SKI's operator as mixers of their own, and SKI with another beginning of either part."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_seqmix.models.mixers import register_mixer
from hf_seqmix.models.ski_tnn.configuration_ski_tnn import SKITNNConfig
from hf_seqmix.models.ski_tnn.mixer import SKITNNMixer
from hf_seqmix.models.ski_tnn.modeling_ski_tnn import build_ski_tnn_mixer
from hf_seqmix.models.ski_tnn.operator import SKIOperator
from hf_seqmix.ops.layout import TokenLayout
from hf_seqmix.ops.short_convolution.product import short_conv
from hf_seqmix.ops.ski.product import ski_matmul

__all__ = [
    "PARTS",
    "ConvolutionOnly",
    "LowRankOnly",
    "convolution_of",
    "loud",
    "low_rank_only",
    "register_part",
    "register_parts",
    "silent",
    "small_steps",
    "unscaled",
    "with_falloff",
]


class LowRankOnly(nn.Module):
    """W A W^T x of an `SKIOperator`."""

    def __init__(self, operator: SKIOperator) -> None:
        super().__init__()
        self.kernel, self.grid = operator.kernel, operator.grid

    def forward(self, values: Tensor, layout: TokenLayout, past_key_values: Any = None) -> Tensor:
        """Mix (batch, length, channels)."""
        most = self.grid.points(layout.longest(values.shape[1]))
        lags = torch.arange(1 - most, most, device=values.device) * self.grid.spacing
        taps = self.kernel(lags)

        def operation(rows: Tensor) -> Tensor:
            points = self.grid.points(rows.shape[1])
            shortened = taps[:, most - points : most + points - 1]
            return ski_matmul(rows.transpose(1, 2), shortened, self.grid).transpose(1, 2)

        return layout.mix(operation, values, align=True)


class ConvolutionOnly(nn.Module):
    """The short convolution of an `SKIOperator`, begun as its attribute says."""

    def __init__(self, operator: SKIOperator) -> None:
        super().__init__()
        operator.init_weights()
        self.conv_weight = operator.conv_weight

    def forward(self, values: Tensor, layout: TokenLayout, past_key_values: Any = None) -> Tensor:
        """Mix (batch, length, channels)."""
        return layout.mix(lambda rows: short_conv(rows.transpose(1, 2), self.conv_weight).transpose(1, 2), values)


def unscaled(operator: SKIOperator) -> SKIOperator:
    """Let the kernel be PL in place of PL / sqrt(n), the same at first: steps are sqrt(n) times as large."""
    operator.kernel.scale = 1.0
    return operator


def small_steps(operator: SKIOperator) -> SKIOperator:
    """Let the kernel be PL / n in place of PL / sqrt(n), the same at first: steps are sqrt(n) times smaller."""
    operator.kernel.scale = 1 / operator.kernel.length_scale
    return operator


def loud(operator: SKIOperator) -> SKIOperator:
    """Let the kernel be PL and begin as N(0, 1 / n) at the knots, as in version 0.2.0, in place of N(0, 1 / n^2)."""
    operator.kernel.length_scale **= 0.5
    return unscaled(operator)


def silent(operator: SKIOperator) -> SKIOperator:
    """Let the kernel be PL and begin at zero: a convolution alone, whose low-rank part is learned from there."""
    operator.kernel.length_scale = math.inf
    return unscaled(operator)


def with_falloff(falloff: float) -> Callable[[SKIOperator], SKIOperator]:
    """Return a change that lets taps begin in proportion to (1 + distance)^-falloff; 0: all alike."""

    def change(operator: SKIOperator) -> SKIOperator:
        operator.tap_falloff = falloff
        return operator

    return change


def convolution_of(change: Callable[[SKIOperator], SKIOperator]) -> Callable[[SKIOperator], ConvolutionOnly]:
    """Return a change that leaves the convolution alone of a changed operator."""

    def alone(operator: SKIOperator) -> ConvolutionOnly:
        return ConvolutionOnly(change(operator))

    return alone


def low_rank_only(operator: SKIOperator) -> LowRankOnly:
    """Leave the convolution out; alone, W A W^T begins on the scale of white inputs."""
    return LowRankOnly(loud(operator))


def _builder(change: Callable[[SKIOperator], nn.Module]) -> Any:
    def build(config: SKITNNConfig, layer_idx: int) -> SKITNNMixer:
        mixer = build_ski_tnn_mixer(config, layer_idx)
        assert isinstance(mixer.operator, SKIOperator)
        mixer.operator = change(mixer.operator)
        return mixer

    return build


PARTS: dict[str, Callable[[SKIOperator], nn.Module]] = {
    "low-rank-only": low_rank_only,
    "convolution-only": ConvolutionOnly,
    "ski-loud-low-rank": loud,
    "ski-zero-low-rank": silent,
    "ski-unscaled": unscaled,
    "ski-small-steps": small_steps,
}


def register_parts() -> dict[str, str]:
    """Make all of them known to hybrids; return the name in tables -> the name of the mixer."""
    return {name: register_part(name, change) for name, change in PARTS.items()}


def register_part(name: str, change: Callable[[SKIOperator], nn.Module]) -> str:
    """Make SKI with a changed operator known to hybrids; return the name of the mixer."""
    mixer = f"ski_{name.removeprefix('ski-').replace('-', '_')}"
    register_mixer(mixer, SKITNNConfig, _builder(change))
    return mixer
