"""Which way imports point, in the package and between the rooms of `scripts`; a failure names the line."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import hf_seqmix

REPOSITORY = Path(hf_seqmix.__file__).parents[1]

_LOW = {"ops", "cache", "modules", "models"}
ALLOWED = {
    "ops": set(),
    "_compat": set(),
    "_files": set(),
    "_labels": set(),
    "_version": set(),
    "cache": {"ops", "_compat"},
    "serving": {"cache", "_compat"},
    "modules": {"ops", "cache"},
    "models": {"ops", "cache", "serving", "modules", "_compat"},
    "data": _LOW,
    "training": {*_LOW, "data", "_compat"},
    "metrics": _LOW,
    "analysis": {*_LOW, "data", "training", "metrics", "_compat"},
    "hub": {*_LOW, "_compat"},
}
"""Part of the package -> the other parts that it may import; `OPEN_TO_ALL` is open to all parts but `ops`."""

OPEN_TO_ALL = {"_files", "_labels", "_version"}

TRITON = {"kernels", "precision"}
"""Folders and files of `ops` that need Triton; all others do without."""

LIBRARY_ROOMS = ("pretraining", "finetuning", "benchmarks")
"""Rooms of `scripts` that are packages; no room imports another. Folders of the other rooms are packages, too."""

SHARED_FOLDERS = {"comparison", "ski", "vision", "timing"}
"""Folders of `studies` and `speed` that the others there may import; these import none."""


class Import(NamedTuple):
    """One imported name: its full dotted path in parts, and the line; `level` is the number of leading dots."""

    target: tuple[str, ...]
    line: int
    level: int

    def __str__(self) -> str:
        return f"line {self.line} imports {'.'.join(self.target)}"


@cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports anywhere in a file, which several tests look at."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports(path: Path, root: Path) -> Iterator[Import]:
    """Yield what a file imports anywhere in it; relative imports are resolved from `root`."""
    package = path.relative_to(root).parent.parts
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(tuple(alias.name.split(".")), node.lineno, 0)
        else:
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield Import((*base, *module, alias.name), node.lineno, node.level)


def needs_triton(path: Path) -> bool:
    return "ops" in path.parts and bool(TRITON & {path.stem, path.parent.name})


def package_files(root: Path) -> list[Path]:
    return sorted((root / "hf_seqmix").rglob("*.py"))


def wrong_directions(root: Path) -> list[str]:
    """List the imports between parts of the package that do not point down."""
    wrong = []
    for path in package_files(root):
        part = path.relative_to(root).parts[1].removesuffix(".py")
        if part == "__init__":
            continue
        allowed = ALLOWED[part] | {part} | (set() if part == "ops" else OPEN_TO_ALL)
        for found in imports(path, root):
            if found.target[0] == "hf_seqmix" and found.target[1:2] not in [(name,) for name in allowed]:
                wrong.append(f"{path.relative_to(root)} {found}, but {part} may import {', '.join(sorted(allowed))}")
    return wrong


def wrong_kernels(root: Path) -> list[str]:
    """List the imports of Triton kernels from outside; `ops/common/backend.py` loads them by name where Triton is."""
    wrong = []
    for path in [*package_files(root), *sorted((root / "scripts").rglob("*.py"))]:
        if needs_triton(path):
            continue
        for found in imports(path, root):
            if found.target[:2] == ("hf_seqmix", "ops") and TRITON & set(found.target):
                wrong.append(f"{path.relative_to(root)} {found}, which only hf_seqmix/ops/common/backend.py loads")
    return wrong


def wrong_rooms(root: Path) -> list[str]:
    """List the imports from one room of `scripts` into another.

    A library room is a package; so is each folder of the other rooms, the files of which are run by path and see the
    files and folders beside them under their bare names. Modules of a package import each other relatively.
    """
    scripts = root / "scripts"
    files = {path: path.relative_to(scripts).parts for path in sorted(scripts.glob("*/**/*.py"))}
    beside = {parts[1].removesuffix(".py"): parts[0] for parts in files.values() if parts[0] not in LIBRARY_ROOMS}
    wrong = []
    for path, (room, *rest) in files.items():
        package = (room,) if room in LIBRARY_ROOMS else (room, rest[0]) if len(rest) > 1 else ()
        for found in imports(path, scripts):
            first = found.target[1] if found.target[0] == "scripts" and len(found.target) > 1 else found.target[0]
            if found.level and not package:
                wrong.append(f"{path.relative_to(root)} {found} relatively, but it is run by its path")
            elif found.level and found.target[: len(package)] != package:
                wrong.append(f"{path.relative_to(root)} {found} relatively, which leaves the package {package[-1]}")
            if found.level or first == path.stem:
                continue
            if package and first == package[-1]:
                wrong.append(f"{path.relative_to(root)} {found} of its own package: import it relatively")
                continue
            other = first if (scripts / first).is_dir() else beside.get(first, room)
            if other != room:
                wrong.append(f"{path.relative_to(root)} {found} of the room {other}")
    return wrong


def wrong_folders(root: Path) -> list[str]:
    """List the imports inside a room of `scripts` that leave a folder other than to the level that the room shares.

    What two folders need is a file beside them, or one of `SHARED_FOLDERS`. The files beside the folders of a library
    room import none of them. Nothing in a room imports a command.
    """
    scripts = root / "scripts"
    wrong = []
    for path in sorted(scripts.glob("*/**/*.py")):
        room, *inner, _ = path.relative_to(scripts).parts
        own = inner[0] if inner else None
        library = room in LIBRARY_ROOMS
        folders = {folder.name for folder in (scripts / room).iterdir() if folder.is_dir()}
        for found in imports(path, scripts):
            name = found.target[library] if len(found.target) > library else ""
            if (library and found.target[0] != room) or name == own:
                continue
            shared = name in SHARED_FOLDERS and own not in SHARED_FOLDERS
            if name in folders and (library or own) and not shared:
                wrong.append(f"{path.relative_to(root)} {found} of the folder {name}: move what both need beside it")
            elif not library and is_command(scripts / room / f"{name}.py"):
                wrong.append(f"{path.relative_to(root)} {found} of the command {name}.py: move what both need")
    return wrong


def is_command(path: Path) -> bool:
    return path.is_file() and 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("check", [wrong_directions, wrong_kernels, wrong_rooms, wrong_folders])
def test_imports_point_down(check):
    wrong = check(REPOSITORY)
    assert not wrong, "\n".join(wrong)


def test_every_part_of_the_package_has_a_place():
    parts = {path.relative_to(REPOSITORY).parts[1].removesuffix(".py") for path in package_files(REPOSITORY)}
    assert parts - {"__init__"} == set(ALLOWED)


def test_operations_need_torch_alone():
    wrong = []
    for path in package_files(REPOSITORY):
        if path.relative_to(REPOSITORY).parts[1] != "ops":
            continue
        known = {"hf_seqmix", "torch", *sys.stdlib_module_names} | ({"triton"} if needs_triton(path) else set())
        wrong += [
            f"{path.relative_to(REPOSITORY)} {found}"
            for found in imports(path, REPOSITORY)
            if found.target[0] not in known
        ]
    assert not wrong, "\n".join(wrong)


def test_one_file_calls_the_fourier_transform():
    callers = {path.name for path in package_files(REPOSITORY) if "torch.fft.r" in path.read_text(encoding="utf-8")}
    assert callers == {"fft.py"}


@pytest.mark.parametrize(
    ("check", "file", "text", "message"),
    [
        (
            wrong_directions,
            "hf_seqmix/cache/a.py",
            "\nfrom ..models.heads import X",
            "line 2 imports hf_seqmix.models.heads.X",
        ),
        (
            wrong_directions,
            "hf_seqmix/hub/a.py",
            "def f():\n    from ..data import X",
            "line 2 imports hf_seqmix.data.X",
        ),
        (wrong_directions, "hf_seqmix/data/a.py", "from .. import training", "line 1 imports hf_seqmix.training"),
        (wrong_directions, "hf_seqmix/ops/a.py", "from .._files import x", "line 1 imports hf_seqmix._files.x"),
        (wrong_directions, "hf_seqmix/training/a.py", "import hf_seqmix", "line 1 imports hf_seqmix,"),
        (
            wrong_kernels,
            "hf_seqmix/ops/ski/a.py",
            "from .kernels import x",
            "line 1 imports hf_seqmix.ops.ski.kernels.x",
        ),
        (
            wrong_kernels,
            "scripts/a.py",
            "import hf_seqmix.ops.ski.kernels.x",
            "line 1 imports hf_seqmix.ops.ski.kernels.x",
        ),
        (
            wrong_kernels,
            "hf_seqmix/analysis/kernels/a.py",
            "from ...ops.ski.kernels import x",
            "line 1 imports hf_seqmix.ops.ski.kernels.x",
        ),
        (
            wrong_rooms,
            "scripts/finetuning/a.py",
            "from benchmarks.b import X",
            "line 1 imports benchmarks.b.X of the room",
        ),
        (wrong_rooms, "scripts/benchmarks/a.py", "import c", "line 1 imports c of the room speed"),
        (wrong_rooms, "scripts/studies/a.py", "from c import X", "line 1 imports c.X of the room speed"),
        (wrong_rooms, "scripts/studies/a.py", "from .b import X", "line 1 imports studies.b.X relatively"),
        (wrong_rooms, "scripts/benchmarks/a.py", "from benchmarks.b import X", "own package: import it relatively"),
        (wrong_rooms, "scripts/benchmarks/e/a.py", "from c import X", "line 1 imports c.X of the room speed"),
        (wrong_rooms, "scripts/benchmarks/e/a.py", "from benchmarks.b import X", "own package: import it relatively"),
        (wrong_rooms, "scripts/studies/e/a.py", "from e.b import X", "its own package: import it relatively"),
        (wrong_rooms, "scripts/studies/e/a.py", "from ..b import X", "relatively, which leaves the package e"),
        (wrong_rooms, "scripts/studies/e/a.py", "from f.b import X", "line 1 imports f.b.X of the room speed"),
        (wrong_folders, "scripts/benchmarks/e/a.py", "from ..h.b import X", "benchmarks.h.b.X of the folder h"),
        (wrong_folders, "scripts/benchmarks/e/a.py", "from .. import h", "imports benchmarks.h of the folder h"),
        (wrong_folders, "scripts/benchmarks/a.py", "from .h import b", "imports benchmarks.h.b of the folder h"),
        (wrong_folders, "scripts/speed/e/a.py", "from f.b import X", "imports f.b.X of the folder f"),
        (wrong_folders, "scripts/speed/e/a.py", "from i import X", "imports i.X of the command i.py"),
        (wrong_folders, "scripts/speed/a.py", "import i", "imports i of the command i.py"),
    ],
)
def test_a_wrong_import_is_named(tmp_path, check, file, text, message):
    for path, content in {
        "scripts/speed/c.py": "",
        "scripts/speed/d.py": "import c",
        "scripts/speed/f/b.py": "from . import a",
        "scripts/speed/g.py": "from f import b",
        "scripts/speed/i.py": 'import g\n\nif __name__ == "__main__":\n    g.main()',
        "scripts/benchmarks/b.py": "from . import a",
        "scripts/benchmarks/h/b.py": "from .. import b",
        "scripts/finetuning/b.py": "from . import b",
        "hf_seqmix/ops/ski/kernels/x.py": "from .. import kernels",
        file: text,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    (wrong,) = check(tmp_path)
    assert wrong.startswith(file) and message in wrong, wrong
