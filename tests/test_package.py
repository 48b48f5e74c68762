"""The package as a whole: what imports what, what loads when, and that it is clean."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hf_seqmix

ROOT = Path(hf_seqmix.__file__).parent

# What each part may import of ours: the parts below it.
ALLOWED = {
    "ops": {"ops"},
    "_compat": set(),
    "_lazy": set(),
    "_version": set(),
    "cache": {"_compat", "ops"},
    "modules": {"modules", "ops", "cache", "_compat"},
    "models": {"models", "modules", "ops", "cache", "_compat"},
    "data": {"data", "models", "modules", "ops", "cache", "_compat", "_version"},
    "metrics": {"metrics", "models", "modules", "ops", "cache", "_compat", "_version"},
    "analysis": {"analysis", "data", "metrics", "models", "modules", "ops", "cache", "_compat", "_version"},
    "hub": {"hub", "analysis", "data", "metrics", "models", "modules", "ops", "cache", "_compat", "_version"},
}


def imports(path: Path) -> set[tuple[str, ...]]:
    """Modules that a file imports, as dotted parts, those of ours made relative to the package."""
    found = set()
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                base = package[: len(package) - node.level + 1]
                found |= (
                    {("hf_seqmix", *base, *module)}
                    if module
                    else {("hf_seqmix", *base, alias.name) for alias in node.names}
                )
            else:
                found.add(module)
    return found


FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for module in imports(path):
        if module[0] != "hf_seqmix":
            continue
        # A metric's file is loaded by path, so it names the package in full; everything else is relative.
        target = module[1] if len(module) > 1 else "hf_seqmix"
        assert target in ALLOWED[part] or target == part, f"{path} imports {'.'.join(module)}"


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.is_relative_to(ROOT / "ops")], ids=lambda path: path.name
)
def test_ops_need_torch_alone(path):
    outside = {module[0] for module in imports(path)} - {"hf_seqmix"} - set(sys.stdlib_module_names)
    assert outside <= ({"torch", "triton"} if path.parent.name == "kernels" else {"torch"})


def test_nothing_imports_the_kernels():
    for path in FILES:
        named = {module[2] for module in imports(path) if module[:2] == ("hf_seqmix", "ops") and len(module) > 2}
        assert "kernels" not in named or path.parent.name == "kernels", path


def test_only_one_file_calls_the_fourier_transform():
    callers = {path.name for path in FILES if "torch.fft." in path.read_text().replace("calls torch.fft.", "")}
    assert callers <= {"fft_conv.py"}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # The library imports torchao wherever it is installed, which then speaks of kernels of its own.
    others = ("torchao", "torch/utils/_pytree.py")
    assert not [line for line in done.stderr.splitlines() if not any(name in line for name in others)]
    return done.stdout


def test_imports_with_torch_transformers_and_safetensors_alone():
    optional = ["accelerate", "datasets", "evaluate", "matplotlib", "peft", "scipy", "sklearn", "triton"]
    run(
        f"""
import sys
for name in {optional!r}:
    sys.modules[name] = None  # importing it raises ImportError
import torch
import hf_seqmix
model = hf_seqmix.TNNForCausalLM(hf_seqmix.TNNConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1))
model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, pad_token_id=0)
"""
    )


def test_import_loads_nothing_heavy():
    loaded = run(
        """
import sys
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationMixin, PreTrainedModel
before = set(sys.modules)
import hf_seqmix
heavy = ("datasets", "evaluate", "matplotlib", "peft", "sklearn", "scipy", "triton", "hf_seqmix.data", "hf_seqmix.metrics",
         "hf_seqmix.analysis")
print(*[name for name in set(sys.modules) - before if name in heavy])
"""
    )
    assert not loaded.split(), f"loaded at import: {loaded.split()}"


def test_models_are_registered_by_the_time_they_can_be_asked_for(tmp_path):
    run(
        f"""
import sys
import hf_seqmix
from transformers import AutoConfig
assert "transformers.modeling_utils" not in sys.modules
hf_seqmix.TNNConfig  # the class alone
assert "transformers.modeling_utils" not in sys.modules
hf_seqmix.TNNConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1).save_pretrained({str(tmp_path)!r})
"""
    )
    run(
        f"""
import hf_seqmix
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
config = AutoConfig.from_pretrained({str(tmp_path)!r})
assert type(AutoModelForCausalLM.from_config(config)).__name__ == "TNNForCausalLM"
assert type(AutoModelForSequenceClassification.from_config(config)).__name__ == "TNNForSequenceClassification"
hybrid = hf_seqmix.SeqMixHybridConfig(vocab_size=9, hidden_size=16, mixer_types=["tnn", "attention"])
assert type(AutoModelForCausalLM.from_config(hybrid)) is hf_seqmix.SeqMixHybridForCausalLM
"""
    )


def test_lazy_parts_are_attributes():
    assert hf_seqmix.data.__name__ == "hf_seqmix.data"
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = hf_seqmix.no_such_name


def test_public_names_exist():
    for name in hf_seqmix.__all__:
        assert getattr(hf_seqmix, name) is not None
