"""Sources of Python's standard library as a text corpus, which every machine has without a download."""

import hashlib
import os
import sysconfig
from pathlib import Path

from datasets import Dataset, DatasetDict

__all__ = ["python_stdlib", "split_of"]

# Installed packages, test suites and their data, compiled extensions, and one generated file (pydoc's topics, 0.7 MB).
EXCLUDED_FOLDERS = frozenset(
    ["site-packages", "dist-packages", "test", "tests", "idle_test", "lib-dynload", "pydoc_data", "__pycache__"]
)
TABLES = "encodings/"
"""Folder of some hundred tables of code pages: most lines of a held-out one also stand in training files."""

# These hold the build settings and paths of one machine.
EXCLUDED_PREFIXES = ("config-", "_sysconfigdata")


def python_stdlib(*, held_out_tables: bool = True) -> DatasetDict:
    """Load the sources of the running Python's standard library, one `.py` file a row, in order of path.

    The rows have one column, `text`. Tests, installed packages and generated files are left out. The split of a file
    depends on its path alone (see [`split_of`]), so the splits are the same on every machine with the same Python
    version.

    Args:
        held_out_tables: whether validation and test keep the tables of code pages in `encodings/`. These are 29 % of
            the test bytes of Python 3.11 and near copies of training files, so that scores with them flatter models
            that copy. The training split has its tables in either case.

    Raises:
        ValueError: this Python was installed without the sources of its standard library.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for path in _sources(root):
        text, split = _read_utf8(root / path), split_of(path)
        if split != "train" and path.startswith(TABLES) and not held_out_tables:
            continue
        if text is not None and text.strip():
            splits[split].append(text)
    empty = [name for name, texts in splits.items() if not texts]
    if empty:
        raise ValueError(
            f"the corpus 'embedded:python-stdlib' has no files for {', '.join(empty)}: there are too few .py sources "
            f"under {root}. Use a Python that was installed with its standard library unpacked, or name text files "
            "instead."
        )
    return DatasetDict({name: Dataset.from_dict({"text": texts}) for name, texts in splits.items()})


def split_of(path: str) -> str:
    """Return the split of a file, about 90 % "train", 5 % "validation" and 5 % "test", from its relative POSIX path.

    The first 64 bits of the SHA-256 of the path, as a fraction of 2^64, are below 0.05 for test, below 0.1 for
    validation.
    """
    fraction = int.from_bytes(hashlib.sha256(path.encode("utf-8")).digest()[:8], "big") / 2**64
    if fraction < 0.05:
        return "test"
    return "validation" if fraction < 0.1 else "train"


def _sources(root: Path) -> list[str]:
    """Return the relative POSIX paths of all sources, in their order; what is left out is not walked through."""
    found = []
    for folder, folders, files in os.walk(root):
        inside = (name for name in folders if name not in EXCLUDED_FOLDERS)
        folders[:] = [name for name in inside if not name.startswith(EXCLUDED_PREFIXES)]
        names = (name for name in files if name.endswith(".py") and not name.startswith(EXCLUDED_PREFIXES))
        found += [(Path(folder) / name).relative_to(root).as_posix() for name in names]
    return sorted(found)


def _read_utf8(path: Path) -> str | None:
    """Return the text of a file, or None for the few sources that declare another encoding."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None
