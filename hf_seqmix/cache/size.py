"""How much memory a cache holds."""

from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

__all__ = ["cache_bytes"]


def cache_bytes(cache: Any) -> int:
    """Return the bytes of all memory that tensors of a cache hold, each piece once; modules count as none of it.

    Args:
        cache: any object that holds tensors, such as `past_key_values` or one of its layers.
    """
    held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _reachable(cache)}
    return sum(held.values())


def _reachable(root: Any) -> Iterator[Tensor]:
    """Yield the tensors that an object holds, in attributes, sequences and mappings."""
    waiting, seen = [root], set()
    while waiting:
        found = waiting.pop()
        if isinstance(found, Tensor):
            yield found
        elif isinstance(found, (nn.Module, type, FunctionType, MethodType)) or id(found) in seen:
            continue
        elif isinstance(found, dict):
            waiting.extend(found.values())
        elif isinstance(found, (list, tuple, set)):
            waiting.extend(found)
        elif hasattr(found, "__dict__"):
            waiting.extend(vars(found).values())
        seen.add(id(found))
