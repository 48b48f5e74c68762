"""What a package's modules import, and what their statements do, read from the source."""

from pathlib import Path

import pytest

import hf_seqmix
from hf_seqmix.hub.concatenation.source_modules import External, Package
from tests.hub.concatenation.test_writing import write


@pytest.fixture(scope="module")
def package():
    return Package(Path(hf_seqmix.__file__).parent)


def test_names_are_followed_through_subpackages(package):
    backbone = package["models", "backbone"]
    assert backbone.meaning("past_length") == (("cache", "history"), "past_length")
    assert backbone.meaning("Tensor") == External("torch", "Tensor")
    assert backbone.meaning("len") is None
    assert backbone.meaning("SeqMixModel") == (("models", "backbone"), "SeqMixModel")


def test_modules_come_after_those_that_they_import(package):
    order = package.import_order([("models", "tnn", "modeling_tnn")])
    places = {module: number for number, module in enumerate(order)}
    assert order[-1] == ("models", "tnn", "modeling_tnn") and ("cache",) not in places
    assert all(places[each] < places[module] for module in order for each in package[module].imported)


def test_what_functions_import_comes_last(package):
    order = package.import_order([("models", "images", "registration")])
    assert order.index(("models", "images", "registration")) < order.index(("models", "images", "processing"))


def test_statements_have_their_comments_and_documentation(tmp_path):
    text = '"""Doc."""\n\nimport a\n\n# About b.\nb = 1\n"""More of b."""\n\n\n'
    text += "@c\n# Within.\ndef d():\n    pass\n\n\nd.e(f)\ng(d)\n"
    source = write(tmp_path, {"m.py": text})["m",]
    assert source.docstring == "Doc."
    assert [(each.text, each.gap) for each in source.statements] == [
        ('# About b.\nb = 1\n"""More of b."""\n', 1),
        ("@c\n# Within.\ndef d():\n    pass\n", 2),
        ("d.e(f)\n", 2),
        ("g(d)\n", 0),
    ]
    assert [(each.is_effect, set(each.anchors)) for each in source.statements] == [
        (False, set()),
        (False, set()),
        (True, {"d"}),
        (True, set()),
    ]


@pytest.mark.parametrize(
    ("code", "effect", "anchors"),
    [
        ("@a.b\ndef f(): pass", True, {"a"}),
        ("@a.b(c)\ndef f(): pass", True, {"a"}),
        ("@a(b)\ndef f(): pass", False, set()),
        ("def _(): pass", True, set()),
        ("a = b(c)", False, set()),
        ("a[b] = c", True, {"a"}),
        ("a.b.c += d", True, {"a"}),
        ("a += d", True, set()),
        ("for a in b: c(a)", True, set()),
        ("if a:\n    from b import c", False, set()),
    ],
)
def test_effects(tmp_path, code, effect, anchors):
    (statement,) = write(tmp_path, {"m.py": code})["m",].statements
    assert (statement.is_effect, statement.anchors) == (effect, anchors)
