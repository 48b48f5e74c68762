"""What a step of decoding costs, whatever the machine: operations, bytes moved, and memory of a cache."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from hf_seqmix.cache.size import cache_bytes

__all__ = ["CostCounter", "kernel_bytes"]

aten = torch.ops.aten

_ALLOCATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
_LOOK_UPS = {aten.embedding, aten.index, aten.index_select, aten.gather}
"""Read as many elements of their first argument as they write."""
_SCATTERS = {aten.index_copy_, aten.index_put_, aten.scatter_}
"""Write as many elements of their first argument as the last one has."""
_OVERWRITES = {aten.copy_, aten.fill_, aten.zero_}
_MOVES = _ALLOCATIONS | _LOOK_UPS | _SCATTERS | _OVERWRITES
_MOVES |= {aten.cat, aten.stack, aten.clone, aten._to_copy, aten.flip, aten.roll, aten.repeat, aten.constant_pad_nd}
_MOVES |= {aten.zeros, aten.zeros_like, aten.new_zeros, aten.ones, aten.full, aten.where, aten.masked_fill, aten.tril}
_MOVES |= {aten.arange, aten.scalar_tensor, aten.lift_fresh, aten._local_scalar_dense}
_COMPLEX = 6
"""Real operations for a complex element, those of a product."""


class CostCounter(TorchDispatchMode):
    """Count floating-point operations, and bytes that kernels read and write.

    Operations: products of matrices, convolutions and attention by the formulas of `torch.utils.flop_counter`; a
    transform of n complex values 5 n log2 n, and half of that for n real values; any other kernel of floating-point
    values one for each element of the largest tensor, six for a complex element, and none if the kernel only moves
    values.

    Bytes: the sizes of what a kernel reads and of what it writes. A view moves nothing. A look-up reads what it
    returns. Caches of the processor, and what a kernel keeps to itself, are not seen.

    Use it where gradients are off by `torch.no_grad`: under `torch.inference_mode` composite operations arrive whole.

    Attributes:
        flops: operations so far.
        bytes: bytes so far.
        others: names of kernels that are not of torch, counted as others are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.bytes = 0, 0
        self.others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet, mutable = func.overloadpacket, func._schema.is_mutable
        read, made = _tensors((args, kwargs)), _tensors(out)
        known = {tensor.untyped_storage().data_ptr() for tensor in read if tensor.numel()}
        if not mutable and any(tensor.untyped_storage().data_ptr() in known for tensor in made if tensor.numel()):
            return out  # a view
        if func.namespace != "aten":
            self.others.add(str(packet))
        self.bytes += _moved(packet, args, kwargs, read, made, mutable)
        self.flops += _operations(packet, args, kwargs, out, read + made)
        return out


def _moved(
    packet: Any, args: Any, kwargs: dict[str, Any], read: list[Tensor], made: list[Tensor], mutable: bool
) -> int:
    """Return the bytes that a kernel reads and writes."""
    if packet in _ALLOCATIONS:
        return 0
    if packet in _LOOK_UPS:
        return 2 * sum(map(_size, made)) + sum(map(_size, read[1:]))
    if packet in _SCATTERS:
        return sum(map(_size, read[1:])) + _size(read[-1])
    if packet in _OVERWRITES:
        return sum(map(_size, read))
    given = _tensors(kwargs.get("out"))
    if given or not mutable:
        return sum(map(_size, read)) + sum(map(_size, () if given else made))
    return sum(map(_size, read)) + sum(map(_size, made or read[:1]))


def _operations(packet: Any, args: Any, kwargs: dict[str, Any], out: Any, tensors: list[Tensor]) -> int:
    """Return the floating-point operations of a kernel."""
    if packet in flop_registry:
        return flop_registry[packet](*args, **kwargs, out_val=out)
    if packet in _FORMULAS:
        return _FORMULAS[packet](args, out)
    counted = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    if packet in _MOVES or not counted or not _tensors(out):
        return 0
    return max(tensor.numel() * (_COMPLEX if tensor.is_complex() else 1) for tensor in counted)


def _attention(args: Any, out: Any) -> int:
    queries, keys, values = args[:3]
    return 2 * queries[..., 0].numel() * keys.shape[-2] * (keys.shape[-1] + values.shape[-1])


def _transform(signals: Tensor, dims: Any, each: float) -> int:
    length = math.prod(signals.shape[dim] for dim in dims)
    return round(each * signals.numel() * math.log2(max(2, length)))


_FORMULAS: dict[Any, Callable[[Any, Any], int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten.mv: lambda args, out: 2 * args[0].numel(),
    aten.addmv: lambda args, out: 2 * args[1].numel(),
    aten.dot: lambda args, out: 2 * args[0].numel(),
    aten.addcmul: lambda args, out: 2 * out.numel(),
    aten.addcmul_: lambda args, out: 2 * out.numel(),
    aten._fft_r2c: lambda args, out: _transform(args[0], args[1], 2.5),
    aten._fft_c2r: lambda args, out: _transform(out, args[1], 2.5),
    aten._fft_c2c: lambda args, out: _transform(args[0], args[1], 5.0),
}


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor, elements that are repeated by a stride of 0 once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size if stride or not size else 1 for size, stride in sizes)


def kernel_bytes(cache: Any) -> int:
    """Return the bytes of kernels that are kept with a cache, which all rows of a batch share."""
    layers = [] if cache is None else cache.layers
    return cache_bytes([getattr(layer, name, None) for layer in layers for name in ("kernel", "taps")])
