"""The package as a whole: its public names, what its import registers and loads, and what type checkers see."""

import subprocess
import sys
from pathlib import Path

import pytest

import hf_seqmix

PARTS = ("analysis", "cache", "data", "hub", "metrics", "models", "modules", "ops", "training")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # The library imports torchao wherever it is installed, which then speaks of kernels of its own.
    others = ("torchao", "torch/utils/_pytree.py")
    assert not [line for line in done.stderr.splitlines() if not any(name in line for name in others)]
    return done.stdout


def test_import_registers_every_family_and_loads_nothing_heavy(tmp_path):
    hf_seqmix.TNNConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1).save_pretrained(tmp_path)
    hf_seqmix.SeqMixImageProcessor(num_channels=1).save_pretrained(tmp_path / "processor")
    loaded = run(
        f"""
import sys
import torch
from transformers import AutoImageProcessor, AutoModelForCausalLM, DynamicCache, GenerationMixin, PreTrainedModel
before = set(sys.modules)
import hf_seqmix
heavy = ("datasets", "evaluate", "matplotlib", "peft", "sklearn", "scipy", "triton", "hf_seqmix.data",
         "hf_seqmix.metrics", "hf_seqmix.analysis", "hf_seqmix.training", "hf_seqmix.hub")
print(*[name for name in set(sys.modules) - before if name in heavy])

if not getattr(AutoImageProcessor, "is_dummy", False):  # a release that wants torchvision
    processor = AutoImageProcessor.from_pretrained({str(tmp_path / "processor")!r})
    assert type(processor) is hf_seqmix.SeqMixImageProcessor

from transformers import AutoConfig, AutoModelForSequenceClassification
config = AutoConfig.from_pretrained({str(tmp_path)!r})
assert type(AutoModelForCausalLM.from_config(config)).__name__ == "TNNForCausalLM"
assert type(AutoModelForSequenceClassification.from_config(config)).__name__ == "TNNForSequenceClassification"
hybrid = hf_seqmix.SeqMixHybridConfig(vocab_size=9, hidden_size=16, mixer_types=["tnn", "attention"])
assert type(AutoModelForCausalLM.from_config(hybrid)) is hf_seqmix.SeqMixHybridForCausalLM
"""
    )
    assert not loaded.split(), f"loaded at import: {loaded.split()}"


def test_parts_are_attributes():
    for name in PARTS:
        assert getattr(hf_seqmix, name).__name__ == f"hf_seqmix.{name}"
        assert name in dir(hf_seqmix)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = hf_seqmix.no_such_name


def test_public_names_exist():
    assert {"TNNForCausalLM", "TNNConfig", "register_family", "toeplitz_matmul", "__version__"} <= set(
        hf_seqmix.__all__
    )
    assert not {*PARTS} & {*hf_seqmix.__all__}  # `import *` loads no part that needs an extra
    for name in hf_seqmix.__all__:
        assert getattr(hf_seqmix, name) is not None


def test_every_model_is_public():
    for family in hf_seqmix.models.auto.FAMILIES:
        for cls in (family.config_class, family.pretrained, *family.classes.values()):
            assert getattr(hf_seqmix, cls.__name__) is cls
            assert f"class {cls.__name__}(" in Path(sys.modules[cls.__module__].__file__).read_text(encoding="utf-8")


@pytest.mark.slow
def test_type_checkers_know_the_classes(tmp_path):
    revealed = {
        'TNNForCausalLM.from_pretrained("a")': "hf_seqmix.models.tnn.modeling_tnn.TNNForCausalLM",
        "SKITNNForMaskedLM(SKITNNConfig()).config": "hf_seqmix.models.ski_tnn.configuration_ski_tnn.SKITNNConfig",
        "TNNForCausalLM(TNNConfig()).model": "hf_seqmix.models.backbone.SeqMixModel",
        "IPAForCausalLM(IPAConfig()).copy_head": "hf_seqmix.models.heads.copy_head.CopyHead | None",
        "toeplitz_matmul(torch.ones(1), torch.ones(1))": "torch._tensor.Tensor",
    }
    path = tmp_path / "user.py"
    path.write_text(
        "import torch\nfrom hf_seqmix import *\n" + "".join(f"reveal_type({expression})\n" for expression in revealed)
    )
    # With the settings and the cache of the repository's own check, which has read the library already.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(path)],
        cwd=Path(hf_seqmix.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split('"')[1] for line in done.stdout.splitlines() if "Revealed" in line] == list(revealed.values())
