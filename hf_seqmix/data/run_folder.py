"""The folder a training run writes: what may be there before, what survives a crash, and JSON in it."""

import errno
import json
import math
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

__all__ = ["explain_write_error", "last_complete_checkpoint", "prepare_run_folder", "write_json"]

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


def prepare_run_folder(folder: str | Path, *, resume: bool = False, overwrite: bool = False) -> Path:
    """
    Makes the folder, checks that it can be written to, and refuses one that holds something.

    Args:
        folder: where the run will write.
        resume: the folder may hold an interrupted run.
        overwrite: the folder may hold anything; nothing is deleted, files of the same name are replaced.

    Raises:
        ValueError: if the folder holds files and neither `resume` nor `overwrite` is given, if it is a file, or if it
            cannot be written to.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"The output folder {folder} is a file. Give a folder, or a name that does not exist yet.")
    if folder.is_dir() and any(folder.iterdir()) and not resume and not overwrite:
        raise ValueError(
            f"The output folder {folder} is not empty. Continue its run with --resume, write over it with"
            " --overwrite-output-dir, or give another --output-dir."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(4096))
    except OSError as error:
        raise ValueError(
            f"The output folder {folder} cannot be written to: {error.strerror}. Make room or give another --output-dir."
        ) from error
    return folder


def last_complete_checkpoint(folder: str | Path) -> Path | None:
    """
    The newest `checkpoint-STEP` of a run that was written to its end, or None.

    A kill or a full disk may leave a newest one without its last file or with files cut short; those are passed over.
    """
    found = []
    for path in Path(folder).glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d+)", path.name)
        if match and path.is_dir():
            found.append((int(match[1]), path))
    return next((path for _, path in sorted(found, reverse=True) if _is_complete(path)), None)


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))  # the Trainer writes it last
        for weights in checkpoint.glob("*.safetensors"):
            with safe_open(weights, framework="pt"):  # refuses a file shorter than its header says
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    # torch writes zip archives, whose directory is their end.
    return all(zipfile.is_zipfile(path) for path in (*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")))


def explain_write_error(error: BaseException, folder: str | Path) -> str | None:
    """What to tell the user whose run in `folder` ended with `error`, if that is a full or read-only disk; else None."""
    text = str(error)
    is_disk = isinstance(error, OSError) and error.errno in DISK_ERRORS
    is_disk = is_disk or (isinstance(error, SafetensorError) and "I/O error" in text)
    # torch.save, whose archive does not say why it could not be written.
    is_disk = is_disk or (isinstance(error, RuntimeError) and "inline_container" in text and "Reader" not in text)
    if not is_disk:
        return None
    checkpoint = last_complete_checkpoint(folder)
    left = (
        f"The last complete checkpoint is {checkpoint}; continue from it with --resume."
        if checkpoint
        else "No checkpoint had been written."
    )
    return f"A file could not be written; is the disk full or read-only? The system says: {text}. {left}"


def write_json(path: str | Path, payload: Any) -> None:
    """Writes JSON to a temporary file and renames it, so that `path` is whole or untouched; NaN and infinity become null."""
    path = Path(path)
    text = json.dumps(_finite(payload), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
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
