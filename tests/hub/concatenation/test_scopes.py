"""Which names of a statement are the module's: checked against what Python itself says of the same code."""

import ast
import symtable
from pathlib import Path

import pytest

import hf_seqmix
from hf_seqmix.hub.concatenation.scopes import bound_names, module_names

SOURCES = sorted(
    path
    for part in ("models", "ops", "cache", "modules")
    for path in (Path(hf_seqmix.__file__).parent / part).rglob("*.py")
)


def uses(code):
    return {each.name for node in ast.parse(code).body for each in module_names(node) if not each.binds}


def globals_of(table):
    """Return the names that Python looks up in the module, annotations in quotes aside."""
    found = {each.get_name() for each in table.get_symbols() if each.is_referenced() and each.is_global()}
    return found.union(*(globals_of(child) for child in table.get_children()))


class WithoutStrings(ast.NodeTransformer):
    """Leaves no string, so that no annotation is in quotes, and no import within the package."""

    def visit_Constant(self, node):
        return ast.Constant(0) if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node):
        return ast.Tuple([self.visit(each.value) for each in node.values if isinstance(each, ast.FormattedValue)])

    def visit_ImportFrom(self, node):
        return ast.ImportFrom(node.module or "package", node.names, 0)


def test_names_of_the_packages_modules_are_those_that_python_finds():
    differing = {}
    for path in SOURCES:
        code = ast.unparse(ast.fix_missing_locations(WithoutStrings().visit(ast.parse(path.read_text()))))
        top = symtable.symtable(code, str(path), "exec")
        expected = {each.get_name() for each in top.get_symbols() if each.is_referenced()}
        expected = expected.union(*(globals_of(child) for child in top.get_children()))
        differing[path] = {name for name in uses(code) ^ expected if not name.startswith("__")}
    assert len(differing) > 100 and not {path: names for path, names in differing.items() if names}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(a, b=c): return a + b + d", {"c", "d"}),
        ("def f():\n    x = 1\n    def g(): return x + y\n    return g", {"y"}),
        ("class A(B):\n    size = 1\n    def f(self): return size", {"B", "size"}),
        ("class A:\n    size: int = 1\n    other = size", {"int"}),
        ("class A:\n    size = size\n    def other(self, x=other): return size", {"size", "other"}),
        ("x = [a for a in b if (c := a)]", {"b"}),
        ("def f():\n    x = [a for a in b if (c := a)]\n    return c, d", {"b", "d"}),
        ("def f(): return {a: n for a in b for n in a if m}", {"b", "m"}),
        ("def f():\n    global n\n    n = n + 1", {"n"}),
        ("f = lambda a, *b, c=d: a + e", {"d", "e"}),
        ("try:\n    f()\nexcept E as error:\n    print(error)", {"f", "E", "print", "error"}),
        ("def f():\n    with open(p) as q:\n        q.r\n    for i in range(3): i", {"open", "p", "range"}),
        ("def f(a: 'A[B]') -> \"C\": pass", {"A", "B", "C"}),
        ("def f(a: Literal['b']): pass", {"Literal"}),
        ("def f(x):\n    match x:\n        case {'a': b, **c}: return b, c, d", {"d"}),
        ("def f():\n    import a.b\n    return a, b", {"b"}),
        ("def f():\n    x = 0\n    def g():\n        nonlocal x\n        x = y", {"y"}),
    ],
)
def test_rules_of_scope(code, expected):
    assert uses(code) == expected


def test_what_is_bound():
    code = "import a.b, c as d\ne, (f, *g) = 1, (2, 3)\ndef h(i): j = 1\nfor k in l: m: int = 1\nn.o = p\n"
    assert bound_names(ast.parse(code).body) == {"a", "d", "e", "f", "g", "h", "k", "m"}


def test_names_that_are_hidden_where_another_stands():
    (node,) = ast.parse("def f(a):\n    b = c\n    return [c for d in a]").body
    hidden = [each.hidden for each in module_names(node) if each.name == "c"]
    assert hidden == [{"a", "b"}, {"a", "b", "d"}]


def test_an_import_within_a_function_is_told_apart():
    (node,) = ast.parse("def f():\n    from .a import b\n    return b + c").body
    found = {each.name: each.deferred for each in module_names(node) if not each.binds}
    assert found["b"].module == "a" and found["c"] is None
