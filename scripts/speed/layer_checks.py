"""What a layer must show before it is timed: its output and input gradient are right."""

from collections.abc import Sequence

import torch
from layer_candidates import Pair, copy_weights
from torch import Tensor, nn

from hf_seqmix.training.timing import relative_error

__all__ = ["check"]


def check(pair: Pair, layers: Sequence[nn.Module], x: Tensor, upstream: Tensor, dtype: torch.dtype) -> float:
    """Return the largest relative error of output and input gradient: against float64, and of a TNN against the original.

    Args:
        pair: what is checked.
        layers: its two layers, in float32.
        x, upstream: (batch, length, hidden_size), in float32.
        dtype: of autocast, in which the layer is checked besides.

    Raises:
        RuntimeError: if it is not small.
    """

    def values(module: nn.Module, x: Tensor, half: bool = False) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        with torch.autocast(x.device.type, dtype=dtype, enabled=half):
            y = module(x)
        return y.detach(), torch.autograd.grad(y, x, upstream.to(y.dtype))[0]

    ours, rival = layers
    single = values(ours, x)
    half = values(ours, x, half=True) if dtype != torch.float32 else None
    double = values(ours.double(), x.double())
    ours.float()
    # Rounding in float32; the norms of TNN and the original differ by their epsilon.
    errors = {"float64": (max(map(relative_error, single, double)), 1e-3)}
    if half is not None:
        errors["float64, under autocast,"] = (max(map(relative_error, half, double)), 5e-2)
    if pair.layer.family == "tnn" and pair.rival == pair.layer._replace(family="original"):
        copy_weights(rival, ours)
        errors["the original"] = (max(map(relative_error, values(ours, x), values(rival, x))), 1e-3)
    for name, (error, bound) in errors.items():
        if not error < bound:
            raise RuntimeError(
                f"{pair.layer.direction} {pair.layer.name} differs from {name} at length {x.shape[1]}: relative error "
                f"{error:.2g} (bound {bound})."
            )
    return max(error for error, _ in errors.values())
