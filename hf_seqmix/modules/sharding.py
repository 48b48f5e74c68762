"""What a mixer does where tensor parallelism leaves each device a part of its channels.

The library splits linear layers by a plan (`config.base_model_tp_plan`): the outputs of a "colwise" layer are then
those of this device alone, a block of whole heads or single channels. What lies between it and the "rowwise" layer
that ends the mixer must be cut to the same block. Without tensor parallelism all of this returns its input.
"""

from typing import TypeGuard

import torch
from torch import Tensor, nn

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

__all__ = ["is_split", "number_of_devices", "own_part", "own_values", "split_heads", "weight_of", "whole_values"]


def weight_of(layer: nn.Module) -> Tensor:
    """Return the weight of a linear layer, or the first parameter of a module that stands for one, as adapters do.

    Raises:
        TypeError: for a module with neither.
    """
    weight = getattr(layer, "weight", None)
    if callable(weight):  # of a layer that torch has quantized
        weight = weight()
    if not isinstance(weight, Tensor):
        weight = next(layer.parameters(), None)
    if weight is None:
        raise TypeError(
            f"{type(layer).__name__} stands for a linear layer, but has neither a weight nor parameters, which say "
            "dtype and device: give it a property weight."
        )
    return weight


def is_split(weight: Tensor) -> "TypeGuard[DTensor]":
    """Return whether a weight (channels, ...) is split along its channels, so that this device has some of them."""
    # A weight that `fully_shard` keeps in pieces is whole while its layer is called, and no such tensor.
    return torch.distributed.is_available() and isinstance(weight, DTensor) and weight.placements == (Shard(0),)


def number_of_devices(weight: Tensor) -> int:
    """Return among how many devices a weight is split; 1 if it is not."""
    return weight.device_mesh.size() if is_split(weight) else 1


def own_values(weight: Tensor) -> Tensor:
    """Return the channels of a weight that this device has, (its channels, ...)."""
    return weight.to_local() if is_split(weight) else weight


def whole_values(parameter: Tensor) -> Tensor:
    """Return all of a parameter for use outside its layer's forward pass, where `fully_shard` keeps it in pieces.

    Its gradient is the mean of those of all devices, as `fully_shard` makes it of others.
    """
    if not torch.distributed.is_available() or not isinstance(parameter, DTensor):
        return parameter
    mesh = parameter.device_mesh
    whole = parameter.full_tensor(grad_placements=[Partial()] * mesh.ndim)
    if whole.requires_grad:
        whole.register_hook(lambda gradient: gradient / mesh.size())
    return whole


def own_part(x: Tensor, weight: Tensor, dim: int) -> Tensor:
    """Cut what all devices have to the channels that this one has of a weight.

    Its gradient is put together from those of all devices.

    Args:
        x: the same on all devices, with channels (or blocks of them) along `dim`.
        weight: (channels, ...), split along its channels, or not.
        dim: of the channels in `x`.
    """
    if not is_split(weight):
        return x
    whole = DTensor.from_local(x, weight.device_mesh, [Replicate()], run_check=False)
    return whole.redistribute(placements=[Shard(dim % x.ndim)]).to_local()


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Unflatten (..., heads x head_dim) to (..., heads, head_dim), for as many heads as this device has.

    Raises:
        ValueError: where the channels of this device are not those of whole heads.
    """
    if x.shape[-1] % head_dim:
        raise ValueError(
            f"this device has {x.shape[-1]} channels, which are no whole heads of {head_dim}: choose a "
            "tensor-parallel size that divides the number of heads."
        )
    return x.unflatten(-1, (-1, head_dim))
