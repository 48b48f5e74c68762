"""The relative-position encoder: a small network from a coordinate to one number a channel."""

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from ...modules.norms import SeqMixLayerNorm, SimpleRMSNorm
from ...ops.common.layout import transposed

__all__ = ["Float32Linear", "RelativePositionEncoder"]


class Float32Linear(nn.Linear):
    """A linear layer that computes in float32 (float64 for float64 weights), whatever its weights are stored in."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(dtype)
        return nn.functional.linear(x.to(dtype), self.weight.to(dtype), bias)


class RelativePositionEncoder(nn.Module):
    """Evaluate a channel's kernel, or its frequency response, at coordinates s.

    z_0 = s w_0 + b_0;  z_i = act(N(z_(i-1))) W_i + b_i for i = 1..K;  out = act(N(z_K)) W_out + b_out, without output
    activation. N is the parameter-free RMS norm with `norm_type` "simple_rms". With "layer" it is the variant of the
    published Long Range Arena models: no norm but one affine LayerNorm before the last activation.

    Always in float32 (float64 for float64 weights), autocast off: in bfloat16 only 384 of the first 512 integers exist.
    Source: Qin et al. 2023 (arXiv 2305.04749), section 3.3; norm first, as in the published code (the figure has
    activation first). 2 p + K (p^2 + p) + p m + m parameters for width p and m channels, 2 p more with "layer".

    Args:
        channels: m, numbers out for each coordinate.
        hidden_size: p.
        num_layers: K, 0 allowed.
        activation: name of the activation.
        norm_type: "simple_rms" or "layer".
        norm_eps: epsilon of the norm.
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
        if norm_type not in ("simple_rms", "layer"):
            raise ValueError(f"rpe_norm_type is {norm_type!r}; it must be 'simple_rms' or 'layer'.")
        self.in_proj = Float32Linear(1, hidden_size)
        self.layers = nn.ModuleList(Float32Linear(hidden_size, hidden_size) for _ in range(num_layers))
        self.out_proj = Float32Linear(hidden_size, channels)
        self.hidden_norm = SimpleRMSNorm(norm_eps) if norm_type == "simple_rms" else nn.Identity()
        self.out_norm = SimpleRMSNorm(norm_eps) if norm_type == "simple_rms" else SeqMixLayerNorm(hidden_size)
        self.activation = ACT2FN[activation]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the encoder computes."""
        return torch.promote_types(self.out_proj.weight.dtype, torch.float32)

    def forward(self, coordinates: Tensor) -> Tensor:
        """Map (points,) coordinates to (channels, points), contiguous in the points."""
        with torch.autocast(coordinates.device.type, enabled=False):
            z = self.in_proj(coordinates.to(self.dtype).unsqueeze(-1))  # (points, hidden_size)
            for layer in self.layers:
                z = layer(self.activation(self.hidden_norm(z)))
            return transposed(self.out_proj(self.activation(self.out_norm(z))))
