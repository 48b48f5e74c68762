"""The repository of kernels, without the library that loads it; tests/ecosystem/test_kernels.py has the library."""

import ast
import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hf_seqmix import toeplitz_matmul
from hf_seqmix.modules.products import PRODUCTS
from tests.markers import needs_kernels

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "publishing" / "kernel_repository.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("kernel_repository", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def repository(script, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kernels") / "repository"
    assert script.main([str(folder), "--repo-id", "someone/seqmix-alone", "--version", "3"]) == 0
    return folder


@pytest.fixture(scope="module")
def kernel(repository) -> ModuleType:
    """The variant of CPUs, imported as the library imports it: by a name that is in no path."""
    folder = repository / "build" / "torch-cpu"
    name = json.loads((folder / "metadata.json").read_text())["id"]
    specification = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_each_backend_has_the_code_and_says_what_it_is(script, repository):
    settings = tomllib.loads((repository / "build.toml").read_text())
    assert settings["general"]["backends"] == list(script.BACKENDS) and "torch-noarch" in settings
    source = repository / "torch-ext" / "seqmix_alone"
    code = {path.relative_to(source): path.read_bytes() for path in source.rglob("*.py")}
    assert Path("toeplitz/kernels/tiles.py") in code
    ids = set()
    for backend in script.BACKENDS:
        folder = repository / "build" / f"torch-{backend}"
        assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.py")} == code
        metadata = json.loads((folder / "metadata.json").read_text())
        assert metadata["backend"] == {"type": backend} and metadata["version"] == 3
        ids.add(metadata["id"])
    assert len(ids) == len(script.BACKENDS) and all(name.isidentifier() for name in ids)
    assert 'KernelConfig({"SeqMixToeplitzProduct": layer})' in (repository / "README.md").read_text()


def test_the_code_needs_nothing_but_itself_torch_and_triton(repository):
    roots = set()
    for path in (repository / "build" / "torch-cuda").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                roots |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                roots.add(str(node.module).partition(".")[0])
    assert roots - sys.stdlib_module_names == {"torch", "triton"}


@needs_kernels
def test_layers_compute_what_the_modules_do_by_kernels_of_their_own(kernel):
    x, taps = torch.randn(2, 3, 21, requires_grad=True), torch.randn(3, 21, requires_grad=True)
    layer = kernel.layers.ToeplitzProduct()
    expected = toeplitz_matmul(x, taps)
    assert torch.equal(layer(x, taps), expected)
    tiles = f"{kernel.__name__}.toeplitz.kernels.tiles"
    with kernel.common.crossovers.forced(toeplitz_causal="tiles"):
        y = layer(x, taps)
        gradients = torch.autograd.grad(y.square().sum(), (x, taps))
    assert tiles in sys.modules
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        gradients, torch.autograd.grad(expected.square().sum(), (x, taps)), rtol=1e-4, atol=1e-4
    )


def test_every_module_of_the_repository_can_be_imported(kernel):
    root = Path(kernel.__file__).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        importlib.import_module(".".join((kernel.__name__, *(part for part in parts if part != "__init__"))))
    assert all(hasattr(kernel.layers, product.__name__) for product in PRODUCTS)


def test_names_that_do_not_go_are_refused_in_a_line(script, repository, tmp_path, capsys):
    assert script.main([str(repository), "--repo-id", "someone/seqmix"]) == 2
    assert "exists, and nothing is replaced" in capsys.readouterr().err
    for name in ("seqmix", "someone/Seq_mix", "someone/x-"):
        assert script.main([str(tmp_path / "new"), "--repo-id", name]) == 2
        assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"a\.py names hf_seqmix"):
        script.without_package("import hf_seqmix\n", "a.py")
