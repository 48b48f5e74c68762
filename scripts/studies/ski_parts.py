"""The two parts of SKI's operator as mixers of their own, and SKI with another beginning of its low-rank part."""

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
from hf_seqmix.ops.masking import TokenLayout
from hf_seqmix.ops.short_convolution.product import short_conv
from hf_seqmix.ops.ski.product import ski_matmul

__all__ = [
    "PARTS",
    "ConvolutionOnly",
    "LowRankOnly",
    "half_scaled",
    "loud",
    "low_rank_only",
    "register_parts",
    "scaled",
    "silent",
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
    """The short convolution of an `SKIOperator`."""

    def __init__(self, operator: SKIOperator) -> None:
        super().__init__()
        self.conv_weight = operator.conv_weight

    def forward(self, values: Tensor, layout: TokenLayout, past_key_values: Any = None) -> Tensor:
        """Mix (batch, length, channels)."""
        return layout.mix(lambda rows: short_conv(rows.transpose(1, 2), self.conv_weight).transpose(1, 2), values)


def _with_scale(operator: SKIOperator, scale: float) -> SKIOperator:
    """Multiply the kernel by a number, so that an optimizer's steps of the knots change it by so much less."""
    operator.kernel.register_forward_hook(lambda _, __, taps: scale * taps)  # taps: (channels, points)
    return operator


def scaled(operator: SKIOperator) -> SKIOperator:
    """Let the knots be N(0, 1) and the kernel PL / n for n positions: equal at first, with steps n times smaller."""
    scale = 1 / operator.kernel.length_scale
    operator.kernel.length_scale = 1
    return _with_scale(operator, scale)


def half_scaled(operator: SKIOperator) -> SKIOperator:
    """Let the knots be N(0, 1 / n) and the kernel PL / sqrt(n): steps sqrt(n) times smaller."""
    operator.kernel.length_scale **= 0.5
    return _with_scale(operator, 1 / operator.kernel.length_scale)


def loud(operator: SKIOperator) -> SKIOperator:
    """Let the knots begin as N(0, 1 / n) for n positions, where they begin as N(0, 1 / n^2) otherwise."""
    operator.kernel.length_scale **= 0.5
    return operator


def silent(operator: SKIOperator) -> SKIOperator:
    """Let the knots begin at zero: a convolution alone, whose low-rank part is learned from there."""
    operator.kernel.length_scale = math.inf
    return operator


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
    "ski-half-scaled": half_scaled,
    "ski-scaled": scaled,
}


def register_parts() -> dict[str, str]:
    """Make all of them known to hybrids; return the name in tables -> the name of the mixer."""
    names = {name: f"ski_{name.removeprefix('ski-').replace('-', '_')}" for name in PARTS}
    for name, change in PARTS.items():
        register_mixer(names[name], SKITNNConfig, _builder(change))
    return names
