"""What a safetensors file says of itself, read and checked without reading a tensor."""

import json
import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .repository_files import require_file

__all__ = ["Header", "read_header"]

Header = dict[str, tuple[str, tuple[int, ...]]]
"""Name of a tensor -> its type, as the format names it, and its shape."""

_MAX_HEADER = 32 * 2**20  # the format allows 100 MB
_MOST_BRACKETS = 2**20  # three a tensor
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def read_header(path: str | Path) -> Header:
    """Return the type and the shape of each tensor of a safetensors file.

    Raises:
        ValueError: for a file that cannot be read, is cut short, or whose header is no header, or does not fit the rest of
            the file.
    """
    path = Path(path)
    size = require_file(path)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise ValueError(
                    f"{path.name} is cut short or no safetensors file: it has {size:,} bytes, its header {length:,}."
                )
            if length > _MAX_HEADER:
                raise ValueError(f"{path.name} has a header of {length:,} bytes; at most {_MAX_HEADER:,} are read.")
            text = file.read(length)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}.") from error
    try:
        tensors = _tensors(text)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
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
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{path.name} is refused by safetensors: {error}.") from error
    return {name: (dtype, shape) for name, (dtype, shape, _, _) in tensors.items()}


def _tensors(text: bytes) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    if not text.startswith(b"{"):
        raise ValueError("it is no object")
    if text.count(b"[") + text.count(b"{") > _MOST_BRACKETS:
        raise ValueError(f"it has more than {_MOST_BRACKETS:,} lists and objects")
    # Decoded here: the json module would also take UTF-16.
    header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_doubles)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("__metadata__ must be an object of strings")
    return {name: _entry(entry) for name, entry in header.items()}


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name is there twice")
    return content


def _entry(entry: dict[str, Any]) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{str(entry)[:80]} is no description of a tensor")
    dtype, shape, (begin, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = [*shape, begin, stop] if isinstance(shape, list) else []
    if not isinstance(dtype, str) or not numbers or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise ValueError(f"{str(entry)[:80]} is no description of a tensor")
    return dtype, tuple(shape), begin, stop
