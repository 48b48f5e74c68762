"""One process at a time writes to an output folder."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FolderInUseError", "claim_folder", "folders_released", "holds_folder"]

_held: dict[tuple[int, int], int] = {}
"""Device and inode of each folder that this process has claimed -> the open file that holds the lock."""


class FolderInUseError(ValueError):
    """Another process writes to an output folder."""


def claim_folder(folder: Path) -> None:
    """Keep other processes from claiming a folder until `folders_released` ends, or this process.

    The lock is one of the system on the folder itself, so that nothing is left in the folder, nor after a process that
    was killed. Where there are no such locks, on Windows and on some network file systems, nothing is claimed.

    Args:
        folder: that exists. A process may claim a folder again.

    Raises:
        FolderInUseError: another process has claimed the folder.
    """
    if sys.platform == "win32":
        return
    import fcntl

    opened = os.open(folder, os.O_RDONLY)
    status = os.fstat(opened)
    key = status.st_dev, status.st_ino
    try:
        if key not in _held:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _held[key] = opened
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            raise FolderInUseError(
                f"another process is writing to the output folder {folder}. Wait for its end, stop it, or "
                "give another --output-dir."
            ) from error
    finally:
        if _held.get(key) != opened:
            os.close(opened)


def holds_folder(folder: Path) -> bool:
    """Say whether this process has claimed a folder; where there are no locks, whether the folder is there."""
    if not folder.is_dir():
        return False
    status = folder.stat()
    return sys.platform == "win32" or (status.st_dev, status.st_ino) in _held


@contextmanager
def folders_released() -> Iterator[None]:
    """Give back, at the end, the folders that this process has claimed in the meantime."""
    before = set(_held)
    try:
        yield
    finally:
        for key in set(_held) - before:
            os.close(_held.pop(key))


def _forget() -> None:
    """Close what a forked process has inherited, which would keep the locks when its parent has ended."""
    for opened in _held.values():
        os.close(opened)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
