"""What runs where nothing is installed but torch, transformers, safetensors and what these need themselves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hf_seqmix

REPOSITORY = Path(hf_seqmix.__file__).parents[1]

# What the extras bring, what these need, and what other parts of the package or its tests use.
OPTIONAL = [
    "accelerate",
    "datasets",
    "dill",
    "evaluate",
    "hypothesis",
    "lm_eval",
    "matplotlib",
    "multiprocess",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pandas",
    "peft",
    "PIL",
    "pyarrow",
    "pytest",
    "scipy",
    "sklearn",
    "torchao",
    "torchvision",
    "triton",
    "trl",
    "xxhash",
]

HIDE = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""

EVERY_MODULE = """
import importlib, pkgutil
import hf_seqmix
from hf_seqmix.ops import kernels

for part in ("ops", "modules", "models", "cache", "hub"):
    package = importlib.import_module(f"hf_seqmix.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        # Triton's kernels, and the one file that needs Pillow.
        if not {"kernels", "precision", "processing"} & set(module.name.split(".")):
            importlib.import_module(module.name)

# Names of version 0.1 for modules of kernels: those that need Triton raise an ImportError.
for old, new in kernels._MOVED.items():
    try:
        importlib.import_module(f"hf_seqmix.ops.kernels.{old}")
    except ImportError:
        assert "kernels" in new, old
    else:
        assert "kernels" not in new, old
"""

CHECK = f"""
found = sorted(name for name in {OPTIONAL!r} if name in sys.modules)
assert not found, found
"""


README = "\n".join(
    re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.DOTALL)
)


A_SCRIPT = """
import runpy
sys.argv = ["pretrain.py", "--help"]
try:
    runpy.run_path(SCRIPT, run_name="__main__")
except SystemExit as error:
    assert error.code.startswith("pretrain.py needs the package "), error.code
    assert error.code.endswith(", which is not installed: pip install 'hf-seqmix[train]'"), error.code
else:
    raise AssertionError("a script runs without extras")
"""


def test_runs_without_extras(tmp_path):
    """What a script says is checked in the same process."""
    (tmp_path / "model_cards").symlink_to(REPOSITORY / "model_cards")
    scripts = REPOSITORY / "scripts"
    code = README + EVERY_MODULE + CHECK + f"SCRIPT = {str(scripts / 'pretrain.py')!r}\n" + A_SCRIPT
    (tmp_path / "without_extras.py").write_text(f"HIDDEN = {OPTIONAL!r}\n" + HIDE + code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "without_extras.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{scripts}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "package", "extra"),
    [
        ("run_benchmarks.py", "datasets", "train"),
        ("finetune.py", "matplotlib", "train"),
        ("pretrain.py", "accelerate", "train"),
    ],
)
def test_a_script_names_the_extra_that_it_lacks(tmp_path, script, package, extra):
    path = REPOSITORY / "scripts" / script
    code = f"import runpy\nsys.argv = [{script!r}, '--help']\nrunpy.run_path({str(path)!r}, run_name='__main__')\n"
    hidden = [package, "peft"]  # which imports accelerate where both are installed
    (tmp_path / "without_extra.py").write_text(f"HIDDEN = {hidden!r}\n" + HIDE + code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "without_extra.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{path.parent}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = f"{script} needs the package {package}, which is not installed: pip install 'hf-seqmix[{extra}]'\n"
    assert (done.returncode, done.stderr) == (1, said)
