"""The code of a family in two files: what it holds, what it leaves out, and what its global names carry."""

import ast
import builtins
import re
import subprocess
import symtable
import sys
from collections import Counter
from pathlib import Path

import pytest
from torch import nn
from transformers.dynamic_module_utils import get_imports, get_relative_imports

import hf_seqmix
from hf_seqmix import FDTNNConfig, SeqMixConfig, SeqMixHybridConfig, SKITNNConfig, TNNConfig, register_mixer
from hf_seqmix.hub.remote_code import remote_code
from hf_seqmix.models.auto import FAMILIES
from hf_seqmix.models.configuration import MIXER_CONFIGS
from hf_seqmix.models.mixers import MIXERS

# The exports of that worker have made the code of every family.
pytestmark = pytest.mark.xdist_group("exported")

IMAGE = {"image_size": 8, "is_causal": False}
CONFIGS = [
    *(family.config_class() for family in FAMILIES),
    FDTNNConfig(**IMAGE),
    SeqMixHybridConfig(mixer_types=["tnn", "attention", "ski_tnn", "ipa", "fd_tnn", "poly_transformer"], **IMAGE),
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
@pytest.mark.one_in(2)
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


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
@pytest.mark.one_in(2)
def test_there_are_two_files_and_an_image_processor_for_images(config):
    short = type(config).__module__.rpartition("configuration_")[2]
    expected = [f"configuration_{short}.py", f"modeling_{short}.py"]
    expected += ["image_processing_seqmix.py"] if config.image_shape else []
    code = remote_code(config)
    assert list(code.files) == expected
    modeling = ast.parse(code.files[expected[1]])
    siblings = [node.module for node in ast.walk(modeling) if isinstance(node, ast.ImportFrom) and node.level]
    assert siblings == [f"configuration_{short}"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_no_name_is_bound_twice_or_missing(config):
    """By Python's own tables of symbols, apart from what the code was made with."""
    for name, text in remote_code(config).files.items():
        top = symtable.symtable(text, name, "exec")
        assigned = {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
        waiting, used = [top], set()
        while waiting:
            table = waiting.pop()
            used |= {each.get_name() for each in table.get_symbols() if each.is_referenced() and each.is_global()}
            waiting += table.get_children()
        missing = {each for each in used - assigned - set(dir(builtins)) if not each.startswith("__")}
        assert not missing, name
        times: Counter[str] = Counter()
        for node in ast.parse(text).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                times[node.name] += 1
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                times.update(each.id for part in targets for each in ast.walk(part) if isinstance(each, ast.Name))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                times.update(alias.asname or alias.name for alias in node.names)
        assert not [each for each, number in times.items() if number > 1 and each != "_"], name


def test_the_code_is_clean(tmp_path):
    """No unused import, no name that is not there, imports in order."""
    for config in CONFIGS:
        folder = tmp_path / f"{type(config).__name__}{config.image_size}"
        folder.mkdir()
        for name, text in remote_code(config).files.items():
            (folder / name).write_text(text)
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--isolated", "--select=F,I", "--line-length=119"]
    done = subprocess.run([*ruff, "--target-version=py311", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_header_says_what_it_is_made_from():
    for text in remote_code(TNNConfig()).files.values():
        header = text.partition("\n\n")[0]
        assert f"Made from hf_seqmix {hf_seqmix.__version__}" in header and "License: Apache-2.0" in header
        listed = re.findall(r"[\w/]+\.py", header)
        assert listed == re.findall(r"^# --- (.*) ---$", text, flags=re.MULTILINE)
    assert listed[-1] == "models/tnn/modeling_tnn.py" and "ops/toeplitz/product.py" in listed


def test_what_no_class_reaches_is_left_out():
    """What serves exporters to ONNX, other families, and whoever forces an implementation."""
    text = "".join(remote_code(TNNConfig()).files.values())
    for name in (
        "real_valued",
        "forced",
        "calibrate_static_norms",
        "ski_matmul",
        "linear_attention",
        "toeplitz_matmul_dense",
    ):
        assert f"def {name}(" not in text
    for name in (
        "ConvolutionLayer",
        "ModesLayer",
        "HistoryLayer",
        "HistoryStaticLayer",
        "TNNForTokenClassification",
        "toeplitz_matmul",
        "kernel_module",
    ):
        assert re.search(rf"^(class|def) {name}\b|^    {name},$", text, flags=re.MULTILINE), name


def test_a_family_brings_no_other():
    text = remote_code(TNNConfig())
    modules = re.findall(r"^# --- (.*) ---$", "".join(text.files.values()), flags=re.MULTILINE)
    words = ("/ski", "fd_", "ipa", "poly", "hybrid", "images/processing", "piecewise")
    assert not [name for name in modules if any(word in name for word in words)]
    assert not text.processor_map
    text, images = remote_code(FDTNNConfig()), remote_code(FDTNNConfig(**IMAGE))
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
    assert f'CONVOLUTION = "seqmix_convolution_{first.version}"' in first.files["modeling_fd_tnn.py"]
    assert f'"seqmix_convolution_{first.version}"' in first.files["configuration_fd_tnn.py"]


def test_a_hybrid_brings_the_mixers_that_it_names():
    def parts(config):
        return {
            name: set(re.findall(r"^# --- (.*) ---$", text, flags=re.MULTILINE))
            for name, text in remote_code(config).files.items()
        }

    own = {
        "configuration_hybrid.py": "models/hybrid/configuration_hybrid.py",
        "modeling_hybrid.py": "models/hybrid/modeling_hybrid.py",
    }
    control = parts(SeqMixHybridConfig())
    mixed = parts(SeqMixHybridConfig(mixer_types=["tnn", "attention"], mixer_configs={"ipa": {"num_centers": 4}}))
    for name, kind in (("configuration_hybrid.py", "configuration_"), ("modeling_hybrid.py", "modeling_")):
        assert {each for each in control[name] if kind in each} == {own[name]}
        families = {f"models/{family}/{kind}{family}.py" for family in ("tnn", "ipa")}
        assert {each for each in mixed[name] if kind in each} == {own[name], *families}


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
