"""The relative-position encoder: a small network from a coordinate to one number a channel."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...modules.glu import named_activation
from ...modules.norms import SeqMixLayerNorm, SimpleRMSNorm
from ...modules.sharding import weight_of
from ...ops.common.dispatch import compute_dtype, without_autocast
from ...ops.common.layout import transposed
from ..configuration import check_choice, check_integer
from .configuration import RPE_NORM_TYPES

__all__ = ["Float32Linear", "RelativePositionEncoder"]

SHRINKING = ("relu", "relu6", "leaky_relu", "silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "mish", "tanh")
"""Activations with |act(x)| <= |x|."""

OF_ROWS = ("adapter_names", "alora_offsets")
"""Arguments of PEFT that say which rows or tokens an adapter serves."""

LARGE = 1e3
"""Times a unit vector: so large that the epsilon of a norm does not count."""


class Float32Linear(nn.Linear):
    """A linear layer that computes in float32 (float64 for float64 weights), whatever its weights are stored in."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(dtype)
        return nn.functional.linear(x.to(dtype), self.weight.to(dtype), bias)


class _Float32Scaling(Float32Linear):
    """A linear layer of one number, elementwise: a matrix product in TF32 would round the number to 11 bits."""

    def __init__(self, out_features: int) -> None:
        super().__init__(1, out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., 1) to (..., out_features)."""
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        return x.to(dtype) * self.weight.to(dtype).mT + self.bias.to(dtype)


class RelativePositionEncoder(nn.Module):
    """Evaluate a channel's kernel, or its frequency response, at coordinates s.

    z_0 = s w_0 + b_0;  z_i = act(N(z_(i-1))) W_i + b_i for i = 1..K;  out = act(N(z_K)) W_out + b_out, without output
    activation. The norm N (`norm_type`) is one of

    * "simple_rms": the parameter-free RMS norm, the papers'. Outputs level off as the coordinate grows.
    * "layer": one affine LayerNorm before the last activation and no other norm, as in the published Long Range Arena
      models.
    * "none": no norm, an extension. Outputs grow with the coordinate, which is a lag in TNN: limit the lags with a
      decay or `kernel_max_lag`. Without a norm the frequency response of FD-TNN may be entire, see `FrequencyKernel`.

    Always in float32 (float64 for float64 weights), autocast off: in bfloat16 only 384 of the first 512 integers
    exist. Source: Qin et al. 2023 (arXiv 2305.04749), section 3.3; norm first, as in the published code (the figure
    has activation first). 2 p + K (p^2 + p) + p m + m parameters for width p and m channels, 2 p more with "layer".

    Args:
        channels: m, numbers out for each coordinate.
        hidden_size: p.
        num_layers: K, 0 allowed.
        activation: name of the activation.
        norm_type: "simple_rms", "layer" or "none".
        norm_eps: epsilon of the norm.

    Raises:
        TypeError: for sizes that are no integers.
        ValueError: for an unknown norm or activation, widths below 1, and fewer than no layers.
    """

    def __init__(
        self,
        channels: int,
        hidden_size: int = 64,
        num_layers: int = 3,
        activation: str = "relu",
        norm_type: str = "simple_rms",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        check_integer("channels", channels, low=1)
        check_integer("hidden_size", hidden_size, low=1)
        check_integer("num_layers", num_layers, low=0)
        check_choice("rpe_norm_type", norm_type, RPE_NORM_TYPES)
        self.hidden_size = hidden_size
        self.in_proj = _Float32Scaling(hidden_size)
        self.layers = nn.ModuleList(Float32Linear(hidden_size, hidden_size) for _ in range(num_layers))
        self.out_proj = Float32Linear(hidden_size, channels)
        self.hidden_norm = SimpleRMSNorm(norm_eps) if norm_type == "simple_rms" else nn.Identity()
        if norm_type == "layer":
            self.out_norm: nn.Module = SeqMixLayerNorm(hidden_size)
        else:
            self.out_norm = SimpleRMSNorm(norm_eps) if norm_type == "simple_rms" else nn.Identity()
        self.activation = named_activation(activation)
        self.shrinks = activation in SHRINKING

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the encoder computes."""
        return torch.promote_types(weight_of(self.out_proj).dtype, torch.float32)

    def forward(self, coordinates: Tensor) -> Tensor:
        """Map (points,) coordinates to (channels, points), contiguous in the points.

        Raises:
            ValueError: if an adapter of these layers is to serve some rows or tokens of a batch, and not others.
        """
        self._check_adapters()
        with without_autocast(coordinates.device.type):
            z = self.in_proj(coordinates.to(self.dtype).unsqueeze(-1))  # (points, hidden_size)
            for layer in self.layers:
                z = layer(self.activation(self.hidden_norm(z)))
            return transposed(self.out_proj(self.activation(self.out_norm(z))))

    @torch.no_grad()
    def bound(self, device: torch.device | None = None) -> Tensor | None:
        """Return numbers, (channels,), that no output exceeds in size at any coordinate; None where none is known.

        The last norm puts out vectors of length at most sqrt(p), or max|g| sqrt(p) + |c| with its gain g and bias c,
        and the activation makes none longer: |out| <= |W_out| times that, plus |b_out|, for each channel.

        Numbers are read off what layers put out: weights may be split, or elsewhere until a layer is called, or
        changed by adapters.

        Args:
            device: where to compute, by default where the weights are.
        """
        self._check_adapters()
        if isinstance(self.out_norm, nn.Identity) or not self.shrinks:
            return None
        width = self.hidden_size
        device = weight_of(self.out_proj).device if device is None else device
        units = torch.eye(width, dtype=self.dtype, device=device)
        probes = torch.cat([torch.zeros_like(units[:1]), units])
        with without_autocast(units.device.type):
            # In float32 for halves; float64 is not on every device.
            both = self.out_proj(probes), self.out_norm(LARGE * probes)
            put_out, normed = (values.to(compute_dtype(values.dtype)) for values in both)
        # What the norm makes of a large multiple of a unit vector, there.
        spread = math.sqrt(width if isinstance(self.out_norm, SimpleRMSNorm) else max(1, width - 1))
        gain = (normed[1:] - normed[0]).diagonal().abs().max() / spread
        length = gain * math.sqrt(width) + normed[0].norm()
        return (put_out[1:] - put_out[0]).norm(dim=0) * length + put_out[0].abs()

    def _check_adapters(self) -> None:
        # PEFT would take coordinates for rows, without a word where there are as many of both.
        told = {name for layer in self.modules() for hook in layer._forward_pre_hooks.values() for name in _told(hook)}
        for name in OF_ROWS:
            if name in told:
                raise ValueError(
                    f"{name} gives the rows of a batch adapters of their own, but the layers that make kernels have "
                    "adapters, too, and a kernel is one for all rows. Train adapters without these layers (LoraConfig "
                    'with exclude_modules=r".*kernel\\.encoder.*"), or give all rows one adapter (set_adapter) '
                    "after the model is loaded again: PEFT may keep what it was told when a call fails."
                )


def _told(hook: Any) -> Mapping[str, Any]:
    """Return what a hook of PEFT adds to the arguments of a layer."""
    return hook.keywords if isinstance(hook, functools.partial) else {}
