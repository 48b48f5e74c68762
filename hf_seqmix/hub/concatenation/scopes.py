"""Finds the names of a module in a statement, by Python's rules of scope."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Occurrence", "bound_names", "module_names"]

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Occurrence:
    """A place where a statement uses, binds or rebinds a name of its module.

    Args:
        name: the name as it is written there.
        node: a `Name`, a definition, a `Global`, or, for an annotation in quotes, the `Constant`.
        hidden: names that mean something else at this place, because a function, class or comprehension around it
            binds them.
        deferred: the relative import within a function that binds the name; None for a name of the module itself.
        binds: whether the name is bound here.
    """

    name: str
    node: ast.AST
    hidden: frozenset[str]
    deferred: ast.ImportFrom | None = None
    binds: bool = False


def module_names(statement: ast.stmt) -> list[Occurrence]:
    """Return every occurrence of a name of the module in a statement of the module's top level."""
    reader = _Reader()
    reader.visit(statement)
    return reader.found


def bound_names(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the names that statements bind in the scope they stand in; a walrus in a comprehension counts, too."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DEFINITIONS):
            found.add(node.name)
            waiting += _evaluated_outside(node)
            continue
        if isinstance(node, ast.Lambda):
            waiting += _evaluated_outside(node)
            continue
        if isinstance(node, _COMPREHENSIONS):
            found |= {each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr)}
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
        waiting += ast.iter_child_nodes(node)
    return found


def _evaluated_outside(node: ast.AST) -> list[ast.expr]:
    """Return the parts of a definition that are evaluated outside: decorators, defaults, annotations, bases."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]
    assert isinstance(node, _FUNCTIONS)
    arguments = node.args
    parts: list[ast.expr] = [*arguments.defaults, *(default for default in arguments.kw_defaults if default)]
    if not isinstance(node, ast.Lambda):
        parts += [*node.decorator_list, *(argument.annotation for argument in _arguments(node) if argument.annotation)]
        parts += [node.returns] if node.returns else []
    return parts


def _arguments(node: _Function) -> list[ast.arg]:
    arguments = node.args
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return found + [each for each in (arguments.vararg, arguments.kwarg) if each]


@dataclass(frozen=True)
class _Scope:
    """A function, class or comprehension.

    Args:
        local: the names that the scope binds.
        outer: those it takes from the module by `global`.
        deferred: those it imports from the package, with the imports.
        so_far: of a class, the names that are bound so far; before that, they are those of the module.
    """

    local: frozenset[str]
    outer: frozenset[str] = frozenset()
    deferred: tuple[tuple[str, ast.ImportFrom], ...] = ()
    so_far: set[str] | None = None


class _Reader(ast.NodeVisitor):
    """Walks a statement with the scopes around each name in mind."""

    def __init__(self) -> None:
        self.found: list[Occurrence] = []
        self.scopes: list[_Scope] = []

    def visit_Name(self, node: ast.Name) -> None:
        self._note(node.id, node, not isinstance(node.ctx, ast.Load))

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            self._note(name, node, True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._definition(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._definition(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._definition(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in _evaluated_outside(node):
            self.visit(part)
        self._inside(_Scope(frozenset(each.arg for each in _arguments(node))), [node.body])

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)
        self.visit(node.target)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if getattr(node, "type_params", None):
            raise ValueError(f"{node.name} has type parameters, which are not supported.")
        annotations = [] if isinstance(node, ast.ClassDef) else [each.annotation for each in _arguments(node)]
        annotations += [] if isinstance(node, ast.ClassDef) else [node.returns]
        for part in _evaluated_outside(node):
            if part in annotations:
                self._annotation(part)
            else:
                self.visit(part)
        self._note(node.name, node, True)
        own = list(_own_nodes(node.body))
        outer = frozenset(name for each in own if isinstance(each, ast.Global) for name in each.names)
        deferred = tuple(
            (alias.asname or alias.name, each)
            for each in own
            if isinstance(each, ast.ImportFrom) and each.level
            for alias in each.names
        )
        local = bound_names(node.body) - outer - {name for name, _ in deferred}
        if isinstance(node, ast.ClassDef):
            self._inside(_Scope(frozenset(local), outer, deferred, set()), node.body)
        else:
            taken = {name for each in own if isinstance(each, ast.Nonlocal) for name in each.names}
            local = (local - taken) | {each.arg for each in _arguments(node)}
            self._inside(_Scope(frozenset(local), outer, deferred), node.body)

    def _comprehension(self, node: _Comprehension) -> None:
        self.visit(node.generators[0].iter)  # evaluated outside
        targets = frozenset(
            each.id
            for part in node.generators
            for each in ast.walk(part.target)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        )
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        others = [part.iter for part in node.generators[1:]]
        tests = [test for part in node.generators for test in part.ifs]
        self._inside(_Scope(targets), [*others, *tests, *elements])

    def _inside(self, scope: _Scope, nodes: Iterable[ast.AST]) -> None:
        self.scopes.append(scope)
        for node in nodes:
            self.visit(node)
        self.scopes.pop()

    def _annotation(self, node: ast.expr) -> None:
        """Visit an annotation, in which a string holds code, unless it is one of the values of a `Literal`."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for each in ast.walk(ast.parse(node.value.strip(), mode="eval")):
                if isinstance(each, ast.Name):
                    self._note(each.id, node, False)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] == "Literal":
            self.visit(node.value)
        elif isinstance(node, (ast.Subscript, ast.BinOp, ast.Tuple, ast.List)):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._annotation(child)
        else:
            self.visit(node)

    def _note(self, name: str, node: ast.AST, binds: bool) -> None:
        hidden: set[str] = set()
        deferred = None
        for number, scope in enumerate(reversed(self.scopes)):
            if scope.so_far is not None and number > 0:
                continue  # the names of a class are not those of its methods
            if scope.so_far is not None and binds:
                scope.so_far.add(name)
            if name in scope.outer:
                break
            sources = dict(scope.deferred)
            if name in sources:
                deferred = sources[name]
                break
            if name in scope.local and (scope.so_far is None or name in scope.so_far):
                return
            hidden |= scope.local
        self.found.append(Occurrence(name, node, frozenset(hidden), deferred, binds))


def _own_nodes(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Walk statements without those of the functions and classes within."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
