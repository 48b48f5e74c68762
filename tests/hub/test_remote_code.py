"""The flattened code of a family: what it holds, what it leaves out, and what its global names carry."""

import ast
import re

import pytest
from torch import nn
from transformers.dynamic_module_utils import get_imports, get_relative_imports

from hf_seqmix import FDTNNConfig, SeqMixConfig, SeqMixHybridConfig, SKITNNConfig, TNNConfig, register_mixer
from hf_seqmix.hub.import_graph import import_closure, relative_imports
from hf_seqmix.hub.remote_code import remote_code
from hf_seqmix.models.auto import FAMILIES
from hf_seqmix.models.configuration import MIXER_CONFIGS
from hf_seqmix.models.mixers import MIXERS

IMAGE = {"image_size": 8, "is_causal": False}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_every_file_imports_its_siblings_and_the_required_packages_alone(family, tmp_path):
    code = remote_code(family.config_class())
    for name, text in code.files.items():
        (tmp_path / name).write_text(text)
    for name, text in code.files.items():
        compile(text, name, "exec")
        # As the library looks for them: what it does not see it does not copy.
        assert {f"{module}.py" for module in get_relative_imports(tmp_path / name)} <= set(code.files)
        outside = set(get_imports(tmp_path / name))
        assert not outside & {"hf_seqmix", "numpy", "PIL", "triton", "accelerate", "datasets", "scipy"}, name
        assert not any(isinstance(node, ast.ImportFrom) and node.level > 1 for node in ast.walk(ast.parse(text))), name


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_auto_map_names_every_head_and_each_class_is_there(family):
    code = remote_code(family.config_class())
    heads = {suffix for suffix in family.classes if suffix != "Model"}
    assert set(code.auto_map) == {"AutoConfig", "AutoModel", *(f"AutoModel{suffix}" for suffix in heads)}
    for reference in code.auto_map.values():
        file, name = reference.split(".")
        assert f"class {name}(" in code.files[f"{file}.py"]


def test_a_family_brings_no_other():
    text = remote_code(TNNConfig())
    words = ("ski_", "fd_", "ipa", "poly", "hybrid", "image_processing")
    assert not [name for name in text.files if any(word in name for word in words)]
    assert not text.processor_map
    images = remote_code(TNNConfig(**IMAGE))
    assert set(images.files) - set(text.files) == {"image_processing_seqmix.py"}
    assert images.processor_map == {"AutoImageProcessor": "image_processing_seqmix.SeqMixImageProcessor"}


def test_global_names_carry_the_hash_of_the_code():
    first, second = remote_code(FDTNNConfig()), remote_code(SKITNNConfig())
    assert first.version != second.version
    assert remote_code(FDTNNConfig(hidden_size=64)) == first
    for code in (first, second):
        text = "".join(code.files.values())
        operators = set(re.findall(r'"(\w+)::toeplitz_\w+"', text))
        assert operators == {f"hf_seqmix_{code.version}"}
    assert f'HISTORY = "seqmix_history_{first.version}"' in first.files["seqmix_cache_history.py"]
    assert f'"seqmix_history_{first.version}"' in first.files["seqmix_models_toeplitz_configuration.py"]


def test_a_hybrid_brings_the_mixers_that_it_names():
    control = remote_code(SeqMixHybridConfig())
    assert not any(name.startswith("modeling_") and name != "modeling_hybrid.py" for name in control.files)
    mixed = remote_code(
        SeqMixHybridConfig(mixer_types=["tnn", "attention"], mixer_configs={"ipa": {"num_centers": 4}})
    )
    assert {name for name in mixed.files if name.startswith("modeling_")} == {
        "modeling_hybrid.py",
        "modeling_tnn.py",
        "modeling_ipa.py",
    }


def test_what_is_not_the_packages_own_is_refused(monkeypatch):
    class OtherConfig(SeqMixConfig):
        model_type = "other"

    with pytest.raises(ValueError, match="OtherConfig is not a configuration of the package's own families"):
        remote_code(OtherConfig())
    for table in (MIXERS, MIXER_CONFIGS):
        monkeypatch.setitem(table, "mine", None)
    register_mixer("mine", TNNConfig, lambda config, layer_idx: nn.Identity())
    with pytest.raises(ValueError, match="mine, registered from outside the package"):
        remote_code(SeqMixHybridConfig(mixer_types=["mine"]))


def test_imports_are_followed_through_subpackages_and_into_functions():
    names = {
        given: module for statement in relative_imports(("models", "backbone")) for module, _, given in statement.names
    }
    assert names["past_length"] == ("cache", "history")
    lazy = [statement for statement in relative_imports(("models", "image_registration")) if statement.indent]
    assert lazy and ("models", "image_processing") in import_closure([("models", "image_registration")])
    assert ("cache",) not in import_closure([("models", "backbone")])
