"""Exports a model to ONNX through the library's exporter, and compares onnxruntime with torch.

export_onnx(model, "runs/onnx", generation=True)
exported = ExportedModel.from_pretrained("runs/onnx")  # of transformers.exporters
tokens = generate_onnx(exported, input_ids, max_new_tokens=20)
"""

import copy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._compat import CACHE_NAME
from ..models.configuration import SeqMixConfig
from ..models.pretrained import SeqMixPreTrainedModel
from .cards import head_of
from .verification import VerificationError

if TYPE_CHECKING:
    from transformers.exporters import ExportedModel, OnnxConfig

__all__ = ["export_onnx", "generate_onnx", "onnx_difference"]

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_LENGTH = 12  # of the example that is traced; any above 1 would do
_STEPS = 3  # of decoding that are compared


def export_onnx(
    model: SeqMixPreTrainedModel,
    folder: str | Path,
    *,
    generation: bool = False,
    max_length: int | None = None,
    tolerance: float | None = 1e-4,
) -> float:
    """Write a model as graphs for any batch and length, and compare the outputs of onnxruntime and torch.

    The folder is that of `ExportedModel.save_pretrained` of the library, whose `from_pretrained` reads it. Weights are
    in files of their own. Nothing stands in the folder until the comparison has passed.

    `model.onnx` computes whole sequences. Inputs are `input_ids` and `attention_mask`, (batch, length) int64, with
    pads on either side or inside. A model of images takes `pixel_values`, (batch, num_channels, height, width), of the
    size in the configuration. Outputs are those of the head in float32: `logits`, or `start_logits` and `end_logits`,
    or `last_hidden_state`. Pad positions are undefined. Weights in another dtype are written in float32.

    With `generation` there are two graphs instead. `prefill.onnx` takes a prompt, padded on the left, and returns the
    tensors of the cache, too. `decode.onnx` takes a token for each row, the mask of all tokens and these tensors, and
    returns them with the token added. Sums and windows that torch keeps at a constant size grow with the tokens there.

    Args:
        model: of one of the package's families, weights in memory; not changed.
        folder: to write to; older files are replaced.
        generation: whether to export a causal language model to generate with a cache.
        max_length: longest input, for a model with parameters for each position (learned positions, couplings of pairs
            of positions, triangular mixing). None for no limit.
        tolerance: largest difference allowed, relative to the root mean square of an output; None to compare nothing.

    Returns:
        The largest difference found, see `onnx_difference`; 0 without a comparison.

    Raises:
        ImportError: without the packages onnx, onnxscript and onnxruntime, or with a torch that the library's exporter
            does not support.
        ValueError: for a model from outside the package, one that cannot generate with `generation`, a `max_length`
            that leaves nothing to compare, or a folder that is a file.
        VerificationError: for a difference above the tolerance, NaN included; nothing is written.
    """
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise ImportError(f"ONNX needs the packages {', '.join(missing)}: pip install {' '.join(missing)}")
    from transformers.exporters import OnnxConfig

    head = head_of(model)
    folder = Path(folder)
    if folder.is_file():
        raise ValueError(f"{folder} is a file. Give the name of a folder, such as {folder.with_suffix('')}.")
    if max_length is not None and max_length < (least := _STEPS + 2 if generation else 2):
        raise ValueError(f"max_length is {max_length}, but at least {least} tokens are needed to compare outputs.")
    if generation and not model.can_generate():
        raise ValueError(f"generation=True was given, but {head} does not generate: export a causal language model.")
    if model.training or any(x.is_floating_point() and x.dtype != torch.float32 for x in model.parameters()):
        model = copy.deepcopy(model).float().eval()
    export = _export_stages if generation else _export_whole
    exported = export(model, max_length, OnnxConfig())
    difference = 0.0
    if tolerance is not None:
        difference = onnx_difference(model, exported, max_length=max_length)
        if not difference <= tolerance:
            raise VerificationError(
                f"onnxruntime differs from torch by {difference:.2g} of the root mean square of an output, more "
                f"than {tolerance:.2g}: nothing was written."
            )
    exported.save_pretrained(folder)
    for name in {"model", "prefill", "decode"} - exported.components.keys():
        for stale in folder.glob(f"{name}.onnx*"):  # of an export of the other kind
            stale.unlink()
    return difference


def _export_whole(model: SeqMixPreTrainedModel, max_length: int | None, config: "OnnxConfig") -> "ExportedModel":
    from transformers.exporters import OnnxExporter

    inputs: dict[str, Any] = _example(model.config, batch=2, length=min(_LENGTH, max_length or _LENGTH))
    batch = torch.export.Dim("batch", min=2)
    length = torch.export.Dim("length", min=2, max=max_length)
    axes = {0: batch} if "pixel_values" in inputs else {0: batch, inputs["input_ids"].ndim - 1: length}
    config.dynamic_shapes = dict.fromkeys(inputs, axes)
    # A tracer cannot prove for all lengths that a kernel of limited lags needs padding.
    config.prefer_deferred_runtime_asserts_over_guards = True
    inputs["use_cache"] = False
    return OnnxExporter().export(model, inputs, config)


def _export_stages(model: SeqMixPreTrainedModel, max_length: int | None, config: "OnnxConfig") -> "ExportedModel":
    from transformers.exporters import ExportedModel, OnnxExporter
    from transformers.exporters.utils import decompose_for_generation

    exporter = OnnxExporter()
    config.dynamic = True
    components = {}
    length = min(_LENGTH, (max_length or _LENGTH + 2) - 2)  # two tokens are generated
    stages: dict[str, Any] = decompose_for_generation(model, _example(model.config, 2, length))
    for name, (stage, inputs) in stages.items():
        # Positions are counted from the mask; a graph that takes them would mix packed sequences, too.
        inputs.pop("position_ids", None)
        components[name] = exporter.export(stage, inputs, config).components["model"]
    return ExportedModel(components, exporter.export_format, model.config, model.generation_config)


def generate_onnx(
    exported: "ExportedModel", input_ids: Tensor, attention_mask: Tensor | None = None, *, max_new_tokens: int
) -> Tensor:
    """Continue prompts by the most probable tokens, as `generate(do_sample=False)` of the model does.

    Rows do not end before the others: tokens after the end of a text are to be cut off.

    Args:
        exported: written with `generation`.
        input_ids: (batch, length) prompts.
        attention_mask: (batch, length), zero at pads, on the left; None for none.
        max_new_tokens: at least 1.

    Returns:
        (batch, length + max_new_tokens).
    """
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    outputs = _run(exported, "prefill", input_ids=input_ids, attention_mask=mask)
    for step in range(max_new_tokens):
        last = outputs.logits[:, -1].argmax(dim=-1, keepdim=True)
        input_ids = torch.cat([input_ids, last], dim=1)
        if step < max_new_tokens - 1:
            mask = _longer(mask)
            outputs = _decode(exported, last, mask, outputs)
    return input_ids


def _run(exported: "ExportedModel", name: str, **inputs: Any) -> Any:
    return exported.runners[name](**inputs)


def _decode(exported: "ExportedModel", tokens: Tensor, mask: Tensor, before: Any) -> Any:
    cache = {CACHE_NAME: getattr(before, CACHE_NAME)}
    return _run(exported, "decode", input_ids=tokens, attention_mask=mask, **cache)


def _longer(mask: Tensor) -> Tensor:
    return torch.nn.functional.pad(mask, (0, 1), value=1)


def onnx_difference(
    model: SeqMixPreTrainedModel, exported: "ExportedModel", *, max_length: int | None = None
) -> float:
    """Compare graphs with their model on random inputs of several batches and lengths, padded and not.

    Args:
        model: in float32 and evaluation mode.
        exported: the graphs; those of generation are compared in a prompt and the first steps after it.
        max_length: longest input to try.

    Returns:
        The largest absolute difference at a real token, over the root mean square of the output of torch for all
        inputs; NaN where either output has NaN.
    """
    trials = _stage_trials if "prefill" in exported.components else _whole_trials
    furthest: dict[str, Tensor] = {}
    seen: dict[str, list[Tensor]] = {}
    for name, found, expected in trials(model, exported, max_length):
        actual, exact = found.double(), expected.double()
        # Of two numbers this keeps NaN, which Python's own would lose.
        furthest[name] = torch.maximum(furthest.get(name, exact.new_zeros(())), (actual - exact).abs().max())
        seen.setdefault(name, []).append(exact.flatten())
    # The size of an output is that over all inputs: a single score may be near zero.
    scales = {name: torch.cat(parts).square().mean().sqrt() for name, parts in seen.items()}
    return float(torch.stack([furthest[name] / scales[name] for name in furthest]).max())


Trial = tuple[str, Tensor, Tensor]
"""The name of an output, what onnxruntime computed, and what torch did."""


@torch.no_grad()
def _whole_trials(model: SeqMixPreTrainedModel, exported: "ExportedModel", max_length: int | None) -> Iterator[Trial]:
    for inputs in _inputs(model.config, max_length):
        expected = model(**inputs, use_cache=False)
        found = exported(**inputs)
        mask = inputs.get("attention_mask")
        for name, exact in expected.items():
            actual = found[name]
            if mask is not None and exact.shape[: mask.ndim] == mask.shape:  # a value for each token
                actual, exact = actual[mask.bool()], exact[mask.bool()]
            yield name, actual, exact


@torch.no_grad()
def _stage_trials(model: SeqMixPreTrainedModel, exported: "ExportedModel", max_length: int | None) -> Iterator[Trial]:
    for inputs in _inputs(model.config, None if max_length is None else max_length - _STEPS):
        mask = inputs["attention_mask"]
        if not bool(mask[:, -1].all()):
            continue  # prompts are padded on the left
        found = _run(exported, "prefill", **inputs)
        ids, real, length = inputs["input_ids"], mask.bool(), mask.shape[1]
        more = torch.randint(model.config.vocab_size, (len(ids), _STEPS))
        all_ids, whole = torch.cat([ids, more], dim=1), torch.nn.functional.pad(mask, (0, _STEPS), value=1)
        expected = model(all_ids, attention_mask=whole, use_cache=False).logits
        yield "logits", found.logits[real], expected[:, :length][real]
        for step in range(_STEPS):
            mask = _longer(mask)
            found = _decode(exported, more[:, step : step + 1], mask, found)
            yield "logits", found.logits[:, 0], expected[:, length + step]


def _example(config: SeqMixConfig, batch: int, length: int) -> dict[str, Any]:
    """Make inputs by name, with a pad on the left of the first row where there is room for one."""
    image = config.image_shape
    if image is not None:
        height, width = (cells * size for cells, size in zip(image.grid_size, image.patch_size, strict=True))
        return {"pixel_values": torch.randn(batch, image.num_channels, height, width)}
    shape = (batch, length) if config.num_segments == 1 else (batch, config.num_segments, length)
    mask = torch.ones(shape, dtype=torch.long)
    mask[0, ..., : min(3, length - 1)] = 0
    return {"input_ids": torch.randint(config.vocab_size, shape), "attention_mask": mask}


def _inputs(config: SeqMixConfig, max_length: int | None) -> Iterator[dict[str, Any]]:
    if config.image_shape is not None:
        yield from (_example(config, batch, 1) for batch in (1, 3))
        return
    for batch, length in ((1, 1), (3, 1), (1, 13), (3, 37), (2, 131)):
        if max_length is not None and length > max_length:
            continue
        inputs = _example(config, batch, length)
        yield inputs
        yield {**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])}
        yield {**inputs, "attention_mask": inputs["attention_mask"].flip(-1)}
