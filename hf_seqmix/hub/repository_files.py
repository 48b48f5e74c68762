"""Reads the names and the JSON of a folder that nobody vouches for.

No link is followed out of the folder, no pipe waited for, and no file read without a limit.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

__all__ = ["PICTURES", "check_names", "is_present", "read_any_json", "read_json", "refuse_adapters", "require_file"]

_SMALL = 2**20
_LARGE = 64 * 2**20
_OTHER = 16 * 2**20
_LARGEST = {
    "config.json": _SMALL,
    "tokenizer_config.json": _SMALL,
    "generation_config.json": _SMALL,
    "preprocessor_config.json": _SMALL,
    "tokenizer.json": _LARGE,
    "model.safetensors.index.json": _LARGE,
}
_MOST_BRACKETS = 2**21  # of lists and objects, which need far more memory than characters
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".npy", ".npz", ".joblib")
_TEXTS = (".bib", ".cff", ".csv", ".jinja", ".jsonl", ".md", ".tsv", ".txt", ".yaml", ".yml")
PICTURES = (".gif", ".jpeg", ".jpg", ".pdf", ".png", ".svg", ".webp")
_SUFFIXES = frozenset([".json", ".py", ".safetensors", *_TEXTS, *PICTURES])
_NAMES = frozenset([".gitattributes", ".gitignore", "LICENSE", "LICENCE", "NOTICE", "COPYING", "tokenizer.model"])
# Where downloads and clones keep what they know; nothing is opened from there.
_BOOKKEEPING = (".cache", ".git")


def check_names(folder: Path) -> list[str]:
    """Check that a repository holds plain files of harmless kinds, and return their names.

    Links are accepted from the snapshots of the Hub's local cache to the contents beside them.

    Raises:
        ValueError: naming the first file that has no place in a repository, and why.
    """
    names = []
    for place, folders, files in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name not in _BOOKKEEPING]
        folders.sort()
        for file in sorted({*files, *(name for name in folders if Path(place, name).is_symlink())}):
            path = Path(place, file)
            name = path.relative_to(folder).as_posix()
            _check_kind(path, name, folder)
            _check_suffix(path, name)
            names.append(name)
    return names


def _check_kind(path: Path, name: str, folder: Path) -> None:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = _blob(path, name, folder)
            mode = target.lstat().st_mode
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(mode):
        raise ValueError(f"{name} is a pipe, a device, or a link to something else; a repository holds files.")


def _blob(path: Path, name: str, folder: Path) -> Path:
    """Return the target of a link in the Hub's cache, from snapshots/<revision>/<name> to blobs/<hash>."""
    snapshot, target = folder.resolve(), os.readlink(path)
    place = Path(os.path.normpath((snapshot / name).parent / target))
    if (
        snapshot.parent.name == "snapshots"
        and place.parent == snapshot.parent.parent / "blobs"
        and re.fullmatch(r"[0-9a-f]{8,}", place.name)
    ):
        return place
    raise ValueError(f"{name} is a link to {target}; a repository holds files.")


def _check_suffix(path: Path, name: str) -> None:
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise ValueError(f"{name} may run code when it is read; weights belong into *.safetensors files.")
    if suffix not in _SUFFIXES and path.name not in _NAMES:
        raise ValueError(
            f"{name} is of a kind that has no place here; a repository holds {', '.join(sorted(_SUFFIXES | _NAMES))}."
        )
    if suffix == ".py" and "/" in name:
        raise ValueError(f"{name} is code in a folder of its own, which the library may run: leave it out.")


def refuse_adapters(folder: Path) -> None:
    """Refuse a folder with an adapter in it, which the library would put onto the model.

    Raises:
        ValueError: naming its file.
    """
    for name in sorted(os.listdir(folder)):
        if name == "adapter_config.json" or name.startswith("adapter_model."):
            raise ValueError(
                f"{name}: an adapter beside the weights would change the model that is opened. Merge it first "
                "(PeftModel.merge_and_unload) and save the model."
            )


def is_present(folder: Path, name: str) -> bool:
    """Whether a folder has an entry of that name, of any kind and however odd the name."""
    return name in os.listdir(folder)


def require_file(path: Path) -> int:
    """Return the bytes of a file.

    Raises:
        ValueError: for a missing file, or a pipe or device, at which a reader would wait.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path.name} cannot be read: it is a folder, a pipe or a device, no file.")
    return status.st_size


def read_json(path: Path) -> dict[str, Any]:
    """Read an object from a JSON file of limited size.

    Raises:
        ValueError: naming the file, if it is too large, cannot be read, or holds something else.
    """
    content = read_any_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds a {type(content).__name__}; it must be an object.")
    return content


def read_any_json(path: Path) -> Any:
    """Read whatever a JSON file holds; the rest as for `read_json`."""
    largest = _LARGEST.get(path.name, _OTHER)
    size = require_file(path)
    if size > largest:
        raise ValueError(f"{path.name} has {size:,} bytes; at most {largest:,} are read.")
    try:
        text = path.read_text(encoding="utf-8")
        if text.count("[") + text.count("{") > _MOST_BRACKETS:
            raise ValueError(f"it has more than {_MOST_BRACKETS:,} lists and objects")
        return json.loads(text)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise ValueError(f"{path.name} is not JSON: {error}.") from error
