"""What a safetensors file says of itself, read without reading a tensor."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from ..models.loading import LFS_POINTER
from .repository_files import require_file

__all__ = ["Header", "read_header"]

Header = dict[str, tuple[str, tuple[int, ...]]]
"""Name of a tensor -> its type, as the format names it, and its shape."""

_LFS_POINTER = int.from_bytes(LFS_POINTER[:8], "little")  # where a file has the length of its header
_MAX_HEADER = 32 * 2**20  # bytes; the format allows 100 MB


def read_header(path: str | Path) -> Header:
    """Return the type and the shape of each tensor of a safetensors file, as safetensors reads them.

    Raises:
        ValueError: for a file that cannot be read, is cut short, or whose header is no header, is longer than 32 MiB,
            or does not fit the rest of the file.
    """
    path = Path(path)
    size = require_file(path)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length == _LFS_POINTER:
            raise ValueError(
                f"{path.name} is a pointer of Git LFS in the place of the file: run `git lfs pull` in its clone."
            )
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise ValueError(
                f"{path.name} is cut short or no safetensors file: it has {size:,} bytes, its header {length:,}; "
                f"at most {_MAX_HEADER:,} are read."
            )
        with safe_open(path, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (no mapping)
            return {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    except SafetensorError as error:
        raise ValueError(f"{path.name} is cut short or too long, or no safetensors file: {error}.") from error
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror or error}.") from error
