"""Finds the statements of a package that a few files need, and the file of each statement.

A statement at the top level of a module is kept if a kept statement uses a name that it defines, or if it registers or
changes an object that is kept. Other statements fall away: helpers for other uses, other families.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .scopes import Occurrence
from .source_modules import External, Module, Own, Package, Statement

__all__ = ["File", "ReachedCode", "is_plain"]


@dataclass(frozen=True)
class File:
    """A file to be made.

    Args:
        name: of the file, without ".py"; later files import from earlier files.
        whole: modules whose statements are all kept, with their names.
        registering: modules whose registrations are kept, with the definitions that the registrations need.
        names: other definitions that are kept.
    """

    name: str
    whole: tuple[Module, ...]
    registering: tuple[Module, ...] = ()
    names: tuple[Own, ...] = ()


class ReachedCode:
    """The statements that are kept, each with the number of its file."""

    def __init__(self, package: Package, files: Sequence[File]) -> None:
        self.package = package
        self.files = files
        roots = [(*file.whole, *file.registering, *(module for module, _ in file.names)) for file in files]
        self.order = self.package.import_order([module for each in roots for module in each])
        self.earliest: dict[Module, int] = {}
        for number, each in enumerate(roots):
            for module in self.package.import_order(each):
                self.earliest.setdefault(module, number)
        self.pinned = {module for file in files for module in file.whole}
        self.definitions: dict[Own, list[Statement]] = defaultdict(list)
        for module in self.order:
            for statement in self.package[module].statements:
                for name in statement.names:
                    self.definitions[module, name].append(statement)
        self._forced: dict[int, set[Statement]] = defaultdict(set)
        self.place: dict[Statement, int] = {}
        self.same: dict[Own, Own] = {}
        self._reach()
        while self._force_together():
            self._reach()
        self.same = self._merge_identical()
        self.used = {
            found
            for statement in self.place
            for occurrence in statement.occurrences
            if not occurrence.binds and isinstance(found := self.meaning(statement, occurrence), tuple)
        }
        """Definitions that a kept statement uses."""

    def meaning(self, statement: Statement, occurrence: Occurrence) -> Own | External | None:
        """Return the object behind a name; of several identical definitions, the first."""
        module = self.package[statement.module]
        found = module.deferred_meaning(occurrence) if occurrence.deferred else module.meaning(occurrence.name)
        return found if isinstance(found, External) or found is None else self.same.get(found, found)

    def kept(self) -> Iterator[tuple[Statement, int]]:
        """Return the kept statements with the numbers of their files, in order."""
        for module in self.order:
            for statement in self.package[module].statements:
                if statement in self.place:
                    yield statement, self.place[statement]

    def _reach(self) -> None:
        self.place.clear()
        for number, file in enumerate(self.files):
            for statement in {
                *self._forced[number],
                *(each for name in file.names for each in self.definitions[name]),
            }:
                self._keep(statement, number)
            for module in file.whole:
                for statement in self.package[module].statements:
                    self._keep(statement, number)
            for module in file.registering:
                for statement in self.package[module].statements:
                    if statement.is_effect or _calls(statement.node):
                        self._keep(statement, number)
            while effects := [each for each in self._effects(number) if each not in self.place]:
                for statement in effects:
                    self._keep(statement, number)

    def _keep(self, statement: Statement, number: int) -> None:
        waiting = [statement]
        while waiting:
            each = waiting.pop()
            if each in self.place:
                continue
            self.place[each] = number
            for occurrence in each.occurrences:
                found = self.meaning(each, occurrence)
                if isinstance(found, tuple):
                    waiting += self.definitions[found]

    def _effects(self, number: int) -> list[Statement]:
        """Return the statements that change or register something that is kept so far."""
        return [
            statement
            for module in self.order
            if self.earliest[module] <= number
            for statement in self.package[module].statements
            if statement.is_effect and self._matters(statement)
        ]

    def _matters(self, statement: Statement) -> bool:
        source = self.package[statement.module]
        objects = {found for name in statement.anchors if isinstance(found := source.meaning(name), tuple)}
        if not objects:
            if isinstance(statement.node, (ast.FunctionDef, ast.ClassDef)):
                return False  # a decorator of another package
            return any(each in self.place for each in source.statements)  # `register(...)` serves the whole module
        return any(each in self.place for found in objects for each in self.definitions[found])

    def _force_together(self) -> bool:
        """Move statements that use a variable to its file, if functions rebind it; return whether any moved."""
        before = sum(map(len, self._forced.values()))
        for statement, number in self.place.items():
            for occurrence in statement.occurrences:
                found = self.meaning(statement, occurrence)
                if isinstance(found, tuple) and found[1] in self.package[found[0]].rebound:
                    home = min(
                        (self.place[each] for each in self.definitions[found] if each in self.place), default=number
                    )
                    if home < number:
                        self._forced[home].add(statement)
        return sum(map(len, self._forced.values())) > before

    def _merge_identical(self) -> dict[Own, Own]:
        """Drop repeated definitions of types and constants; return the definition that replaces each."""
        first: dict[tuple[object, ...], Statement] = {}
        same: dict[Own, Own] = {}
        for statement, _ in sorted(self.kept(), key=lambda each: each[1]):
            if statement.module in self.pinned or not is_plain(statement.node):
                continue
            used = tuple(self.meaning(statement, each) for each in statement.occurrences if not each.binds)
            original = first.setdefault((statement.text, used), statement)
            if original is not statement:
                same |= {(statement.module, name): (original.module, name) for name in statement.names}
                del self.place[statement]
        return same


def is_plain(node: ast.stmt) -> bool:
    """Whether a statement names an immutable object, or is a condition around imports."""
    if isinstance(node, ast.If):
        return all(isinstance(each, (ast.Import, ast.ImportFrom)) for each in [*node.body, *node.orelse])
    changing = (ast.Call, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.Lambda)
    is_name = isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)
    return is_name and not any(isinstance(each, changing) for each in ast.walk(node))


def _calls(node: ast.stmt) -> bool:
    is_assignment = isinstance(node, (ast.Assign, ast.AnnAssign))
    return is_assignment and any(isinstance(each, ast.Call) for each in ast.walk(node))
