"""The folder a training run writes: what may be there before, and what a full disk leaves."""

import errno
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from .checkpoints import last_complete_checkpoint
from .folder_lock import FolderInUseError, claim_folder, holds_folder
from .run_files import delete_replaced, restore_replaced, set_aside

__all__ = ["explain_write_error", "nothing_left", "prepare_run_folder"]

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


def prepare_run_folder(
    folder: str | Path, *, resume: bool = False, overwrite: bool = False, read: Iterable[str | Path | None] = ()
) -> Path:
    """Make the folder, check that it can be written to, and refuse one that holds something or is in use.

    Until its command ends, no other process may write there, see `claim_folder`. `nothing_left` deletes an earlier run
    that was set aside, or puts it back; after a kill the next call does.

    Args:
        folder: where the run will write.
        resume: the folder may hold an interrupted run.
        overwrite: the folder may hold anything; files of the same name will be replaced. Unless the run is resumed,
            the checkpoints and files of an earlier one are set aside: they would be taken for this one's.
        read: files and folders that the run begins from; other names, such as those of the Hub, do not matter.

    Raises:
        ValueError: if the folder holds files and neither `resume` nor `overwrite` is given, if it is a file, if it
            cannot be written to, if another process writes there, or if `overwrite` would delete parts of what is to
            be read.
    """
    folder = Path(folder)
    for path in [Path(each) for each in read if each] if overwrite and not resume else []:
        if path.exists() and path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"the run begins from {path}, which --overwrite-output-dir would clear: give another --output-dir."
            )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the output folder {folder} is a file. Give a folder, or a name that does not exist yet.")
    if folder.is_dir() and any(folder.iterdir()) and not resume and not overwrite:
        raise ValueError(
            f"the output folder {folder} is not empty. Continue its run with --resume, write over it with"
            " --overwrite-output-dir, or give another --output-dir."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(4096))
        restore_replaced(folder)
        if overwrite and not resume:
            set_aside(folder)
    except OSError as error:
        raise ValueError(
            f"the output folder {folder} cannot be written to: {error.strerror}. Make room or give another "
            "--output-dir."
        ) from error
    return folder


@contextmanager
def nothing_left(folder: str | Path, *, mine: bool = True) -> Iterator[None]:
    """Leave a folder that is new or empty as it was where what is prepared in it is refused by a `ValueError`.

    Else the command, given again without its fault, would find a folder that is not empty. An earlier run that
    `prepare_run_folder` has set aside is put back after an error of any kind, and deleted without one.

    Args:
        folder: where the run will write.
        mine: whether this process is the one that clears up.
    """
    folder = Path(folder)
    existed = folder.exists()
    begins = False
    free = mine and not (existed and (not folder.is_dir() or any(folder.iterdir())))
    try:
        yield
        begins = True
    except FolderInUseError:  # the other process, too, may have found the folder empty
        raise
    except ValueError:
        if free and existed:  # the folder itself stays, with its permissions, or as a link
            for path in folder.iterdir():
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        elif free:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if mine and holds_folder(folder):
            if begins:
                delete_replaced(folder)
            else:
                restore_replaced(folder)


def explain_write_error(error: BaseException, folder: str | Path | None = None) -> str | None:
    """Return what to tell the user whose run ended with `error`, if the disk is full or read-only; else None.

    Args:
        error: of the system or of a library.
        folder: of a training run, which can be resumed.
    """
    text = str(error)
    is_disk = isinstance(error, OSError) and error.errno in DISK_ERRORS
    is_disk = is_disk or (isinstance(error, SafetensorError) and "I/O error" in text)
    # torch.save, whose archive does not say why it could not be written.
    is_disk = is_disk or (isinstance(error, RuntimeError) and "inline_container" in text and "Reader" not in text)
    if not is_disk:
        return None
    said = f"a file could not be written; is the disk full or read-only? The system says: {text}"
    if folder is None:
        return said
    checkpoint = last_complete_checkpoint(folder)
    left = (
        f"The last complete checkpoint is {checkpoint}; continue from it with --resume."
        if checkpoint
        else "No checkpoint had been written."
    )
    return f"{said}. {left}"
