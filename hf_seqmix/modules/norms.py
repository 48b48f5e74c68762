"""Normalization layers, all called with the mask of real tokens, which only batch statistics need."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..ops.common.dispatch import cast
from ..ops.common.rms_norm import rms_normalize
from .evaluation import in_evaluation

__all__ = [
    "NORM_TYPES",
    "MaskedBatchNorm",
    "NoNorm",
    "SeqMixLayerNorm",
    "SimpleRMSNorm",
    "StaticNorm",
    "build_norm",
    "calibrate_static_norms",
]


class SimpleRMSNorm(nn.Module):
    """Root-mean-square normalization without parameters: y = x / sqrt(mean(x^2) + eps).

    Source: Qin et al. 2023 (arXiv 2305.04749), appendix; the published code divides by rms + 1e-8 instead, whose slope
    at a zero vector is 1e8. Computed in float32 for half-precision input.

    Args:
        eps: added to the mean square.
    """

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalize (..., channels) over the channels; `mask` is not needed."""
        return rms_normalize(hidden_states, self.eps)

    def extra_repr(self) -> str:
        """Return what the printed module shows."""
        return f"eps={self.eps}"


class SeqMixLayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` with the signature that the other norms have, in the dtype of its input."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalize (..., channels) over the channels; `mask` is not needed."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        dtype = hidden_states.dtype
        # What `nn.functional.layer_norm` calls, too.
        return torch.layer_norm(hidden_states, self.normalized_shape, cast(weight, dtype), cast(bias, dtype), self.eps)


class MaskedBatchNorm(nn.Module):
    """Batch normalization of channels with statistics over the real tokens of the batch.

    y = weight (x - mean) / sqrt(var + eps) + bias, mean and variance over batch and positions in training, running
    averages in evaluation. So only in evaluation is an output independent of the batch. Like torch's own batch norm,
    under gradient checkpointing it moves the running averages twice a step.

    Args:
        num_features: channels.
        eps: added to the variance.
        momentum: weight of the newest batch in the running averages.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.running_mean: Tensor
        self.running_var: Tensor

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalize each channel.

        Args:
            hidden_states: (batch, length, channels).
            mask: (batch, length), True at real tokens; None when all are.

        Raises:
            ValueError: for hidden states of another shape.
        """
        channels = len(self.weight)
        if hidden_states.ndim != 3 or hidden_states.shape[-1] != channels:
            raise ValueError(
                f"hidden_states have shape {tuple(hidden_states.shape)}; they must be (batch, length, {channels})."
            )
        x = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        mean, var = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        if self.training:
            pads = None if mask is None else ~mask.bool().unsqueeze(-1)
            present = (torch.ones_like(x[..., :1]) if mask is None else mask.to(x.dtype)).sum()
            count = present.clamp(min=1)
            # Filled, not multiplied: the value at a pad may be NaN.
            mean = (x if pads is None else x.masked_fill(pads, 0)).sum(dim=(0, 1)) / count
            squares = (x - mean if pads is None else (x - mean).masked_fill(pads, 0)).square()
            var = squares.sum(dim=(0, 1)) / count
            with torch.no_grad():
                unbiased = var * count / (count - 1).clamp(min=1)
                # A batch without real tokens says nothing of the averages.
                weight = (self.momentum * (present > 0)).to(self.running_mean.dtype)
                # No lerp_, which torch.func.vmap does one sample after another.
                self.running_mean += weight * (mean.detach().to(self.running_mean.dtype) - self.running_mean)
                self.running_var += weight * (unbiased.detach().to(self.running_var.dtype) - self.running_var)
        y = (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
        return y.to(hidden_states.dtype)

    def extra_repr(self) -> str:
        """Return what the printed module shows."""
        return f"{len(self.weight)}, eps={self.eps}, momentum={self.momentum}"


class NoNorm(nn.Module):
    """The identity, with the signature that norms have."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return `hidden_states` as they are."""
        return hidden_states


class StaticNorm(nn.Module):
    """A learned scale of each channel, y = weight * x, that no statistics enter.

    So a network of products stays exactly a polynomial of its input, in training, too, and exactly causal. The scales
    are set from one batch by `calibrate_static_norms`, so that each channel begins with a mean square of 1 (after
    Mishkin and Matas 2015, "All you need is a good init", arXiv 1511.06422, a channel instead of a layer at a time).

    Args:
        num_features: channels.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_features))
        self.calibrating = False

    def init_weights(self, config: Any = None) -> None:
        """Start from the scale 1, before calibration."""
        init.ones_(self.weight)

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scale each channel of (batch, length, channels); `mask` (batch, length) is True at real tokens."""
        if self.calibrating:
            self._calibrate(hidden_states, mask)
            self.calibrating = False  # what follows has seen this scale
        return hidden_states * self.weight.to(hidden_states.dtype)

    @torch.no_grad()
    def _calibrate(self, hidden_states: Tensor, mask: Tensor | None) -> None:
        real = hidden_states.flatten(0, -2) if mask is None else hidden_states[mask]
        rms = real.to(torch.promote_types(real.dtype, torch.float32)).square().mean(dim=0).sqrt()
        # A channel that is zero throughout has no scale to correct.
        self.weight.copy_(torch.where(rms > 0, 1 / rms, 1.0))

    def extra_repr(self) -> str:
        """Return what the printed module shows."""
        return f"{len(self.weight)}"


@torch.no_grad()
def calibrate_static_norms(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Set the scales of every `StaticNorm` of a model so that its output has a mean square of 1 on one batch.

    One forward pass in evaluation mode is enough: each norm is set before what follows it sees its output. A norm that
    is applied several times (`tie_iterations`) is set at its first use, and has other mean squares at later ones. Call
    it once, before training.

    Args:
        model: holds at least one `StaticNorm`.
        *args: a batch, as the model takes it.
        **kwargs: the same, by name.

    Raises:
        ValueError: for a model without such norms.
    """
    norms = [module for module in model.modules() if isinstance(module, StaticNorm)]
    if not norms:
        raise ValueError("the model has no static norms to calibrate: set norm_type (or normalization) to 'static'.")
    with _calibrating(norms), in_evaluation(model):
        model(*args, **kwargs)


@contextmanager
def _calibrating(norms: list[StaticNorm]) -> Iterator[None]:
    for norm in norms:
        norm.calibrating = True
    try:
        yield
    finally:
        for norm in norms:
            norm.calibrating = False


NORM_TYPES = ("simple_rms", "layer", "batch", "static", "none")


def build_norm(norm_type: str, channels: int, eps: float) -> nn.Module:
    """Build the norm that a configuration names.

    Args:
        norm_type: one of `NORM_TYPES`.
        channels: of the input.
        eps: of norms that divide.

    Raises:
        ValueError: for an unknown name.
    """
    if norm_type == "simple_rms":
        return SimpleRMSNorm(eps)
    if norm_type == "layer":
        return SeqMixLayerNorm(channels, eps=eps)
    if norm_type == "batch":
        return MaskedBatchNorm(channels, eps=eps)
    if norm_type == "static":
        return StaticNorm(channels)
    if norm_type == "none":
        return NoNorm()
    raise ValueError(f"norm_type is {norm_type!r}; it must be one of {', '.join(map(repr, NORM_TYPES))}.")
