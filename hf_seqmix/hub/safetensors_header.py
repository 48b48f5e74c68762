"""What a safetensors file says of itself, read and checked without reading a tensor."""

import json
import math
from pathlib import Path
from typing import Any

__all__ = ["read_header"]

_MAX_HEADER = 100 * 10**6  # the format's own limit
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def read_header(path: str | Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the type and the shape of each tensor of a safetensors file.

    Raises:
        ValueError: for a file that is cut short, or whose header is no header, or does not fit the rest of the file.
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_MAX_HEADER, size - 8):
            raise ValueError(
                f"{path.name} is cut short or no safetensors file: it has {size:,} bytes, its header {length:,}."
            )
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            tensors = {name: _entry(entry) for name, entry in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path.name} has a header that is no safetensors header: {error}.") from error
    end = 0
    for name, (dtype, shape, begin, stop) in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if begin != end or stop - begin != math.prod(shape) * _BYTES.get(dtype, 0):
            raise ValueError(
                f"{path.name}: the tensor {name!r} of shape {list(shape)} does not fit its {stop - begin} bytes."
            )
        end = stop
    if 8 + length + end != size:
        raise ValueError(
            f"{path.name} is cut short or too long: it has {size:,} bytes, by its header {8 + length + end:,}."
        )
    return {name: (dtype, shape) for name, (dtype, shape, _, _) in tensors.items()}


def _entry(entry: dict[str, Any]) -> tuple[str, tuple[int, ...], int, int]:
    dtype, shape, (begin, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in (*shape, begin, stop)):
        raise ValueError(f"{entry!r} is no description of a tensor")
    return dtype, shape, begin, stop
