"""`torch.compile` of training: steps with an optimizer, over several lengths, and the Trainer's own switch."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import PreTrainedModel, Trainer, TrainingArguments

from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model
from tests.tolerances import MODEL_TOLERANCE, relative_error

pytestmark = [
    pytest.mark.ecosystem,
    # torch's own modules call it when an optimizer is first compiled
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),
]


def small(model_type: str) -> PreTrainedModel:
    layers = {} if model_type == "seqmix_hybrid" else {"num_hidden_layers": 1}
    return tiny_model(model_type, "ForCausalLM" if model_type in CAUSAL else "ForMaskedLM", **layers).train()


def batch(length: int, padded: bool) -> dict[str, Tensor]:
    ids = torch.randint(300, (2, length))
    inputs = {"input_ids": ids, "labels": ids.clone()}
    if padded:
        inputs["attention_mask"] = torch.ones_like(ids)
        inputs["attention_mask"][0, :2] = 0
        # What stands at pads has no meaning, and the last of them would predict the first token.
        inputs["labels"][0, :3] = -100
    return inputs


# Each family's gradients in a graph are tested with the family; here optimizers join, which know no families.
@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=[] if name == "poly_transformer" else pytest.mark.slow) for name in EVERY],
)
def test_steps_of_training_in_two_graphs_for_all_lengths(model_type: str) -> None:
    torch._dynamo.reset()
    plain = small(model_type).double()
    model = copy.deepcopy(plain)
    # Without a scale of each gradient's own, which makes steps out of the rounding of gradients that are zero.
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (plain, model)]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    step = torch.compile(optimizers[1].step, backend="aot_eager")
    for length in (9, 13, 18, 31):
        inputs = batch(length, padded=True)
        losses = [m(**inputs).loss for m in (plain, compiled)]
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=1e-9)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
        optimizers[0].step()
        step()
    assert counter.frame_count <= 2
    for (name, parameter), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert relative_error(parameter, expected) < 1e-9, name


def train(model: PreTrainedModel, folder: Path, compiled: bool) -> list[float]:
    rows = torch.arange(8 * 12).reshape(8, 12) * 7 % 300
    dataset = Dataset.from_dict({"input_ids": rows.tolist(), "labels": rows.tolist()})
    arguments: dict[str, Any] = {"torch_compile": True, "torch_compile_backend": "aot_eager"} if compiled else {}
    trainer = Trainer(
        model,
        TrainingArguments(
            str(folder),
            max_steps=4,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=dataset,
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


# The switch knows no families either.
@pytest.mark.parametrize(
    "model_type", ["tnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ipa", "poly_transformer"))]
)
def test_the_trainer_compiles(model_type: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    expected = train(small(model_type), tmp_path / "plain", compiled=False)
    losses = train(small(model_type), tmp_path / "compiled", compiled=True)
    assert len(losses) == 4 and losses[-1] < losses[0]
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
# the taps of FD-TNN come from a transform within the graph, which is called and not fused
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex:UserWarning")
@pytest.mark.parametrize("model_type", EVERY)
def test_the_default_compiler(model_type: str) -> None:
    """With code generated and built, forward and backward."""
    torch._dynamo.reset()
    plain = small(model_type)
    model = copy.deepcopy(plain)
    compiled = torch.compile(model, fullgraph=True)
    for length in (9, 13):
        inputs = batch(length, padded=length == 13)
        for m in (plain, compiled):
            m(**inputs).loss.backward()
        for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert parameter.grad is not None and other.grad is not None
            assert relative_error(parameter.grad, other.grad) < 10 * MODEL_TOLERANCE[torch.float32], name
