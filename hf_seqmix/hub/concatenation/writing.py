"""Writes several modules of a package as few files.

The imports of the kept statements come first in a file. The modules follow in the order of their imports, each below
its name and docstring. Where modules share a name, each definition gets the name of its module at the end.
"""

import ast
import re
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from .reached_code import File, ReachedCode, is_plain
from .scopes import Occurrence, bound_names, module_names
from .source_modules import External, Module, Own, Package, SourceModule, Statement
from .unique_names import IMPLICIT, UniqueNames

__all__ = ["File", "Made", "concatenate"]

_LINE_LENGTH = 119


@dataclass(frozen=True)
class Made:
    """The text of a file, the modules in it, in order, and the syntax tree of the text."""

    text: str
    modules: tuple[Module, ...]
    tree: ast.Module


def concatenate(package: Package, files: Sequence[File]) -> dict[str, Made]:
    """Write files of the modules of a package that they need.

    Args:
        package: the package.
        files: the files to write. Each holds what it needs and earlier files do not hold.

    Returns:
        Text and modules of each file, by the name of the file.

    Raises:
        ValueError: for source that cannot be brought into this form; the message says where.
    """
    reached = ReachedCode(package, files)
    names = UniqueNames(reached)
    made = {file.name: _Writer(reached, names, number).file() for number, file in enumerate(files)}
    for name, each in made.items():
        _check(name, each.tree)
    return made


class _Writer:
    """Writes one file."""

    def __init__(self, reached: ReachedCode, names: UniqueNames, number: int) -> None:
        self.reached = reached
        self.names = names.given
        self.number = number
        self.statements = [statement for statement, place in reached.kept() if place == number]
        self.external: set[External] = set()
        self.siblings: dict[int, set[str]] = defaultdict(set)

    def file(self) -> Made:
        """Return the imports, and then the modules, each below its name and docstring."""
        modules = list(dict.fromkeys(statement.module for statement in self.statements))
        parts = []
        for module in modules:
            texts = [self._text(statement) for statement in self.statements if statement.module == module]
            gaps = [statement.gap for statement in self.statements if statement.module == module]
            nodes = [statement.node for statement in self.statements if statement.module == module]
            body = texts[0]
            for before, node, gap, text in zip(nodes, nodes[1:], gaps[1:], texts[1:], strict=False):
                body += "\n" * (2 if _is_block(before) or _is_block(node) else min(gap, 1)) + text
            parts.append(_banner(self.reached.package[module]) + "\n" * (2 if _is_block(nodes[0]) else 1) + body)
        imports = self._imports()
        text = (imports + "\n" if imports else "") + "\n\n".join(parts)
        return Made(text, tuple(modules), ast.parse(text))

    def _text(self, statement: Statement) -> str:
        """Return the lines of a statement with the names of the file, and without relative imports."""
        if isinstance(statement.node, ast.If):
            return self._condition(statement)
        edits: list[tuple[Occurrence, str]] = []
        for occurrence in statement.occurrences:
            found = self._note(statement, occurrence)
            if found is not None and self.names[found] != occurrence.name:
                edits.append((occurrence, self.names[found]))
        return _edited(statement, edits)

    def _note(self, statement: Statement, occurrence: Occurrence) -> Own | External | None:
        """Return the object behind a name, and note the import that the object needs."""
        found = self.reached.meaning(statement, occurrence)
        if isinstance(found, External):
            self.external.add(found)
        elif found is not None:
            places = [
                self.reached.place[each] for each in self.reached.definitions[found] if each in self.reached.place
            ]
            if min(places) != self.number:
                self.siblings[min(places)].add(self.names[found])
        return found

    def _condition(self, statement: Statement) -> str:
        """Return a condition around imports, without the imports that nothing needs."""
        for occurrence in statement.occurrences:
            self._note(statement, occurrence)
        text = statement.text.split("\n")
        if not is_plain(statement.node):
            return statement.text
        for node in sorted(ast.walk(statement.node), key=lambda node: -getattr(node, "lineno", 0)):
            if isinstance(node, ast.ImportFrom):
                needed = [
                    _as(each.name, each.asname or each.name) for each in node.names if self._is_used(statement, each)
                ]
                first, last = node.lineno - statement.first_line, (node.end_lineno or 0) - statement.first_line
                indent = " " * node.col_offset
                text[first : last + 1] = (
                    _from_import(node.module or "", needed, indent) if needed else [f"{indent}pass"]
                )
        return "\n".join(text)

    def _is_used(self, statement: Statement, alias: ast.alias) -> bool:
        return (statement.module, alias.asname or alias.name) in self.reached.used

    def _imports(self) -> str:
        plain, named = [], defaultdict(list)
        for external in self.external:
            if external.name is None:
                plain.append((external.module, f"import {_as(external.module, self.names[external])}"))
            else:
                named[external.module].append(_as(external.name, self.names[external]))
        sections: list[list[str]] = []
        for is_standard in (True, False):
            lines = [line for module, line in sorted(plain) if _is_standard(module) == is_standard]
            for module in sorted(named, key=str.lower):
                if _is_standard(module) == is_standard:
                    lines += _from_import(module, named[module])
            sections.append(lines)
        siblings = [
            line
            for number, names in sorted(self.siblings.items())
            for line in _from_import(f".{self.reached.files[number].name}", list(names))
        ]
        return "\n".join("".join(f"{line}\n" for line in lines) for lines in [*sections, siblings] if lines)


def _edited(statement: Statement, edits: list[tuple[Occurrence, str]]) -> str:
    """Replace names, and drop relative imports within functions; the result is compared as a syntax tree.

    Raises:
        ValueError: for a statement with a name that could not be replaced.
    """
    imports = [node for node in ast.walk(statement.node) if _is_relative(node)]
    if not edits and not imports:
        return statement.text
    lines = statement.text.split("\n")
    places = {(*place, new) for occurrence, new in edits for place in _where(statement, lines, occurrence)}
    for line, begin, end, new in sorted(places, reverse=True):
        content = lines[line].encode()
        lines[line] = (content[:begin] + new.encode() + content[end:]).decode()
    for node in sorted(imports, key=lambda node: node.lineno, reverse=True):
        first, last = node.lineno - statement.first_line, (node.end_lineno or 0) - statement.first_line
        del lines[first : last + 1]
        if not lines[first].strip() and lines[first - 1].rstrip().endswith((":", '"""')):
            del lines[first]
    text = "\n".join(lines)
    changed: dict[int, dict[str, str]] = defaultdict(dict)
    for occurrence, new in edits:
        changed[id(occurrence.node)][occurrence.name] = new
    if _dump(statement.node, changed) != _dump(ast.parse(text).body[0], {}):
        raise ValueError(f"{'/'.join(statement.module)}.py line {statement.first_line}: names could not be replaced.")
    return text


def _is_relative(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and node.level > 0


def _where(statement: Statement, lines: list[str], occurrence: Occurrence) -> list[tuple[int, int, int]]:
    """Return line, first byte and last byte of each place of a name in the lines of a statement."""
    node, name = occurrence.node, occurrence.name.encode()
    assert isinstance(node, (ast.stmt, ast.expr))
    first = node.lineno - statement.first_line
    if isinstance(node, ast.Name):
        if lines[first].encode()[node.col_offset :].startswith(name):
            return [(first, node.col_offset, node.col_offset + len(name))]
        last = first  # within an f-string, whose parts some versions of Python misplace
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        found = re.search(rb"\b(?:def|class)\s+(" + name + rb")\b", lines[first].encode())
        return [(first, *found.span(1))] if found else []
    else:
        last = (node.end_lineno or node.lineno) - statement.first_line
    return [
        (number, *found.span())
        for number in range(first, last + 1)
        for found in re.finditer(rb"(?<![\w.])" + name + rb"\b", lines[number].encode())
    ]


def _dump(node: ast.stmt, changed: dict[int, dict[str, str]]) -> str:
    """Write a syntax tree without positions and relative imports, with other names in some of its nodes."""
    text = []

    def write(value: object, new: dict[str, str] | None = None) -> None:
        if isinstance(value, ast.AST):
            if _is_relative(value):
                return
            new = changed.get(id(value))
            text.append(f"{type(value).__name__}(")
            for field, inner in ast.iter_fields(value):
                is_name = field in ("id", "name", "names", "value")
                text.append(f"{field}=")
                write(inner, new if is_name else None)
            text.append(")")
        elif isinstance(value, list):
            text.append("[")
            for each in value:
                write(each, new)
            text.append("]")
        elif new and isinstance(value, str):
            text.append(repr(re.sub(r"\w+", lambda word: new.get(word[0], word[0]), value)))
        else:
            text.append(repr(value))

    write(node)
    return "".join(text)


def _check(name: str, tree: ast.Module) -> None:
    """Make sure that every name of a file is bound once, and that every name it uses is bound.

    Raises:
        ValueError: naming those that are not.
    """
    body = tree.body
    times = Counter(each for node in body for each in bound_names([node]) if each != "_")
    used = {each.name for node in body for each in module_names(node) if not each.binds and not each.deferred}
    twice = sorted(each for each, number in times.items() if number > 1)
    missing = sorted(used - set(times) - IMPLICIT)
    if twice or missing:
        raise ValueError(f"{name}.py would bind {', '.join(twice) or 'nothing'} twice, and lack {', '.join(missing)}.")


def _banner(source: SourceModule) -> str:
    lines = [f"# --- {'/'.join(source.module)}.py ---"]
    wrapper = textwrap.TextWrapper(_LINE_LENGTH, "# ", break_long_words=False, break_on_hyphens=False)
    for line in source.docstring.splitlines():
        wrapper.subsequent_indent = "# " + line[: len(line) - len(line.lstrip())]
        lines += wrapper.wrap(line) or ["#"]
    return "\n".join(lines) + "\n"


def _from_import(module: str, names: Iterable[str], indent: str = "") -> list[str]:
    plain = sorted((name for name in names if " " not in name), key=_rank)
    lines = [f"{indent}from {module} import {name}" for name in sorted(names, key=_rank) if " " in name]
    line = f"{indent}from {module} import {', '.join(plain)}"
    if len(line) > _LINE_LENGTH:
        return [f"{indent}from {module} import (", *(f"{indent}    {name}," for name in plain), f"{indent})", *lines]
    return [line, *lines] if plain else lines


def _rank(name: str) -> tuple[int, str, str]:
    """Order names as ruff does: constants, classes, the rest."""
    plain = name.split(" ")[0]
    kind = 0 if len(plain) > 1 and plain.isupper() else 1 if plain[:1].isupper() else 2
    return kind, plain.lower(), plain


def _as(name: str, given: str) -> str:
    return name if name == given else f"{name} as {given}"


def _is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


def _is_block(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef))
