"""Two processes train and generate as one does: data parallel, FSDP2, tensor parallel, and from a stream.

Both processes are started once for all tests, on CPUs, with gloo; `distributed_worker.py` says what they do. The slow
tests start them again for other forms of the mixers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from tests.ecosystem import distributed_worker as worker
from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model

# In one worker: another would wait for the processes.
pytestmark = [pytest.mark.ecosystem("accelerate"), pytest.mark.xdist_group("distributed")]

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("data_parallel", "fsdp", "tensor_parallel", "stream", "evaluation")
OTHERS = ("data_parallel_of_others", "fsdp_of_others", "stream_of_others")
THOROUGH = (*OTHERS, "fsdp_by_the_trainer", "muon", "data_parallel_accumulated", "fsdp_accumulated", "fsdp_bfloat16")
"""Kinds of the slow tests."""
EACH = [
    pytest.param(kind, name, marks=[] if kind == "tensor_parallel" or name in worker.FEW else pytest.mark.slow)
    for kind in ("data_parallel", "fsdp", "tensor_parallel")
    for name in EVERY
]
DOCUMENTS = [f"document {i:06d}" for i in range(24)]

# Losses of 8 updates in float32, where sums are made in another order.
CLOSE = {"abs": 1e-5, "rel": 0}


def start(folder: Path, *kinds: str) -> list[Any]:
    """Start both processes, wait for them, and return what each of them found."""
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.ecosystem.distributed_worker", str(folder), *kinds],
        env=os.environ | settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything is that the processes read and write, the same for all workers of a test run."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return base / "distributed"


@pytest.fixture(scope="session")
def models(folder: Path) -> Path:
    """What the processes read, and a folder for what they write."""
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        if not (folder / "text-4").exists():
            for model_type in EVERY:
                tiny_model(model_type, worker.head_of(model_type)).save_pretrained(folder / "models" / model_type)
            for shards in (1, 3, 4):
                (folder / f"text-{shards}").mkdir()
                for shard in range(shards):
                    text = "".join(f"{document}\n" for document in DOCUMENTS[shard::shards])
                    (folder / f"text-{shards}" / f"{shard}.txt").write_text(text)
    return folder


def run_once(folder: Path, name: str, kinds: tuple[str, ...]) -> list[Any]:
    """Start the processes for some kinds unless another worker of the tests has, and return what they found."""
    with FileLock(folder / "lock"):
        results = folder / f"{name}.json"
        if not results.exists():
            start(folder, *kinds)
            (folder / "results.json").rename(results)
    return json.loads(results.read_text())


@pytest.fixture(scope="session")
def outcome(models: Path) -> list[Any]:
    """What each of the processes found."""
    return run_once(models, "default", KINDS)


@pytest.fixture(scope="session")
def thorough(models: Path) -> list[Any]:
    """What each of them found of further kinds."""
    return run_once(models, "thorough", THOROUGH)


@pytest.fixture
def results(request: pytest.FixtureRequest, kind: str, model_type: str) -> list[dict[str, Any]]:
    """What each of the processes found of one kind and family."""
    if kind == "tensor_parallel" or model_type in worker.FEW:
        return found(request.getfixturevalue("outcome"), kind, model_type)
    return found(request.getfixturevalue("thorough"), f"{kind}_of_others", model_type)


def found(outcome: list[Any], kind: str, name: str) -> list[dict[str, Any]]:
    each = [of_process[kind][name] for of_process in outcome]
    for result in each:
        assert "error" not in result, result["error"]
    return each


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[float], dict[str, torch.Tensor]]]:
    """Losses and weights of each family, trained by one process with the `Trainer`, as they are asked for."""

    class Trained(dict):
        def __missing__(self, model_type: str) -> Any:
            model = tiny_model(model_type, worker.head_of(model_type))
            losses = worker.by_trainer(model, tmp_path_factory.mktemp("alone"))
            self[model_type] = losses, model.state_dict()
            return self[model_type]

    return Trained()


@pytest.mark.parametrize("model_type", EVERY)
def test_one_process_learns_and_the_loop_is_the_trainers(alone: Any, model_type: str) -> None:
    losses, _ = alone[model_type]
    assert len(losses) == worker.UPDATES
    # Otherwise equal curves would say nothing.
    first = tiny_model(model_type, worker.head_of(model_type))
    assert worker.by_loop(first, accumulation=2) == pytest.approx(losses, **CLOSE)
    frozen = tiny_model(model_type, worker.head_of(model_type))
    worker.RATE, rate = 0.0, worker.RATE
    try:
        unmoved = worker.by_loop(frozen)
    finally:
        worker.RATE = rate
    assert max(abs(a - b) for a, b in zip(losses, unmoved, strict=True)) > 0.1


@pytest.mark.parametrize(("kind", "model_type"), EACH)
def test_two_processes_have_the_losses_of_one(results: Any, alone: Any, kind: str, model_type: str) -> None:
    for result in results:
        assert result["losses"] == pytest.approx(alone[model_type][0], **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", EVERY)
@pytest.mark.parametrize("kind", ["data_parallel_accumulated", "fsdp_accumulated"])
def test_also_where_gradients_are_accumulated(thorough: list[Any], alone: Any, kind: str, model_type: str) -> None:
    for result in found(thorough, kind, model_type):
        assert result["losses"] == pytest.approx(alone[model_type][0], **CLOSE)


@pytest.mark.parametrize(("kind", "model_type"), EACH)
def test_what_two_processes_save_is_one_model(
    results: Any, folder: Path, alone: Any, kind: str, model_type: str
) -> None:
    saved = folder / kind / model_type
    assert len(list(saved.glob("model-*.safetensors"))) > 1
    model = type(tiny_model(model_type, worker.head_of(model_type))).from_pretrained(saved)
    expected = alone[model_type][1]
    assert model.state_dict().keys() == expected.keys()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(
            weight, expected[name], atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert [result["generated"] for result in results] == [worker.generated(model)] * 2
    assert (results[0]["generated"] is not None) == (model_type in CAUSAL)


@pytest.mark.parametrize(("kind", "model_type"), [case for case in EACH if case.values[0] == "fsdp"])
def test_fsdp_splits_every_parameter(results: Any, kind: str, model_type: str) -> None:
    for result in results:
        assert not result["whole"]
        assert result["share"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("model_type", EVERY)
def test_tensor_parallelism_splits_every_projection(outcome: list[Any], model_type: str) -> None:
    model = tiny_model(model_type, worker.head_of(model_type))
    # Left whole are norms, biases that are added once, the gates of few centers, and the insides of encoders.
    allowed = ["norm", "o_proj.bias", "down_proj.bias", "relative_bias", ".encoder."]
    allowed += ["mlp.gate_proj"] if model_type == "ipa" else []
    for result in found(outcome, "tensor_parallel", model_type):
        assert all(any(part in name for part in allowed) for name in result["whole"]), result["whole"]
        assert not any(name.endswith(("encoder.out_proj.weight", "embed_tokens.weight")) for name in result["whole"])
        assert len(result["split"]) + len(result["whole"]) == len(list(model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", EVERY)
def test_bfloat16_parameters_in_pieces(thorough: list[Any], model_type: str) -> None:
    model = tiny_model(model_type, worker.head_of(model_type)).to(torch.bfloat16)
    losses = worker.by_loop(model)
    for result in found(thorough, "fsdp_bfloat16", model_type):
        assert result["dtypes"] == ["torch.bfloat16"] and not result["whole"]
        assert result["losses"] == pytest.approx(losses, abs=0.03)


@pytest.mark.parametrize("name", worker.EVALUATED)
def test_evaluations_count_each_row_once(outcome: list[Any], name: str, tmp_path: Path) -> None:
    """Whatever the batches are, and where processes fill the last ones with rows of the beginning."""
    for number, batch_size in worker.EVALUATIONS:
        alone = [worker.evaluated(name, number, size, tmp_path) for size in (batch_size, number)]
        for result in [*alone, *found(outcome, "evaluation", f"{name} {number} {batch_size}")]:
            assert result["losses"] == pytest.approx([alone[1]["losses"][0]] * 2, rel=1e-5)
            assert result["rows"] == number


@pytest.mark.slow
def test_the_trainer_takes_models_in_pieces(thorough: list[Any], alone: Any) -> None:
    names = thorough[0]["fsdp_by_the_trainer"]
    assert list(names) == (["tnn", "ipa"] if worker.TRAINER_TAKES_SPLIT_MODELS else [])
    for name in names:
        for result in found(thorough, "fsdp_by_the_trainer", name):
            assert result["losses"] == pytest.approx(alone[name][0], **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", worker.EVERY)
@pytest.mark.parametrize("size", ["fsdp_size", "tp_size"])
def test_muon_on_matrices_in_pieces(thorough: list[Any], size: str, model_type: str) -> None:
    """Newton-Schulz iterations are in bfloat16, in which sums of pieces are rounded otherwise."""
    losses = worker.by_loop(tiny_model(model_type, worker.head_of(model_type)), muon=True)
    unlike = worker.by_loop(tiny_model(model_type, worker.head_of(model_type)))
    assert max(abs(a - b) for a, b in zip(losses, unlike, strict=True)) > 0.05
    for result in found(thorough, "muon", f"{size} {model_type}"):
        assert result["losses"] == pytest.approx(losses, abs=5e-3)


@pytest.mark.parametrize(
    ("kind", "shards", "workers"),
    [("stream", *case) for case in worker.STREAMS]
    + [pytest.param("stream_of_others", *case, marks=pytest.mark.slow) for case in worker.OTHER_STREAMS],
)
def test_a_stream_is_dealt_out_without_repeats(
    request: pytest.FixtureRequest, kind: str, shards: int, workers: int
) -> None:
    outcome = request.getfixturevalue("outcome" if kind == "stream" else "thorough")
    first, second = (result["blocks"] for result in found(outcome, kind, f"{shards} {workers}"))
    assert len(first) == len(second) == len(DOCUMENTS)
    passes = []
    for half in (slice(0, 12), slice(12, 24)):
        blocks = [tuple(block) for block in first[half] + second[half]]
        assert len(set(blocks)) == len(DOCUMENTS)
        passes.append(blocks)
    assert set(passes[0]) == set(passes[1])
    assert passes[0] != passes[1]  # another order


@pytest.mark.slow
def test_other_forms_of_the_mixers(folder: Path) -> None:
    folder = folder.parent / "distributed-variants"
    folder.mkdir(exist_ok=True)
    outcome = start(folder, "variants")
    for name in worker.VARIANTS:
        for kind in ("fsdp_size", "tp_size"):
            for result in found(outcome, "variants", f"{kind} {name}"):
                one, two = result["losses"]
                assert two == pytest.approx(one, abs=1e-5), (kind, name)
                assert max(result["gradients"].values()) < 2e-4, (kind, name, result["gradients"])
                assert result["generated"][0] == result["generated"][1], (kind, name)
                assert result["split"], (kind, name)
