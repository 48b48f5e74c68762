"""Several modules as few files: the same values, each name once, and nothing that is not needed."""

import ast
import importlib
import sys
import textwrap

import pytest

from hf_seqmix.hub.concatenation.source_modules import Package
from hf_seqmix.hub.concatenation.writing import File, concatenate

MODULES = {
    "sums.py": '''
        """Sums."""

        import math
        from os.path import join as joined

        __all__ = ["LIMIT", "add", "unused"]

        # How much at most.
        LIMIT = 10
        """As a number."""

        Pair = tuple[int, int]


        def _check(x):
            return min(x, LIMIT)


        def add(pair: "Pair") -> int:
            """Add."""
            return _check(sum(pair)) + len(joined("a", "b"))


        def unused():
            return math.pi
        ''',
    "products.py": '''
        """Products.

        Of two numbers.
        """

        from .sums import LIMIT as MOST, add as plus
        from .registry import register

        Pair = tuple[int, int]


        def _check(x):
            """Return x, with _check beside it."""
            LIMIT = f"{x}" f"{min(x, MOST)}" f"{plus((1, 1))}"
            return LIMIT


        @register
        class Product:
            _check = staticmethod(_check)

            def of(self, pair: Pair, plus=lambda add: add) -> str:
                from .sums import add as addition

                return _check(pair[0] * plus(pair[1])) + str(addition(pair))


        def sum(x):
            return x


        def other():
            return 1


        register(other)
        ''',
    "registry.py": """
        from collections.abc import Callable

        KNOWN = []
        _number = 0


        def register(f: Callable) -> Callable:
            global _number
            _number += 1
            KNOWN.append((_number, f.__name__))
            return f


        def number():
            return _number


        class Table:
            def __init__(self):
                self.held = {}

            def enter(self, f):
                self.held[f.__name__] = f
                return f


        TABLE = Table()
        FREE = Table()


        @TABLE.enter
        def _(x):
            return x


        @TABLE.enter
        def entered(x):
            return x


        FREE.enter(number)
        TABLE.held["three"] = 3
        """,
    "sub/__init__.py": "from ..products import Product, sum\n",
    "top.py": """
        from .registry import KNOWN, TABLE, number
        from .sub import Product, sum
        from .low import low

        if len(KNOWN) >= 0:
            from os.path import basename, dirname


        def result():
            return low(), Product().of((3, 4)), sum(5), number(), KNOWN, sorted(TABLE.held), basename("a/b")
        """,
    "low.py": """
        from .registry import KNOWN
        from .sums import LIMIT


        def low():
            from .sums import add as plus

            return LIMIT, plus((1, 2)), len(KNOWN)
        """,
}


def write(folder, modules):
    for name, text in modules.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    return Package(folder)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Imports a module of a folder under `tmp_path` as one of a package."""

    def loaded(name, module):
        for folder in [tmp_path / name, *(path for path in (tmp_path / name).rglob("*") if path.is_dir())]:
            (folder / "__init__.py").touch()
        importlib.invalidate_caches()
        return importlib.import_module(f"{name}.{module}")

    monkeypatch.syspath_prepend(tmp_path)
    yield loaded
    for each in [each for each in sys.modules if each.partition(".")[0] in ("whole", "flat")]:
        del sys.modules[each]


@pytest.fixture
def made(tmp_path):
    package = write(tmp_path / "whole", MODULES)
    found = concatenate(package, [File("first", (("low",),)), File("second", (("top",),))])
    (tmp_path / "flat").mkdir()
    for name, each in found.items():
        (tmp_path / "flat" / f"{name}.py").write_text(each.text)
    return {name: each.text for name, each in found.items()}


def test_the_same_comes_out(made, load):
    whole, flat = load("whole", "top"), load("flat", "second")
    assert flat.result() == whole.result()
    assert whole.result()[4] == [(1, "Product"), (2, "other")]


def test_what_is_kept(made):
    together = "".join(made.values())
    for name in ("unused", "FREE", "math"):
        assert name not in together
    assert "def other" in together  # registered, whatever it is for
    assert together.count('TABLE.held["three"] = 3') == together.count("\nPair = ") == together.count("def add(") == 1
    assert "from os.path import basename\n" in made["second"] and "dirname" not in together


def test_each_file_has_its_own_and_imports_the_rest(made):
    assert "def _check_sums" in made["first"] and "def _check_products" in made["second"]
    assert "LIMIT_SUMS = 10" in made["first"] and "KNOWN = []" in made["first"]
    assert "from .first import KNOWN, LIMIT_SUMS, Pair, add, low\n" in made["second"]
    assert "def low():\n    return LIMIT_SUMS, add((1, 2)), len(KNOWN)\n" in made["first"]
    # A variable that functions set anew would be another one in another file.
    assert "_number = 0" in made["second"] and "def number" in made["second"] and "def register" in made["second"]


def test_names_are_replaced_where_they_are_the_modules(made):
    text = made["second"]
    assert 'LIMIT = f"{x}" f"{min(x, LIMIT_SUMS)}" f"{add((1, 1))}"' in text  # where LIMIT is another
    assert "_check = staticmethod(_check_products)" in text
    assert '"""Return x, with _check beside it."""' in text
    assert "plus=lambda add: add" in text and "_check_products(pair[0] * plus(pair[1])) + str(add(pair))" in text
    assert "def sum(x)" not in text and "_check_sums(sum(pair))" in made["first"]  # the built-in one


def test_comments_and_docstrings_come_with_it(made):
    assert "# --- sums.py ---\n# Sums.\n" in made["first"]
    assert "# How much at most.\nLIMIT" in made["first"] and '"""As a number."""' in made["first"]
    assert "# --- products.py ---\n# Products.\n#\n# Of two numbers.\n\n\ndef _check_products(x):" in made["second"]
    assert not any(
        isinstance(node, ast.Assign) and "__all__" in ast.unparse(node) for node in ast.parse(made["second"]).body
    )


def test_a_variable_is_not_parted_from_what_sets_it(tmp_path, load):
    modules = {
        "state.py": """
            _on = False


            def set_on():
                global _on
                _on = True


            def is_on():
                return _on
            """,
        "a.py": "from .state import is_on\n\n\ndef ask():\n    return is_on()\n",
        "b.py": "from .a import ask\nfrom .state import set_on\n\n\ndef result():\n    set_on()\n    return ask()\n",
    }
    package = write(tmp_path / "whole", modules)
    (tmp_path / "flat").mkdir()
    for name, each in concatenate(package, [File("first", (("a",),)), File("second", (("b",),))]).items():
        (tmp_path / "flat" / f"{name}.py").write_text(each.text)
    assert load("flat", "second").result() is True
    assert "global _on" in (tmp_path / "flat" / "first.py").read_text()


def test_registering_modules_bring_no_more_than_they_register(tmp_path):
    modules = {
        "table.py": "TABLE = {}\n\n\ndef register(name, value):\n    TABLE[name] = value\n    return value\n",
        "one.py": """
            from .table import register


            def build():
                return 1


            def not_built():
                return 2


            ROW = register("one", build)
            """,
        "top.py": "from .table import TABLE\n",
    }
    package = write(tmp_path / "whole", modules)
    text = concatenate(package, [File("all", (("top",),), registering=(("one",),))])["all"].text
    assert "def build" in text and "ROW = register" in text and "not_built" not in text
    text = concatenate(package, [File("all", (("top",),), names=((("one",), "not_built"),))])["all"].text
    assert "not_built" in text and "ROW" not in text


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"a.py": "from .b import *\n", "b.py": ""}, "imports '\\*', a module or all its names"),
        ({"a.py": "from . import b\n", "b.py": ""}, "imports 'b', a module or all its names"),
        ({"a.py": "from whole.b import c\n", "b.py": "c = 1\n"}, "imports whole.b by its full name"),
        ({"a.py": "def f():\n    import whole.b\n", "b.py": "c = 1\n"}, "imports whole.b by its full name"),
        ({"a.py": "import os.path\n"}, "imports os.path without a name of its own"),
        ({"a.py": "if True:\n    from .b import c\n", "b.py": "c = 1\n"}, "under a condition"),
        ({"a.py": "from .b import c\nd = c\n", "b.py": ""}, "does not define 'c'"),
        ({"a.py": "from .b import c\nd = c\n", "b/__init__.py": "c = 1\n"}, "defines 'c' itself"),
        ({"a.py": "x = missing\n"}, "lack missing"),
    ],
)
def test_what_cannot_be_written_so_is_refused(tmp_path, modules, message):
    package = write(tmp_path / "whole", modules)
    with pytest.raises(ValueError, match=message):
        concatenate(package, [File("all", (("a",),))])
