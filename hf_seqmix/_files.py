"""Write files that are either whole or absent: first beside their place, then renamed."""

import json
import math
import os
import platform
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["whole_files", "write_json", "write_text"]


def write_json(path: str | Path, payload: Any) -> None:
    """Write JSON as `write_text` does; NaN and infinity become null."""
    write_text(path, json.dumps(_finite(payload), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a temporary file and rename it, so that `path` is whole or untouched."""
    path = Path(path)
    # Other threads write it, too, and machines that share a disk, whose processes may have the same number.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # or a power cut leaves the name without the content
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def whole_files(folder: str | Path, *, last: str) -> Iterator[Path]:
    """Yield a temporary folder to write into, and move its files to `folder` once all of them are written.

    A kill before that leaves `folder` as it was, but for a hidden subfolder. The next call on this machine clears that
    subfolder.

    Args:
        folder: where the files belong.
        last: pattern of the files that move last, because a reader takes their presence for a complete write. Files in
            `folder` that match the pattern and were not written again are deleted: leftover shards of a larger model
            would be read instead of the new files.
    """
    folder = Path(folder)
    temporary = folder / f".unfinished-{platform.node()}"  # machines that share a disk each write their own
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        written = sorted(temporary.iterdir(), key=lambda path: (path.match(last), path.name))
        for path in written:
            target = folder / path.name
            if target.is_dir():
                shutil.rmtree(target)
            path.replace(target)
        names = {path.name for path in written}
        for path in folder.glob(last):
            if names and path.name not in names and path.is_file():
                path.unlink()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
