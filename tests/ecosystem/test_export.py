"""`torch.export` of every head, for any batch and length, and programs that need nothing of this package."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from hf_seqmix.ops import real_valued
from tests.ecosystem.tiny import BIDIRECTIONAL_HEADS, CAUSAL, EVERY, tiny_model
from tests.tolerances import MODEL_TOLERANCE, relative_error

pytestmark = pytest.mark.ecosystem


class Outputs(nn.Module):
    """A model as a function of two tensors that returns its outputs as a tuple."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        return tuple(value for value in outputs.values() if isinstance(value, Tensor))


def inputs(batch: int, length: int) -> tuple[Tensor, Tensor]:
    ids, mask = torch.randint(300, (batch, length)), torch.ones(batch, length, dtype=torch.long)
    mask[0, : length // 3] = 0
    return ids, mask


def export(model: PreTrainedModel) -> torch.export.ExportedProgram:
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=4096)
    shapes = ({0: batch, 1: length}, {0: batch, 1: length})
    return torch.export.export(Outputs(model).eval(), inputs(2, 12), dynamic_shapes=shapes)


def check(model: PreTrainedModel, program: torch.export.ExportedProgram) -> None:
    run = program.module()
    for batch, length in ((2, 12), (3, 7), (5, 40)):
        given = inputs(batch, length)
        real = given[1].bool()
        with torch.no_grad():
            expected = Outputs(model)(*given)
        for actual, exact in zip(run(*given), expected, strict=True):
            if exact.shape[:2] == real.shape:
                actual, exact = actual[real], exact[real]
            assert relative_error(actual, exact) < MODEL_TOLERANCE[torch.float32]


def heads(model_type: str) -> list[tuple[str, dict[str, Any]]]:
    """Every head of the family, in the directions that it has."""
    suffixes = ["Model", *BIDIRECTIONAL_HEADS]
    found: list[tuple[str, dict[str, Any]]] = [(suffix, {"is_causal": False}) for suffix in suffixes]
    if model_type in CAUSAL:
        found += [("ForCausalLM", {}), ("ForSequenceClassification", {"classifier_pooling": "last"})]
    return found


CASES = [(model_type, *head) for model_type in EVERY for head in heads(model_type)]


@pytest.mark.parametrize(
    ("model_type", "suffix", "overrides"),
    [
        # Heads are shared: those of one family by default, and a language model of each.
        case if case[0] == "tnn" or case[1] in ("ForCausalLM",) else pytest.param(*case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
@pytest.mark.one_in(5)
def test_every_head(model_type: str, suffix: str, overrides: dict[str, Any]) -> None:
    layers = {} if model_type == "seqmix_hybrid" else {"num_hidden_layers": 1}
    model = tiny_model(model_type, suffix, **layers, **overrides).eval()
    check(model, export(model))


@pytest.mark.slow
def test_images() -> None:
    model = tiny_model(
        "fd_tnn", "ForImageClassification", is_causal=False, image_size=[6, 4], patch_size=2, num_channels=1
    ).eval()
    shapes = {"pixel_values": {0: torch.export.Dim("batch", min=2, max=64)}}
    program = torch.export.export(model, (), {"pixel_values": torch.randn(2, 1, 6, 4)}, dynamic_shapes=shapes)
    images = torch.randn(5, 1, 6, 4)
    with torch.no_grad():
        assert relative_error(program.module()(pixel_values=images).logits, model(pixel_values=images).logits) < 1e-4


ELSEWHERE = """
import sys
sys.modules["hf_seqmix"] = sys.modules["transformers"] = None
import torch
program = torch.export.load(sys.argv[1]).module()
ids, mask, expected = torch.load(sys.argv[2], weights_only=True)
(logits,) = program(ids, mask)
print(float(((logits - expected).abs().amax(-1) * mask).max() / expected.square().mean().sqrt()))
"""


# By default tests/ops/common/test_dispatch.py exports every operation in real numbers and looks for operators of ours,
# and traced programs of every family run without the package.
@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["ipa", "tnn"])
def test_a_program_of_real_numbers_runs_without_the_package(model_type: str, tmp_path: Path) -> None:
    model = tiny_model(model_type, num_hidden_layers=1).eval()
    with real_valued():
        program = export(model)
    check(model, program)
    assert not [node for node in program.graph.nodes if "hf_seqmix" in str(node.target)]
    torch.export.save(program, tmp_path / "model.pt2")
    given = inputs(3, 17)
    with torch.no_grad():
        (logits,) = Outputs(model)(*given)
    torch.save((*given, logits), tmp_path / "expected.pt")
    files = [str(tmp_path / "model.pt2"), str(tmp_path / "expected.pt")]
    said = subprocess.run([sys.executable, "-c", ELSEWHERE, *files], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert float(said.stdout) < MODEL_TOLERANCE[torch.float32]


class TwoCalls(nn.Module):
    """A model as a function of a prompt and of what follows it, which a cache brings together."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, prompt: Tensor, more: Tensor) -> Tensor:
        cache = DynamicCache(config=self.model.config)
        self.model(input_ids=prompt, past_key_values=cache)
        logits: Tensor = self.model(input_ids=more, past_key_values=cache).logits
        return logits


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("poly_transformer", {}),
        ("tnn", {"copy_head": True}),
        *(pytest.param(other, {}, marks=pytest.mark.slow) for other in CAUSAL if other != "poly_transformer"),
        pytest.param(
            "tnn", {"copy_head": True, "copy_head_tokens": 3, "copy_head_state": True}, marks=pytest.mark.slow
        ),
        pytest.param("ipa", {"token_shift": 3}, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_graph_continues_a_cache_of_any_number_of_rows(model_type: str, overrides: dict[str, Any]) -> None:
    model = tiny_model(model_type, **overrides).eval()
    rows = {0: torch.export.Dim("batch", min=2, max=64)}
    given = torch.randint(300, (2, 5)), torch.randint(300, (2, 2))
    program = torch.export.export(TwoCalls(model), given, dynamic_shapes=(rows, rows))
    prompt, more = torch.randint(300, (3, 5)), torch.randint(300, (3, 2))
    with torch.no_grad():
        expected = model(torch.cat([prompt, more], dim=1)).logits[:, 5:]
    assert relative_error(program.module()(prompt, more), expected) < MODEL_TOLERANCE[torch.float32]
