"""`torch.jit.trace`, which converters such as Core ML's begin with: inputs of the traced length, any batch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops import real_valued
from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model
from tests.tolerances import MODEL_TOLERANCE, relative_error

pytestmark = pytest.mark.ecosystem

# Programs of classifiers run without this package below.
HEADS = [pytest.param("ForSequenceClassification", family, marks=pytest.mark.slow) for family in EVERY]
HEADS += [pytest.param("ForCausalLM", family) for family in CAUSAL]


def traced(
    family: str, suffix: str, length: int, **fields: Any
) -> tuple[Any, list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Return a traced model, inputs of two batches, one row of each padded, and the model's own first outputs."""
    model = tiny_model(family, suffix, return_dict=False, use_cache=False, **fields).eval().requires_grad_(False)
    given = []
    for batch in (2, 3):
        ids, mask = torch.randint(300, (batch, length)), torch.ones(batch, length, dtype=torch.long)
        mask[0, : length // 3] = 0
        given.append((ids, mask))
    return torch.jit.trace(model, given[0], check_trace=False), given, [model(*batch)[0] for batch in given]


def error(answer: Tensor, expected: Tensor, mask: Tensor) -> float:
    real = mask.bool() if expected.dim() == 3 else slice(None)
    return relative_error(answer[real], expected[real])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*")
@pytest.mark.parametrize(("suffix", "family"), HEADS)
def test_every_family(family: str, suffix: str) -> None:
    program, given, expected = traced(family, suffix, length=23)
    for (ids, mask), own in zip(given, expected, strict=True):
        assert error(program(ids, mask)[0], own, mask) <= MODEL_TOLERANCE[torch.float32]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*")
def test_programs_run_without_this_package(tmp_path: Path) -> None:
    for family in EVERY:
        with real_valued():
            few = {} if family == "seqmix_hybrid" else {"num_hidden_layers": 1}
            program, given, expected = traced(family, "ForSequenceClassification", length=23, **few)
        program.save(str(tmp_path / f"{family}.pt"))
        torch.save((given, expected), tmp_path / f"{family}-answers.pt")
    script = """
import sys, torch
for name in sys.argv[1:]:
    program, (given, expected) = torch.jit.load(name + ".pt"), torch.load(name + "-answers.pt")
    for batch, own in zip(given, expected):
        torch.testing.assert_close(program(*batch)[0], own, rtol=1e-4, atol=1e-5)
assert not any(module.startswith("hf_seqmix") for module in sys.modules)
"""
    words = [sys.executable, "-I", "-W", "ignore", "-c", script, *(str(tmp_path / family) for family in EVERY)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
