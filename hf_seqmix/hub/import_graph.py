"""What a module of the package imports from the package, read from its source and not by running it."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["PACKAGE_FOLDER", "RelativeImport", "import_closure", "relative_imports", "source_of"]

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]

Module = tuple[str, ...]
"""Name of a module within the package, in parts: ("models", "backbone")."""


@dataclass(frozen=True)
class RelativeImport:
    """A relative `from ... import`, anywhere in a module, and where what it names is defined.

    Args:
        first_line, last_line: lines of the statement, from 1.
        indent: columns before it.
        names: (module that defines it, its name there, the name it gets), for each name.
    """

    first_line: int
    last_line: int
    indent: int
    names: tuple[tuple[Module, str, str], ...]


def import_closure(modules: list[Module]) -> list[Module]:
    """Return the given modules and all they import from the package, directly or not, functions' own imports included.

    What a subpackage only hands on is followed to the module that defines it, so that the other modules of the subpackage
    stay out.
    """
    found: dict[Module, None] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += [source for statement in relative_imports(module) for source, _, _ in statement.names]
    return sorted(found)


@cache
def relative_imports(module: Module) -> tuple[RelativeImport, ...]:
    """Return the relative imports of a module, in the order of its lines.

    Raises:
        ValueError: for an import that has no flat form: of a whole module, or of all its names.
    """
    return tuple(
        RelativeImport(node.lineno, node.end_lineno or node.lineno, node.col_offset, _resolve(module, node))
        for node in sorted(_tree(module), key=lambda node: node.lineno)
    )


@cache
def source_of(module: Module) -> str:
    """Return the source of a module, as it was when first asked for: one state of the files for a whole process."""
    return _path(module).read_text(encoding="utf-8")


def _path(module: Module) -> Path:
    path = PACKAGE_FOLDER.joinpath(*module)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _tree(module: Module) -> list[ast.ImportFrom]:
    found = []
    for node in ast.walk(ast.parse(source_of(module))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            if node.level:
                found.append(node)
            else:
                names = [node.module or ""]
        if any(name.split(".")[0] == PACKAGE_FOLDER.name for name in names):
            raise ValueError(f"{_path(module)} imports {names[0]} by its full name; it must be relative.")
    return found


def _resolve(module: Module, node: ast.ImportFrom) -> tuple[tuple[Module, str, str], ...]:
    package = module if _path(module).name == "__init__.py" else module[:-1]
    base = package[: len(package) - node.level + 1] + tuple((node.module or "").split(".") if node.module else ())
    found = []
    for alias in node.names:
        if not base or alias.name == "*" or _path((*base, alias.name)).exists():
            raise ValueError(
                f"{_path(module)} line {node.lineno} imports {alias.name!r}, a module or all its names: import the names "
                "that are used, which is what can be flattened."
            )
        found.append((*_definition(base, alias.name), alias.asname or alias.name))
    return tuple(found)


def _definition(module: Module, name: str) -> tuple[Module, str]:
    """Follow a name through the subpackages that only hand it on."""
    if _path(module).name != "__init__.py":
        return module, name
    for statement in relative_imports(module):
        for source, original, given in statement.names:
            if given == name:
                return source, original
    raise ValueError(f"{_path(module)} defines {name!r} itself, so that it cannot be flattened.")
