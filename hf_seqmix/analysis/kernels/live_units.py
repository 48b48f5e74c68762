"""Which units of a kernel's network still depend on the lag: a network of ReLUs can lose all in training."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...models.toeplitz.encoder import RelativePositionEncoder
from .learned import learned_kernels

__all__ = ["LiveUnits", "dead_encoders", "live_units"]

_STILL = 1e-6
"""Standard deviation over lags, relative to the largest activation, up to which a unit does not move."""


@dataclass(frozen=True)
class LiveUnits:
    """The units of the last layer of one network that makes kernels.

    Attributes:
        name: path of the network in the model.
        live: how many units differ from lag to lag, or from frequency to frequency.
        total: how many units there are.
    """

    name: str
    live: int
    total: int


@torch.no_grad()
def live_units(model: nn.Module, length: int) -> list[LiveUnits]:
    """Count the units of each kernel network whose activation depends on the lag.

    live = |{u : std over t of a_u(t) > 1e-6 max |a|}|, with a_u(t) what the last layer reads of unit u at lag t (of
    FD-TNN at frequency t). Where none is live, the network puts out its bias: kernels of TNN are the decay alone, and
    of ReLUs no gradient brings the lag back. The count is our own; the papers have none.

    Args:
        model: any model or module with a `ToeplitzOperator` or `SKIOperator` in it.
        length: number of lags from 0 on, as for `learned_kernels`.

    Returns:
        One entry a `RelativePositionEncoder` that was asked for several lags, in the order of the model.

    Raises:
        ValueError: if there is no Toeplitz layer, or `length` is below 2, so that there is one lag.
    """
    if length < 2:
        raise ValueError(f"length is {length}; give at least 2, since a unit is compared between lags.")
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, RelativePositionEncoder)]
    read: list[list[Tensor]] = [[] for _ in found]
    hooks = [
        # The activations are what the last layer reads: (points, hidden_size).
        _last_layer(encoder).register_forward_pre_hook(lambda _, given, kept=kept: kept.append(given[0]))
        for (_, encoder), kept in zip(found, read, strict=True)
    ]
    try:
        learned_kernels(model, length)
    finally:
        for hook in hooks:
            hook.remove()
    counted = []
    for (name, _), kept in zip(found, read, strict=True):
        activations = torch.cat(kept).double() if kept else torch.empty(0)  # (points, hidden_size)
        if len(activations) > 1:  # an axis of one place has one lag
            moves = activations.std(dim=0) > _STILL * activations.abs().max()
            counted.append(LiveUnits(name, int(moves.sum()), activations.shape[1]))
    return counted


def _last_layer(encoder: RelativePositionEncoder) -> nn.Module:
    return encoder.get_submodule("out_proj")  # an adapter may stand for it


def dead_encoders(model: nn.Module, length: int) -> list[str]:
    """Return the networks of a model that no longer depend on the lag, by their paths; none without Toeplitz layers.

    Args:
        model: any module.
        length: as for `live_units`.
    """
    if length < 2 or not any(isinstance(module, RelativePositionEncoder) for module in model.modules()):
        return []
    return [units.name for units in live_units(model, length) if not units.live]
