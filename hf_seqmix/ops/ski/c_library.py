"""Compiling a C file with the machine's own compiler, once, into the user's cache folder."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

__all__ = ["ADVICE", "cache_folder", "compiled"]

ADVICE = (
    "Install a C compiler (gcc or clang; macOS: xcode-select --install) or name one in the environment variable CC. "
    "Without it torch computes the same, more slowly."
)

_FLAGS = ("-O3", "-std=c11", "-ffp-contract=fast", "-fPIC", "-shared")
# Not every compiler takes all: the first set that works is kept.
_PROCESSORS = (("-march=native",), ("-mcpu=native",), ())
_THREADS = (("-fopenmp",), ())
_SECONDS = 120


def cache_folder() -> Path:
    """Return the folder of compiled libraries: below XDG_CACHE_HOME, or where the platform keeps what may be lost."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given and Path(given).is_absolute():
        base = Path(given)
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "hf_seqmix" / "native"


def compiled(source: Path) -> Path:
    """Return the shared library of a C file, compiling it unless the cache folder holds it whole.

    The library's name is made of its origin (source, compiler, flags, processor) and its content. So a file of another
    machine, of an older source, or cut short is never loaded. Processes that compile at once do not disturb each
    other.

    Args:
        source: the C file.

    Raises:
        RuntimeError: if there is no compiler, it fails, or the cache folder cannot be used; says what to do.
    """
    try:
        text = source.read_bytes()
    except OSError as error:
        raise RuntimeError(f"{source} cannot be read ({error.strerror}): install hf_seqmix again.") from error
    compiler = _compiler()
    made_from = [text.decode(), _version(compiler), repr((_FLAGS, _PROCESSORS, _THREADS)), _processor()]
    stem = f"{source.stem}-{_digest(chr(0).join(made_from).encode())}"
    suffix = ".dll" if sys.platform == "win32" else ".so"
    try:
        folder = _private_folder()
        for path in sorted(folder.glob(f"{stem}-*{suffix}")):
            if path.name == f"{stem}-{_digest(path.read_bytes())}{suffix}":
                return path
            path.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / f"made{suffix}"
            _compile(compiler, source, made)
            path = folder / f"{stem}-{_digest(made.read_bytes())}{suffix}"
            os.replace(made, path)
    except OSError as error:
        raise RuntimeError(
            f"the compiled library cannot be kept in {cache_folder()}: {error}. Make room there, or name another "
            "folder in XDG_CACHE_HOME."
        ) from error
    return path


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _private_folder() -> Path:
    """Make the cache folder and see to it that nobody else can put a library there."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if hasattr(os, "geteuid"):
        state = folder.stat()
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise RuntimeError(
                f"others can write to {folder}, so that nothing is loaded from it: take their permission away (chmod "
                "700), or name another folder in XDG_CACHE_HOME."
            )
    return folder


def _compiler() -> list[str]:
    """Return the command of CC, or of the first compiler found."""
    given = shlex.split(os.environ.get("CC", ""))
    if given:
        if shutil.which(given[0]) is None:
            raise RuntimeError(f"CC names the compiler {given[0]!r}, which is not there. {ADVICE}")
        return given
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if found is None:
        raise RuntimeError(f"no C compiler was found (cc, gcc, clang). {ADVICE}")
    return [found]


def _version(compiler: list[str]) -> str:
    done = _run([*compiler, "--version"])
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(compiler)} --version fails: {done.stderr.strip()[:500]}. {ADVICE}")
    return (done.stdout.splitlines() or [""])[0]


def _processor() -> str:
    """Say what `native` means to the compiler: homes are shared by machines with different processors."""
    lines = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        seen: set[str] = set()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name = line.partition(":")[0].strip()
            if name in wanted and name not in seen:
                seen.add(name)
                lines.append(line)
    except OSError:  # not Linux
        pass
    return "\n".join(lines)


def _flag_sets() -> Iterator[list[str]]:
    for processor in _PROCESSORS:
        for threads in _THREADS:
            yield [*_FLAGS, *processor, *threads]


def _compile(compiler: list[str], source: Path, target: Path) -> None:
    complaint = ""
    for flags in _flag_sets():
        done = _run([*compiler, *flags, str(source), "-o", str(target)])
        if done.returncode == 0 and target.exists():
            return
        complaint = complaint or f"{shlex.join(done.args)}: {done.stderr.strip()[:2000]}"
    raise RuntimeError(f"{source.name} does not compile. {complaint}\n{ADVICE}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{shlex.join(command)} fails: {error}. {ADVICE}") from error
