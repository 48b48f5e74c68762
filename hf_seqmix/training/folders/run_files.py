"""The files of a run by name, and how an earlier run of the folder waits until another is sure to begin.

A step of that ends in the renaming of one folder, so that a process may be killed at any point: the next command finds
the earlier run whole or deleted.
"""

import shutil
from pathlib import Path

from .checkpoints import saved_checkpoints

__all__ = [
    "ARGUMENTS_FILE",
    "DIVERGENCE_FILE",
    "PRECISION_FILE",
    "delete_replaced",
    "restore_replaced",
    "set_aside",
]

PRECISION_FILE, DIVERGENCE_FILE, ARGUMENTS_FILE = "precision.json", "divergence.json", "arguments.json"
RECORDS = (PRECISION_FILE, DIVERGENCE_FILE, ARGUMENTS_FILE)
"""What a run was told and settled on its way, for its resumed runs."""

RUN_FILES = (
    *RECORDS,
    *("results.json", "loss.png", "predictions_*.jsonl"),
    *("tokenizer*.json", "special_tokens_map.json", "chat_template.jinja"),
)
"""What a run leaves beside its checkpoints, as patterns, and what would be taken for the run that replaces it.

Weights stay until that run writes its own: one that diverges leaves the good model of an earlier run.
"""

WAITING, MOVING, DELETED = ".replaced-run", ".replaced-run-moving", ".replaced-run-deleted"
"""The earlier run, whole; files of it on their way from or to their places; what is left of it to delete."""


def set_aside(folder: Path) -> None:
    """Move the checkpoints and `RUN_FILES` of a folder into one within it, to wait there."""
    parts = _parts(folder)
    if not parts:
        return
    (folder / MOVING).mkdir()
    for path in parts:
        path.rename(folder / MOVING / path.name)
    (folder / MOVING).rename(folder / WAITING)


def restore_replaced(folder: Path) -> None:
    """Undo `set_aside`, and delete what the run that did not begin has written."""
    if (folder / WAITING).is_dir():
        for path in _parts(folder):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (folder / WAITING).rename(folder / MOVING)
    if (folder / MOVING).is_dir():
        for path in (folder / MOVING).iterdir():
            path.rename(folder / path.name)
        (folder / MOVING).rmdir()
    if (folder / DELETED).is_dir():
        shutil.rmtree(folder / DELETED)


def delete_replaced(folder: Path) -> None:
    """Delete the run that waits."""
    if (folder / WAITING).is_dir():
        (folder / WAITING).rename(folder / DELETED)
        shutil.rmtree(folder / DELETED)


def _parts(folder: Path) -> list[Path]:
    files = (path for name in RUN_FILES for path in folder.glob(name))
    return [*saved_checkpoints(folder), *(path for path in files if not path.is_dir())]
