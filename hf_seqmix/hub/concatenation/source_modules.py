"""Reads the modules of a package as statements, and resolves the names in them; nothing is imported or run."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .scopes import Occurrence, bound_names, module_names

__all__ = ["External", "Module", "Own", "Package", "SourceModule", "Statement"]

Module = tuple[str, ...]
"""Name of a module within the package, in parts: ("models", "backbone")."""

Own = tuple[Module, str]
"""A name of the package: the module that defines it, and the name there."""


@dataclass(frozen=True)
class External:
    """The object that an import of another package binds; without a name, the module itself."""

    module: str
    name: str | None = None


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement at the top level of a module, with the comments above it and its documentation.

    Args:
        module: the module of the statement.
        node: the syntax tree.
        text: the lines of the statement, comments and documentation included.
        first_line: number of the first line.
        gap: number of blank lines above.
        names: names that the statement binds in the module.
        occurrences: names of the module, and of imports within functions, in the statement.
        is_effect: whether the statement does more than bind names, such as registering a class.
        anchors: names of the objects that an effect changes.
    """

    module: Module
    node: ast.stmt
    text: str
    first_line: int
    gap: int
    names: frozenset[str]
    occurrences: tuple[Occurrence, ...]
    is_effect: bool
    anchors: frozenset[str]


class Package:
    """A package whose modules are read once, when they are first asked for.

    Args:
        folder: of the package.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sources: dict[Module, SourceModule] = {}

    def __getitem__(self, module: Module) -> "SourceModule":
        """Return a module."""
        if module not in self._sources:
            self._sources[module] = SourceModule(self, module)
        return self._sources[module]

    def path(self, module: Module) -> Path:
        """Return the file of a module."""
        path = self.folder.joinpath(*module)
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def follow(self, found: Own) -> Own | External:
        """Follow a name to the module that defines it."""
        meaning = self[found[0]].meaning(found[1])
        if meaning is None:
            raise ValueError(f"{self.path(found[0])} does not define {found[1]!r}.")
        return meaning

    def home(self, found: Own) -> Module:
        """Return the module that an import loads; for a subpackage, the module that defines the name."""
        if self.path(found[0]).name != "__init__.py":
            return found[0]
        meaning = self.follow(found)
        if isinstance(meaning, External) or self.path(meaning[0]).name == "__init__.py":
            raise ValueError(f"{self.path(found[0])} defines {found[1]!r} itself: move it to a module of its own.")
        return meaning[0]

    def import_order(self, roots: Sequence[Module]) -> list[Module]:
        """Return modules and all that they import from the package, directly or not, each after those that it needs.

        What functions import when they are called comes last. Subpackages that only hand names on are passed over.
        """
        found: dict[Module, None] = {}
        entered: set[Module] = set()

        def enter(module: Module) -> None:
            if module not in entered:
                entered.add(module)
                for each in self[module].imported:
                    enter(each)
                found[module] = None

        waiting = list(roots)
        while waiting:
            enter(waiting.pop(0))
            waiting += [each for module in found for each in self[module].deferred if each not in entered]
        return list(found)


class SourceModule:
    """A module of a package, as its file was when it was read.

    Args:
        package: the package.
        module: the name of the module.

    Raises:
        ValueError: for an import that cannot stand in a file made of several modules.
    """

    def __init__(self, package: Package, module: Module) -> None:
        self.package = package
        self.module = module
        self.path = package.path(module)
        self.text = self.path.read_text(encoding="utf-8")
        tree = ast.parse(self.text)
        self.docstring = ast.get_docstring(tree) or ""
        self._imports: dict[str, Own | External] = {}
        self._deferred: list[Own] = []
        self.rebound = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        self.statements = list(self._statements(tree.body))

    def meaning(self, name: str) -> Own | External | None:
        """Return the object that a name of this module stands for, where it is defined; None for a built-in name."""
        if name not in self._imports:
            return (self.module, name) if name in self._defined else None
        found = self._imports[name]
        return found if isinstance(found, External) else self.package.follow(found)

    @property
    def imported(self) -> list[Module]:
        """Modules of the package that this one imports when it is loaded, in order."""
        return [self.package.home(found) for found in self._imports.values() if not isinstance(found, External)]

    @property
    def deferred(self) -> list[Module]:
        """Modules of the package that its functions import when they are called."""
        return [self.package.home(found) for found in self._deferred]

    def deferred_meaning(self, occurrence: Occurrence) -> Own:
        """Return the object behind a name that a function imports from the package."""
        assert occurrence.deferred is not None
        for alias in occurrence.deferred.names:
            if occurrence.name == (alias.asname or alias.name):
                found = self.package.follow(self._package_name(occurrence.deferred, alias))
                if not isinstance(found, External):
                    return found
        raise ValueError(f"{self.path} line {occurrence.deferred.lineno} does not import {occurrence.name!r}.")

    @cached_property
    def _defined(self) -> set[str]:
        return set().union(*(statement.names for statement in self.statements))

    def _statements(self, body: list[ast.stmt]) -> Iterator[Statement]:
        lines = self.text.splitlines(keepends=True)
        end = 0  # lines before this belong to an earlier statement
        number = 0
        while number < len(body):
            node, last = body[number], body[number].end_lineno or 0
            number += 1
            if number < len(body) and isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_string(body[number]):
                last = body[number].end_lineno or 0
                number += 1
            begin, end = end, last
            if _is_string(node) or _is_all(node):
                continue
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
                continue
            self._nested_imports(node)
            above = lines[begin:last]
            gap = next(count for count, line in enumerate(above) if line.strip())
            occurrences = tuple(module_names(node))
            anchors = _anchors(node)
            yield Statement(
                module=self.module,
                node=node,
                text="".join(above[gap:]),
                first_line=begin + gap + 1,
                gap=gap,
                names=frozenset(bound_names([node])),
                occurrences=occurrences,
                is_effect=anchors is not None or _acts(node),
                anchors=frozenset(anchors or ()),
            )

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            found: Own | External
            if isinstance(node, ast.Import):
                if "." in alias.name and not alias.asname:
                    raise ValueError(
                        f"{self.path} imports {alias.name} without a name of its own: import the names that are used."
                    )
                found = External(alias.name)
            elif node.level == 0:
                found = External(node.module or "", alias.name)
            else:
                found = self._package_name(node, alias)
            if isinstance(found, External):
                self._check_external(found)
            self._imports[alias.asname or alias.name] = found

    def _nested_imports(self, statement: ast.stmt) -> None:
        """Note the imports within a statement: those of the package are followed, others stay where they are."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._check_external(External(alias.name))
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                self._check_external(External(node.module or ""))
            elif isinstance(node, ast.ImportFrom):
                if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                    raise ValueError(
                        f"{self.path} line {node.lineno} imports from the package under a condition: import at the "
                        "top or within a function."
                    )
                self._deferred += [self._package_name(node, alias) for alias in node.names]

    def _check_external(self, found: External) -> None:
        if found.module.split(".")[0] == self.package.folder.name:
            raise ValueError(f"{self.path} imports {found.module} by its full name; it must be relative.")
        if found.name == "*":
            raise ValueError(f"{self.path} imports all names of {found.module}: import the names that are used.")

    def _package_name(self, node: ast.ImportFrom, alias: ast.alias) -> Own:
        package = self.module if self.path.name == "__init__.py" else self.module[:-1]
        parts = tuple((node.module or "").split(".")) if node.module else ()
        base = package[: len(package) - node.level + 1] + parts
        if not base or alias.name == "*" or self.package.path((*base, alias.name)).exists():
            raise ValueError(
                f"{self.path} line {node.lineno} imports {alias.name!r}, a module or all its names: import the names "
                "that are used."
            )
        return base, alias.name


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_all(node: ast.stmt) -> bool:
    targets = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    )
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _acts(node: ast.stmt) -> bool:
    """Whether a statement may do something beside binding names."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name == "_"
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return False
    return not isinstance(node, ast.If)


def _anchors(node: ast.stmt) -> set[str] | None:
    """Return the names of the objects that a statement changes; None for a statement that changes none.

    `operator.register_fake(f)` and `@operator.register_fake` change `operator`, and `table[key] = value` changes
    `table`.
    """
    parts: list[ast.expr] = []
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        parts = node.decorator_list
    elif isinstance(node, ast.Expr):
        parts = [node.value]
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        parts = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {root for each in parts if (root := _object_of(each))} or None


def _object_of(node: ast.expr) -> str | None:
    """Return `x` of `x.method`, `x.method(...)` or `x[...]`; None of a plain name."""
    if isinstance(node, ast.Call):
        return _object_of(node.func)
    inner: ast.expr = node
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        inner = inner.value
    return inner.id if isinstance(inner, ast.Name) and inner is not node else None
