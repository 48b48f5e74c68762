"""What a result depends on besides its run: command, versions of packages, device, threads, date; portable paths."""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

__all__ = ["environment_of", "file_digest", "fingerprint", "portable_command", "portable_path", "run_environment"]

_VARIABLES = ("HF_SEQMIX_NATIVE",)
_PACKAGES = ("hf-seqmix", "torch", "transformers", "datasets", "evaluate", "accelerate", "scikit-learn")


def run_environment() -> dict[str, Any]:
    """Return what a result depends on besides its arguments: command, versions, device, threads, date (UTC)."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": versions,
        "machine": platform.machine(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
    }


def environment_of() -> dict[str, Any]:
    """Return `run_environment` without the command, which holds paths of the machine."""
    return {name: value for name, value in run_environment().items() if name != "command"}


def portable_command(name: str) -> str:
    """Return the running command as a reader can type it: files of the repository from there, others below DATA.

    Args:
        name: of the folder below `runs` that stands for the output folder.
    """
    words = [str(Path(sys.argv[0]).resolve()), *sys.argv[1:]]
    kept = []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=")
        if before == "--output-dir":
            kept.append(f"runs/{name}")
        elif option == "--output-dir" and equals:
            kept.append(f"--output-dir=runs/{name}")
        elif equals and "/" not in option and "/" in value:
            kept.append(f"{option}={portable_path(value)}")
        else:
            kept.append(portable_path(word))
    variables = [f"{variable}={os.environ[variable]}" for variable in _VARIABLES if variable in os.environ]
    return shlex.join([*variables, "python", *kept])


def portable_path(word: str) -> str:
    """Return a path without this machine's folders; a word that is no absolute path and has no ".." is itself."""
    path = Path(word)
    if not path.is_absolute() and ".." not in path.parts:
        return word
    repository = _repository()
    if path.resolve().is_relative_to(repository):
        return str(path.resolve().relative_to(repository))
    return f"DATA/{path.name}"


def file_digest(path: Path) -> str:
    """Return the first 16 digits of the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def fingerprint(folder: Path, contents: bool = False) -> str | None:
    """Return what changes when a file of a local checkpoint does; None for a name on the Hub.

    Args:
        folder: of the checkpoint.
        contents: whether to read the files, which tells copies apart from others; else sizes and times decide.
    """
    if not folder.is_dir():
        return None
    kinds = {".json", ".safetensors", ".bin", ".txt", ".model", ".py"}
    files = sorted(path for path in folder.iterdir() if path.suffix in kinds and path.is_file())
    states = [
        (path.name, file_digest(path)) if contents else (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in files
    ]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def _repository() -> Path:
    """Return the folder that holds the folder `scripts` of the running script, or else the working folder."""
    folders = Path(sys.argv[0]).resolve().parents
    return next((folder.parent for folder in folders if folder.name == "scripts"), Path.cwd())
