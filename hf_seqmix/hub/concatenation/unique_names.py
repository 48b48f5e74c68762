"""Gives each definition in the files made of a package a name of its own."""

import ast
import builtins
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from .reached_code import ReachedCode
from .source_modules import External, Own

__all__ = ["IMPLICIT", "UniqueNames"]

IMPLICIT = frozenset([*dir(builtins), "__name__", "__file__", "__doc__"])
"""Names that a module has without binding them."""


class UniqueNames:
    """The name of each kept definition and of each import of another package; no name has two meanings."""

    def __init__(self, reached: ReachedCode) -> None:
        self.given: dict[Own | External, str] = {}
        self._reached = reached
        # A loop variable with the name of an import looks like a mistake.
        loops = (
            each for statement, _ in reached.kept() for each in ast.walk(statement.node) if isinstance(each, ast.For)
        )
        self._loop_variables = {name for each in loops for name in _targets(each)}
        refused: dict[Own | External, set[str]] = defaultdict(set)
        while True:
            self.given = self._give(refused)
            hidden = [
                (found, self.given[found])
                for statement, _ in reached.kept()
                for occurrence in statement.occurrences
                if (found := reached.meaning(statement, occurrence)) in self.given
                and self.given[found] != occurrence.name
                and self.given[found] in occurrence.hidden
            ]
            if not hidden:
                return
            for found, name in hidden:
                refused[found].add(name)

    def _give(self, refused: dict[Own | External, set[str]]) -> dict[Own | External, str]:
        written: dict[External, Counter[str]] = defaultdict(Counter)
        taken = set(IMPLICIT)
        defined: dict[str, list[Own]] = defaultdict(list)
        given: dict[Own | External, str] = {}
        for statement, _ in self._reached.kept():
            for occurrence in statement.occurrences:
                found = self._reached.meaning(statement, occurrence)
                if isinstance(found, External):
                    written[found][occurrence.name] += 1
            for name in sorted(statement.names):
                is_fixed = (
                    statement.module in self._reached.pinned or isinstance(statement.node, ast.If) or name == "_"
                )
                if is_fixed and (name not in taken or name == "_"):
                    given[statement.module, name] = name
                    taken.add(name)
                elif is_fixed:
                    raise ValueError(f"{'/'.join(statement.module)}.py: another module has the name {name!r}, too.")
                elif (statement.module, name) not in defined[name]:
                    defined[name].append((statement.module, name))
        for external, names in sorted(written.items(), key=lambda item: (item[0].module, item[0].name or "")):
            wanted = names.most_common(1)[0][0]
            others = (f"{external.module.replace('.', '_')}_{wanted}{'_' * number}" for number in count())
            given[external] = _free([wanted], others, taken | self._loop_variables | refused[external])
            taken.add(given[external])
        shared = {name for name, owners in defined.items() if len(owners) > 1}
        for name, owners in defined.items():
            for owner in owners:
                own = [] if name in shared else [name]
                given[owner] = _free(own, _longer(owner, owners), taken | shared | refused[owner])
                taken.add(given[owner])
        return given


def _free(wanted: Iterable[str], others: Iterable[str], taken: set[str]) -> str:
    return next(name for names in (wanted, others) for name in names if name not in taken)


def _longer(owner: Own, owners: Sequence[Own]) -> Iterator[str]:
    """Return names that end with the module, with as much of its path as makes the name unique."""
    module, name = owner
    for length in range(1, len(module) + 1):
        if sum(other[0][-length:] == module[-length:] for other in owners) == 1:
            yield _with_ending(name, module[-length:])
    for number in count(2):
        yield _with_ending(name, (*module, str(number)))


def _with_ending(name: str, parts: Sequence[str]) -> str:
    words = "_".join(part.strip("_") for part in parts)
    if name.lstrip("_")[:1].isupper() and not name.isupper():
        return name + words.title().replace("_", "")
    return f"{name}_{words.upper() if name.isupper() else words}"


def _targets(node: ast.For) -> set[str]:
    return {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
