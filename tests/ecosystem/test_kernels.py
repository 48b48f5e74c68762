"""Products along the sequence in a repository of kernels, loaded by the library `kernels` from a folder."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.import_utils import is_kernels_available

from hf_seqmix.hub import export
from hf_seqmix.modules.products import PRODUCTS
from tests.ecosystem.tiny import tiny_model

pytestmark = pytest.mark.ecosystem("kernels")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "publishing"
FAMILIES = {"tnn": "ForCausalLM", "ski_tnn": "ForMaskedLM", "poly_transformer": "ForCausalLM"}

needs_kernels_of_transformers = pytest.mark.skipif(
    not is_kernels_available(), reason="this release of transformers refuses the installed release of kernels"
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
        from kernel_repository import write_repository

    return write_repository(tmp_path_factory.mktemp("kernels") / "repository", "someone/seqmix")


@pytest.fixture(scope="module")
def kernel(repository) -> ModuleType:
    from kernels import get_local_kernel

    return get_local_kernel(repository)


@pytest.fixture(scope="module")
def mapping(repository) -> dict:
    from kernels import LocalLayerRepository

    return {
        product.kernel_layer_name: {"cpu": LocalLayerRepository(repository, layer_name=product.__name__)}
        for product in PRODUCTS
    }


def homes(model) -> set[str]:
    """The modules of Python in which the forwards of a model's products stand."""
    return {
        module.forward.__func__.__module__
        for module in model.modules()
        if getattr(module, "kernel_layer_name", "").startswith("SeqMix")
    }


def test_settings_of_the_builder_are_read_by_its_parser(repository):
    rust = pytest.importorskip("kernels._rust", reason="kernels before 0.17 has no parser of build.toml")
    assert [str(backend).lower() for backend in rust.Build.open(repository).general.backends] == [
        "cpu",
        "cuda",
        "rocm",
    ]


# kernels before 0.17 warns of the activations of transformers, which have names and no kernels here
@pytest.mark.filterwarnings("ignore:\\nNo kernel mapping found:UserWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_calls_the_loaded_layers_and_computes_the_same(kernel, mapping, family):
    from kernels import Mode, kernelize, use_kernel_mapping

    def run(model):
        model.zero_grad()
        output = model(ids, labels=ids)
        output.loss.backward()
        return output.logits, [parameter.grad for parameter in model.parameters()]

    model = tiny_model(family, FAMILIES[family])
    ids = torch.randint(300, (2, 37))
    names, expected = list(model.state_dict()), run(model)
    with use_kernel_mapping(mapping):
        kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cpu")
    assert homes(model) == {f"{kernel.__name__}.layers"}
    assert list(model.state_dict()) == names
    logits, gradients = run(model)
    assert torch.equal(logits, expected[0])
    torch.testing.assert_close(gradients, expected[1], rtol=0, atol=0)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids).logits, expected[0], rtol=1e-4, atol=1e-5)


def test_an_exported_model_has_the_names(tmp_path):
    folder = export(tiny_model("tnn"), None, tmp_path / "exported")
    assert 'kernel_layer_name = "SeqMixToeplitzProduct"' in (folder / "modeling_tnn.py").read_text()


@needs_kernels_of_transformers
def test_from_pretrained_takes_them(kernel, mapping, tmp_path):
    from kernels import use_kernel_mapping

    tiny_model("tnn").save_pretrained(tmp_path)
    with use_kernel_mapping(mapping):
        model = AutoModelForCausalLM.from_pretrained(tmp_path, use_kernels=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert homes(model) == {f"{kernel.__name__}.layers"} and homes(plain) == {"hf_seqmix.modules.products"}
    ids = torch.randint(300, (2, 9))
    assert torch.equal(model(ids).logits, plain(ids).logits)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **options), plain.generate(ids, **options))
