"""Checkpoints of a run: sealed once whole, checked before use, removed when newer checkpoints are sealed."""

import hashlib
import json
import os
import re
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from ..._files import write_json

__all__ = [
    "best_checkpoint",
    "choose_checkpoint",
    "fault_of",
    "fault_of_best",
    "fault_of_files",
    "last_complete_checkpoint",
    "later_checkpoints",
    "open_checkpoint_folder",
    "remove_old_checkpoints",
    "saved_checkpoints",
    "seal_checkpoint",
    "set_aside_later",
    "written_by",
]

MANIFEST = "manifest.json"
STATE = "trainer_state.json"
MAX_JSON = 2**28
ARCHIVES = (".pt", ".pth", ".bin")  # what torch.save writes


def open_checkpoint_folder(checkpoint: str | Path) -> None:
    """Begin a checkpoint: an empty folder whose manifest says that it is not finished.

    What an interrupted run left under this name is removed.
    """
    checkpoint = Path(checkpoint)
    if checkpoint.exists():
        _remove(checkpoint)
    checkpoint.mkdir(parents=True)
    write_json(checkpoint / MANIFEST, {"complete": False})


def seal_checkpoint(checkpoint: str | Path, *, num_processes: int = 1) -> None:
    """End a checkpoint: write its manifest, with size and SHA-256 of every file, once the files are on the disk.

    Args:
        checkpoint: the folder; every process must have written its files.
        num_processes: that wrote it.
    """
    checkpoint = Path(checkpoint)
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST)
    with ThreadPoolExecutor(max_workers=4) as pool:
        digests = pool.map(_flushed_digest, files)
    entries = {
        path.relative_to(checkpoint).as_posix(): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(files, digests, strict=True)
    }
    write_json(checkpoint / MANIFEST, {"complete": True, "num_processes": num_processes, "files": entries})


def _flushed_digest(path: Path) -> str:
    with path.open("r+b") as file:
        os.fsync(file.fileno())  # else a power cut could leave the manifest and not what it lists
        return hashlib.file_digest(file, "sha256").hexdigest()


def fault_of(checkpoint: str | Path) -> str | None:
    """Return what is wrong with a checkpoint, naming the file; None if it is whole and a run can be continued from it.

    With a manifest every file must have its size and its SHA-256. Without one, as the `Trainer` alone writes
    checkpoints, the formats of the files are checked: JSON, the headers of safetensors files, the checksums in torch's
    archives.
    """
    checkpoint = Path(checkpoint)
    if not checkpoint.is_dir():
        return "there is no such folder"
    if not (checkpoint / MANIFEST).exists():
        return fault_of_files(checkpoint) or _missing(checkpoint)
    manifest = _read_object(checkpoint / MANIFEST)
    if isinstance(manifest, str):
        return manifest
    if manifest.get("complete") is not True:
        detail = fault_of_files(checkpoint) or _missing(checkpoint) or "other files may be missing"
        return f"its writing was interrupted: {detail}"
    return _fault_by_manifest(checkpoint, manifest.get("files")) or _missing(checkpoint)


def written_by(checkpoint: str | Path) -> int | None:
    """Return how many processes wrote a whole checkpoint, by its manifest; None if it has none."""
    manifest = _read_object(Path(checkpoint) / MANIFEST)
    return manifest.get("num_processes") if isinstance(manifest, dict) else None


def _read_object(path: Path) -> dict[str, Any] | str:
    """Return the object in a JSON file, or what is wrong with the file."""
    content = _read_json(path)
    return content if isinstance(content, (dict, str)) else f"{path.name} holds no JSON object"


def _read_json(path: Path) -> Any:
    """Return what a JSON file holds, or what is wrong with the file."""
    try:
        if path.stat().st_size > MAX_JSON:
            return f"{path.name} has {path.stat().st_size:,} bytes; at most {MAX_JSON:,} are read"
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        return f"{path.name} is not JSON ({error})"
    return f"{path.name} holds no JSON object" if isinstance(content, str) else content


def _fault_by_manifest(checkpoint: Path, files: Any) -> str | None:
    broken = f"{MANIFEST} does not say which files there are"
    if not isinstance(files, dict) or not files:
        return broken
    for name, entry in files.items():
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or not isinstance(entry, dict):
            return broken
        path = checkpoint / place
        if not path.is_file():
            return f"{name} is missing"
        size, wanted = path.stat().st_size, entry.get("bytes")
        if size != wanted:
            short = isinstance(wanted, int) and size < wanted
            return f"{name} is {'cut short' if short else 'of another size'}: it has {size} of {wanted} bytes"
    paths = [checkpoint / name for name in files]
    with ThreadPoolExecutor(max_workers=4) as pool:
        for (name, entry), digest in zip(files.items(), pool.map(_digest, paths), strict=True):
            if digest != entry.get("sha256"):
                return f"{name} is damaged: {digest if ' ' in digest else 'its SHA-256 is not that in the manifest'}"
    return None


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def fault_of_files(folder: str | Path) -> str | None:
    """Return the first file of a checkpoint or saved model that cannot be read, and why; None if there is none."""
    folder = Path(folder)
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix == ".json" and isinstance(content := _read_json(path), str):
            return content
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):  # refuses a file shorter than its header says
                    pass
            elif path.suffix in ARCHIVES:
                with zipfile.ZipFile(path) as archive:
                    if (member := archive.testzip()) is not None:
                        return f"{path.name} is damaged: the checksum of {member} in it does not fit"
        except (SafetensorError, zipfile.BadZipFile) as error:
            return f"{path.name} is cut short or damaged ({error})"
        except OSError as error:
            return f"{path.name} cannot be read: {error.strerror}"
    return None


def _missing(checkpoint: Path) -> str | None:
    names = {path.name for path in checkpoint.iterdir()}
    if any(path.is_dir() for path in checkpoint.iterdir()):
        return None if STATE in names else f"{STATE} is missing"  # DeepSpeed and FSDP lay their files out otherwise
    for index in checkpoint.glob("*.index.json"):
        content = _read_object(index)
        shards = content.get("weight_map", {}) if isinstance(content, dict) else {}
        if absent := sorted(set(map(str, shards.values())) - names):
            return f"{absent[0]} is missing, which {index.name} lists"
    if not any(name.endswith((".safetensors", "model.bin")) for name in names):
        return "model.safetensors is missing"
    if "optimizer.pt" not in names and "optimizer.bin" not in names:
        return "optimizer.pt is missing (with --save-only-model there is none, and nothing to continue from)"
    if "scheduler.pt" not in names:
        return "scheduler.pt is missing"
    if not any(re.fullmatch(r"rng_state(_\d+)?\.pth", name) for name in names):
        return "rng_state.pth is missing"
    return None if STATE in names else f"{STATE} is missing"


def saved_checkpoints(folder: str | Path) -> list[Path]:
    """Return the folders `checkpoint-STEP` of a run, whole or not, the newest first."""
    found = []
    for path in Path(folder).glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d+)", path.name)
        if match and path.is_dir():
            found.append((int(match[1]), path))
    return [path for _, path in sorted(found, reverse=True)]


def choose_checkpoint(folder: str | Path, *, needs_best: bool = False) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest checkpoint of a run that is whole, and what is wrong with the newer ones.

    Args:
        folder: of the run.
        needs_best: the run will also open the best checkpoint so far, so that one must be whole, too.

    Returns:
        The checkpoint, None if the run has none at all; the newer ones, with their faults.

    Raises:
        ValueError: there are checkpoints, but none is whole.
    """
    passed_over: dict[Path, str] = {}
    for checkpoint in saved_checkpoints(folder):
        fault = fault_of(checkpoint) or (fault_of_best(checkpoint) if needs_best else None)
        if fault is None:
            return checkpoint, passed_over
        passed_over[checkpoint] = fault
    if passed_over:
        faults = "; ".join(f"{path.name}: {fault}" for path, fault in passed_over.items())
        raise ValueError(
            f"no checkpoint in {folder} is whole, so there is nothing to continue from ({faults}). Start anew with"
            " --overwrite-output-dir instead of --resume, which deletes them, or with another --output-dir."
        )
    return None, passed_over


def best_checkpoint(checkpoint: Path, best: str) -> Path:
    """Return where the best checkpoint of a run is, whose folder may have been moved since it was recorded.

    Args:
        checkpoint: another one of the run, where the run is now.
        best: `best_model_checkpoint` of its state.
    """
    return Path(best) if Path(best).is_dir() else checkpoint.with_name(Path(best).name)


def fault_of_best(checkpoint: Path) -> str | None:
    """Return what is wrong with the best checkpoint that a checkpoint's run knows of; None if there is none, too."""
    state = _read_object(checkpoint / STATE)
    best = state.get("best_model_checkpoint") if isinstance(state, dict) else None
    if best is None or Path(best).name == checkpoint.name:
        return None
    fault = fault_of(best_checkpoint(checkpoint, best))
    return None if fault is None else f"its run needs the best checkpoint {Path(best).name}, but {fault}"


def last_complete_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest `checkpoint-STEP` of a run that is whole, or None."""
    return next((path for path in saved_checkpoints(folder) if fault_of(path) is None), None)


def remove_old_checkpoints(
    folder: str | Path, keep: int | None, *, newest: Path, best: str | Path | None = None
) -> None:
    """Remove checkpoints until at most `keep` are left, first those without a seal, then the oldest.

    Args:
        folder: of the run.
        keep: how many; None or 0 for all.
        newest: was just sealed and stays, even if the steps of others are higher.
        best: stays, too.
    """
    if not keep or keep < 0:
        return
    staying = {newest.resolve()} | ({Path(best).resolve()} if best else set())
    others = [path for path in saved_checkpoints(folder) if path.resolve() not in staying]
    others.sort(key=_is_sealed, reverse=True)  # keeps the newest first among equals
    for path in reversed(others[max(keep - len(staying), 0) :]):
        _remove(path)


def _is_sealed(checkpoint: Path) -> bool:
    manifest = _read_object(checkpoint / MANIFEST)
    return isinstance(manifest, dict) and manifest.get("complete") is True


def _remove(checkpoint: Path) -> None:
    # Under another name first: a folder half removed must not be taken for a checkpoint.
    removed = checkpoint.with_name(f".removed-{checkpoint.name}")
    shutil.rmtree(removed, ignore_errors=True)
    checkpoint.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def later_checkpoints(folder: str | Path, checkpoint: str | Path) -> list[Path]:
    """Return the checkpoints of a run after one of its own, the newest first; none for a checkpoint of elsewhere.

    After a checkpoint that was set aside come those of its step and more.
    """
    checkpoint = Path(checkpoint)
    own = re.fullmatch(r"(superseded-(?:\d+-)?)?checkpoint-(\d+)", checkpoint.name)
    if own is None or checkpoint.resolve().parent != Path(folder).resolve():
        return []
    first = int(own[2]) + (own[1] is None)
    return [path for path in saved_checkpoints(folder) if int(path.name.rpartition("-")[2]) >= first]


def set_aside_later(folder: str | Path, checkpoint: str | Path) -> list[Path]:
    """Rename the checkpoints of a run after `checkpoint` to `superseded-checkpoint-STEP`, and return their new names.

    A run that goes back and on another way would later be continued from those of the first way, which have higher
    steps. Where that name is taken, by an earlier way or by `checkpoint` itself, it is `superseded-2-checkpoint-STEP`.
    """
    aside = []
    for path in later_checkpoints(folder, checkpoint):
        names = (f"superseded-{number}{path.name}" for number in ("", *(f"{n}-" for n in range(2, 1000))))
        target = next(free for name in names if not (free := path.with_name(name)).exists())
        path.rename(target)
        aside.append(target)
    return aside
