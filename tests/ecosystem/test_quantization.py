"""Weights in int8 by torchao, on the CPU: memory, logits, generation, and a checkpoint of the quantized model."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model, tiny_tokenizer
from tests.tolerances import relative_error

pytestmark = [
    pytest.mark.ecosystem("torchao"),
    # torchao names its own types to torch in a way that torch has since given up
    pytest.mark.filterwarnings("ignore:.*is an Enum subclass:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Deprecat:DeprecationWarning:torchao"),
]

# Rounding to 255 steps moves a weight by about 0.7 % of the root mean square of a row. The bound is on the root mean
# square of the difference of the logits, relative to that of the logits; measured 0.2 to 1.3 %.
BOUND = 0.02

EXAMPLE = Path(__file__).parents[2] / "scripts" / "examples" / "quantize.py"


def small(model_type: str) -> PreTrainedModel:
    suffix = "ForCausalLM" if model_type in CAUSAL else "ForMaskedLM"
    return tiny_model(model_type, suffix, hidden_size=64, **({"num_centers": 4} if model_type == "ipa" else {})).eval()


def quantized(model: PreTrainedModel) -> set[str]:
    return {name for name, parameter in model.named_parameters() if hasattr(parameter, "qdata")}


def stored(model: PreTrainedModel) -> int:
    """Return the bytes of the weights; of quantized weights, the bytes of their parts."""
    parts = [(p.qdata, p.scale) if hasattr(p, "qdata") else (p,) for p in model.parameters()]
    return sum(part.nbytes for own in parts for part in own)


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@pytest.mark.parametrize("model_type", EVERY)
def test_weights_in_int8(model_type: str, tmp_path: Path) -> None:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    model = small(model_type)
    model.save_pretrained(tmp_path / "model")
    smaller = (
        type(model)
        .from_pretrained(tmp_path / "model", quantization_config=TorchAoConfig(Int8WeightOnlyConfig()))
        .eval()
    )

    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    spared = {name for name in linear if ".kernel." in name or name in ("lm_head.weight", "model.embed_tokens.weight")}
    # The masked language model's last module is one that the library always spares.
    assert linear - spared - {"transform.dense.weight"} <= quantized(smaller) <= linear - spared
    in_int8 = sum(dict(model.named_parameters())[name].nbytes for name in quantized(smaller))
    assert stored(smaller) < stored(model) - 0.7 * in_int8

    ids = torch.randint(5, 300, (2, 33))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits[mask.bool()]
        logits = smaller(ids, attention_mask=mask).logits
    assert 1e-4 < difference(logits[mask.bool()], expected) < BOUND
    if model.can_generate():
        kwargs: dict[str, Any] = {"attention_mask": mask[:, :9], "max_new_tokens": 6, "do_sample": False}
        with_cache = smaller.generate(ids[:, :9], **kwargs)
        assert with_cache.shape == (2, 15)
        assert torch.equal(with_cache, smaller.generate(ids[:, :9], use_cache=False, **kwargs))

    smaller.save_pretrained(tmp_path / "int8")
    again = type(model).from_pretrained(tmp_path / "int8").eval()
    assert quantized(again) == quantized(smaller) and stored(again) == stored(smaller)
    with torch.no_grad():
        assert torch.equal(again(ids, attention_mask=mask).logits, logits)

    def on_disk(name: str) -> int:
        return sum(file.stat().st_size for file in (tmp_path / name).glob("*.safetensors"))

    assert on_disk("int8") < on_disk("model") - 0.6 * in_int8


def test_a_model_in_memory() -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model, smaller = small("fd_tnn"), small("fd_tnn")
    quantize_(
        smaller,
        Int8WeightOnlyConfig(),
        filter_fn=lambda module, name: (
            isinstance(module, torch.nn.Linear) and "kernel" not in name and name != "lm_head"
        ),
    )
    assert stored(smaller) < 0.7 * stored(model)
    ids = torch.randint(300, (2, 13))
    with torch.no_grad():
        assert 1e-4 < difference(smaller(ids).logits, model(ids).logits) < BOUND


def test_networks_of_kernels_are_spared_in_half_precision_too(tmp_path: Path) -> None:
    model = small("tnn")
    model.save_pretrained(tmp_path)
    half = type(model).from_pretrained(tmp_path, dtype=torch.float16)
    for name, parameter in half.named_parameters():
        assert parameter.dtype == (torch.float32 if ".kernel." in name else torch.float16), name
    ids = torch.randint(300, (2, 13))
    with torch.no_grad():
        assert relative_error(half(ids).logits.float(), model(ids).logits) < 0.05


def test_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small("poly_transformer").save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    main = runpy.run_path(str(EXAMPLE))["main"]
    assert main([str(tmp_path / "model"), "--output", str(tmp_path / "int8"), "--prompt", "def add"]) == 0
    said = capsys.readouterr().out
    assert "instead of 0.6 MB" in said and "logits differ by" in said and "def add" in said
    assert (tmp_path / "int8" / "tokenizer.json").exists()
    again = type(small("poly_transformer")).from_pretrained(tmp_path / "int8")
    assert quantized(again)
