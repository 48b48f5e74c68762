"""Causal language models with SKI: T x = conv(x) + tril(W A W^T) x, beside their convolution alone and a TNN."""

import argparse
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from comparison.models import TOEPLITZ
from huggingface_hub.dataclasses import strict
from ski.causal_product import spacing_of, whole_grid, within_cells
from torch import Tensor, nn
from transformers import initialization as init

from hf_seqmix.models.mixers import register_mixer
from hf_seqmix.models.short_conv.configuration_short_conv import ShortConvConfig
from hf_seqmix.models.ski_tnn.kernel import InverseTimeWarpKernel
from hf_seqmix.models.ski_tnn.mixer import default_decay
from hf_seqmix.models.toeplitz.gated_unit import GatedToeplitzUnit
from hf_seqmix.ops.layout import TokenLayout
from hf_seqmix.ops.short_convolution.product import short_conv

from .ski_settings import train_and_report

__all__ = ["CausalSKI", "run_causal_ski_text"]


@strict
class CausalSKIConfig(ShortConvConfig):
    """Fields of the mixer "causal_ski" of hybrids, which trains and has no cache.

    Args:
        num_inducing_points: at most, over `max_position_embeddings` tokens; neighbors are a whole number apart.
    """

    model_type: ClassVar[str] = "causal_ski"

    num_inducing_points: int = 32


class CausalSKI(nn.Module):
    """Apply y_i = sum_q w_q x_(i - q) + sum_(j <= i) (W A W^T)[i, j] x_j to each channel.

    Source: Moreno, Mei, Walters 2023 (arXiv 2305.09028), appendix B, which leaves it at the argument. The kernel, its
    knots and the taps begin as those of SKI-TNN.

    Args:
        channels: mixed, each alone.
        max_length: tokens that the inducing points cover.
        num_points: of these points, at most.
        taps: of the convolution, all of the past.
    """

    def __init__(self, channels: int, max_length: int, num_points: int, taps: int) -> None:
        super().__init__()
        self.grid = whole_grid(max_length, num_points)
        self.kernel = InverseTimeWarpKernel(channels, num_points, default_decay(max_length), max_length)
        self.conv_weight = nn.Parameter(torch.empty(channels, taps))
        self.init_weights()

    def init_weights(self, config: Any = None) -> None:
        """Draw the taps as `SKIOperator` does."""
        init.normal_(self.conv_weight, std=self.conv_weight.shape[1] ** -0.5)

    def forward(self, values: Tensor, layout: TokenLayout, past_key_values: Any = None) -> Tensor:
        """Mix (batch, length, channels); there is no cache."""
        most = self.grid.points(layout.longest(values.shape[1]))
        lags = torch.arange(1 - most, most, device=values.device) * spacing_of(self.grid)
        kernel, back = self.kernel(lags), self.conv_weight.shape[1] - 1

        def operation(rows: Tensor) -> Tensor:
            near = short_conv(rows.transpose(1, 2), self.conv_weight, back).transpose(1, 2)
            return near + within_cells(rows.to(kernel.dtype), kernel, self.grid).to(rows.dtype)

        return layout.mix(operation, values, align=True)


def build_causal_ski(config: CausalSKIConfig, layer_idx: int) -> GatedToeplitzUnit:
    """Build the gated unit of a layer."""
    length, points = config.max_position_embeddings, config.num_inducing_points
    operator = CausalSKI(config.mixer_size, length, points, config.taps)
    return GatedToeplitzUnit(config.hidden_size, config.mixer_size, operator, config.hidden_act, layer_idx)


def models_of(points: list[int], taps: int) -> dict[str, Mapping[str, Any]]:
    """Return name -> fields of the models."""
    register_mixer("causal_ski", CausalSKIConfig, build_causal_ski)
    models: dict[str, Mapping[str, Any]] = {"tnn": {"model_type": "tnn", **TOEPLITZ}}
    kinds = {"convolution": "short_conv", **{f"causal SKI, r={r}": "causal_ski" for r in points}}
    for (name, mixer), r in zip(kinds.items(), [None, *points], strict=True):
        own = {"taps": taps} if r is None else {"taps": taps, "num_inducing_points": r}
        models[name] = {"model_type": "seqmix_hybrid", "mixer_types": [mixer], "mixer_configs": {mixer: own}}
    return models


def run_causal_ski_text(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train causal language models: with SKI, with its convolution alone, and with a whole Toeplitz matrix (TNN)."""
    models = models_of(arguments.points, arguments.taps)
    return train_and_report(arguments, "causal-ski-text", "lm-causal", models)
