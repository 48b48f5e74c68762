"""`accelerate`'s loading of models that do not fit: layers on the CPU, on the disk, or some on each."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import infer_auto_device_map, init_empty_weights, load_checkpoint_and_dispatch
from transformers import PreTrainedModel

from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model

pytestmark = [
    pytest.mark.ecosystem("accelerate"),
    # older releases of transformers take weights that wait on the disk for a model on another device
    pytest.mark.filterwarnings(
        "ignore:You are calling .generate.. with the .input_ids. being on a device:UserWarning"
    ),
]

LAYERS = 4


def small(model_type: str) -> PreTrainedModel:
    layers: dict[str, Any] = {"num_hidden_layers": LAYERS}
    if model_type == "copy head":
        return tiny_model("tnn", copy_head=True, copy_head_tokens=2, copy_head_state=True, **layers).eval()
    if model_type == "seqmix_hybrid":
        layers = {**layers, "mixer_types": ["tnn", "ipa", "fd_tnn", "poly_transformer"]}
        layers["mixer_configs"] = {"ipa": {"num_centers": 2}, "poly_transformer": {"num_attention_heads": 2}}
    return tiny_model(model_type, "ForCausalLM" if model_type in CAUSAL else "ForMaskedLM", **layers).eval()


def size(module: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def budget(model: PreTrainedModel) -> int:
    """Memory for the embedding and a layer, beside that which is reserved for what comes from the disk."""
    return size(model.model.embed_tokens) + 2 * max(map(size, model.model.layers)) + 1000


def alternating(model: PreTrainedModel) -> dict[str, str]:
    names = [f"model.{name}" for name, _ in model.model.named_children() if name != "layers"]
    names += [name for name, _ in model.named_children() if name != "model"]
    layers = {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(LAYERS)}
    return {**dict.fromkeys(names, "cpu"), **layers}


def results(model: PreTrainedModel, beams: int = 2) -> list[torch.Tensor]:
    """Logits of a padded batch, and what is generated greedily or by beams, over cache layers of every kind."""
    torch.manual_seed(3)
    ids = torch.randint(5, 300, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with torch.no_grad():
        found = [model(ids, attention_mask=mask).logits]
    if model.can_generate():
        kwargs = {"max_new_tokens": 4, "num_beams": beams, "do_sample": False, "pad_token_id": 0}
        found.append(model.generate(ids, attention_mask=mask, **kwargs))
    return found


@pytest.mark.parametrize("model_type", [*EVERY, "copy head"])
@pytest.mark.one_in(3)
def test_a_model_computes_the_same_wherever_its_layers_are(model_type: str, tmp_path: Path) -> None:
    model = small(model_type)
    model.save_pretrained(tmp_path / "model", max_shard_size="40KB")
    expected = {beams: results(model, beams) for beams in (1, 2)}
    placements: dict[str, dict[str, Any]] = {
        "auto": {"device_map": "auto"},
        "cpu": {"device_map": {"": "cpu"}},
        "disk": {"device_map": {"": "disk"}},
        "memory": {"device_map": "auto", "max_memory": {"cpu": budget(model)}},
        "alternating": {"device_map": alternating(model)},
    }
    for name, kwargs in placements.items():
        placed = type(model).from_pretrained(tmp_path / "model", offload_folder=tmp_path / name, **kwargs).eval()
        on_disk = {where for where, parameter in placed.named_parameters() if parameter.device.type == "meta"}
        assert bool(on_disk) == (name not in ("auto", "cpu")), name
        if name in ("memory", "alternating"):
            assert len(on_disk) < len(list(placed.named_parameters())), name
        beams = 2 if name == "memory" else 1
        for actual, wanted in zip(results(placed, beams), expected[beams], strict=True):
            assert torch.equal(actual, wanted), name


@pytest.mark.parametrize("model_type", EVERY)
def test_layers_are_not_split(model_type: str) -> None:
    model = small(model_type)
    with init_empty_weights():
        empty = type(model)(model.config)
    empty.tie_weights()
    assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
    for memory in range(size(model) // 8, size(model), size(model) // 8):
        places = infer_auto_device_map(
            empty, max_memory={"cpu": memory, "disk": 10**9}, no_split_module_classes=list(model._no_split_modules)
        )
        assert set(places.values()) <= {"cpu", "disk"}
        assert not [name for name in places if name.startswith("model.layers.") and name.count(".") > 2], places


@pytest.mark.parametrize("model_type", ["tnn", "ipa"])
def test_a_checkpoint_is_dispatched_without_transformers(model_type: str, tmp_path: Path) -> None:
    model = small(model_type)
    model.save_pretrained(tmp_path / "model")
    with init_empty_weights():
        empty = type(model)(model.config)
    empty.tie_weights()
    placed = load_checkpoint_and_dispatch(
        empty,
        tmp_path / "model",
        device_map="auto",
        max_memory={"cpu": budget(model)},
        no_split_module_classes=list(model._no_split_modules),
        offload_folder=tmp_path / "off",
    ).eval()
    assert any(parameter.device.type == "meta" for parameter in placed.parameters())
    for actual, wanted in zip(results(placed), results(model), strict=True):
        assert torch.equal(actual, wanted)
