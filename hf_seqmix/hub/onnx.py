"""Exports a model to ONNX, for runtimes without torch and without this package."""

import copy
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from ..models.backbone import SeqMixPreTrainedModel
from ..models.configuration import SeqMixConfig
from .cards import head_of
from .verification import VerificationError

__all__ = ["export_onnx", "onnx_difference"]

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_LENGTH = 12  # of the example that is traced; any above 1 would do


def export_onnx(
    model: SeqMixPreTrainedModel,
    path: str | Path,
    *,
    max_length: int | None = None,
    opset_version: int | None = None,
    tolerance: float | None = 1e-4,
) -> float:
    """Write a model as one graph for any batch and length, and compare the outputs of onnxruntime and torch.

    Inputs are `input_ids` and `attention_mask`, (batch, length) int64, with pads on either side or inside. A model of
    images takes `pixel_values`, (batch, num_channels, height, width), of the size in the configuration. Outputs are
    those of the head in float32: `logits`, or `start_logits` and `end_logits`, or `last_hidden_state`. Pad positions
    are undefined. There is no cache: the graph computes whole sequences. Weights in another dtype are written in
    float32.

    Products with Toeplitz matrices become convolutions, which take time in proportion to the square of the length.
    Weights beyond 2 GB go to a file of their own, `path` with ".data" after it. Nothing stands at `path` until the
    comparison has passed.

    Args:
        model: of one of the package's families, weights in memory; not changed.
        path: of the file; an older file is replaced.
        max_length: longest input, for a model with parameters for each position (learned positions, couplings of pairs
            of positions, triangular mixing). None for no limit.
        opset_version: of ONNX; torch's choice by default.
        tolerance: largest difference allowed, relative to the root mean square of an output; None to compare nothing.

    Returns:
        The largest difference found, see `onnx_difference`; 0 without a comparison.

    Raises:
        ImportError: without the packages onnx, onnxscript and onnxruntime (the last for the comparison only).
        ValueError: for a model from outside the package, or a path that is a folder.
        VerificationError: for a difference above the tolerance, NaN included; no file is left.
    """
    packages = _PACKAGES if tolerance is not None else _PACKAGES[:2]
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ImportError(f"ONNX needs the packages {', '.join(missing)}: pip install {' '.join(missing)}")
    head_of(model)
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Give the name of a file, such as {path / 'model.onnx'}.")
    wrapped = _Outputs(model)
    inputs = _example(model.config, batch=2, length=_LENGTH)
    batch = torch.export.Dim("batch", min=2)
    length = torch.export.Dim("length", min=2, max=max_length)
    axis = inputs["input_ids"].ndim - 1 if "input_ids" in inputs else None
    shapes = [{0: batch} if axis is None else {0: batch, axis: length} for _ in inputs]
    with warnings.catch_warnings():
        # Both inputs have the same two axes, which is meant.
        warnings.filterwarnings("ignore", message="# The axis name", category=UserWarning)
        program = torch.onnx.export(
            wrapped,
            tuple(inputs.values()),
            dynamo=True,
            input_names=list(inputs),
            output_names=list(wrapped.outputs(*inputs.values())),
            dynamic_shapes=(tuple(shapes),),  # those of `*args`
            opset_version=opset_version,
            verbose=False,
        )
    assert program is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        written = Path(folder) / path.name
        program.save(written)
        difference = 0.0
        if tolerance is not None:
            difference = onnx_difference(model, written, max_length=max_length)
            if not difference <= tolerance:
                raise VerificationError(
                    f"onnxruntime differs from torch by {difference:.2g} of the root mean square of an output, more "
                    f"than {tolerance:.2g}: the file was not kept."
                )
        # The graph last: it is of no use without its weights.
        for file in sorted(Path(folder).iterdir(), key=lambda file: file == written):
            file.replace(path.with_name(file.name))
    return difference


def onnx_difference(model: SeqMixPreTrainedModel, path: str | Path, *, max_length: int | None = None) -> float:
    """Compare a file with its model on random inputs of several batches and lengths, padded and not.

    Args:
        model: compared in evaluation mode, whatever its mode.
        path: of the file.
        max_length: longest input to try.

    Returns:
        The largest absolute difference at a real token, over the root mean square of the output of torch for all
        inputs; NaN where either output has NaN.
    """
    from onnxruntime import InferenceSession

    session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wrapped = _Outputs(model)
    furthest = dict.fromkeys(names, torch.zeros((), dtype=torch.float64))
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    for inputs in _trials(model.config, max_length):
        expected = wrapped.outputs(*inputs.values())
        found = session.run(names, {name: x.numpy() for name, x in inputs.items()})
        for name, array in zip(names, found, strict=True):
            actual, exact = torch.from_numpy(array).double(), expected[name].double()
            mask = inputs.get("attention_mask")
            if mask is not None and exact.shape[: mask.ndim] == mask.shape:  # a value for each token
                actual, exact = actual[mask.bool()], exact[mask.bool()]
            # Of two numbers this keeps NaN, which Python's own would lose.
            furthest[name] = torch.maximum(furthest[name], (actual - exact).abs().max())
            seen[name].append(exact.flatten())
    # The size of an output is that over all inputs: a single score may be near zero.
    scales = {name: torch.cat(parts).square().mean().sqrt() for name, parts in seen.items()}
    return float(torch.stack([furthest[name] / scales[name] for name in names]).max())


class _Outputs(nn.Module):
    """A model that takes tensors and returns a tuple of tensors, in float32 and evaluation mode."""

    def __init__(self, model: SeqMixPreTrainedModel) -> None:
        super().__init__()
        if model.training or any(x.is_floating_point() and x.dtype != torch.float32 for x in model.parameters()):
            model = copy.deepcopy(model).float().eval()
        self.model = model
        self.inputs = list(_example(model.config, 1, 1))
        self.eval()

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(**dict(zip(self.inputs, inputs, strict=True)), use_cache=False)
        return tuple(value for value in outputs.values() if isinstance(value, Tensor))

    @torch.no_grad()
    def outputs(self, *inputs: Tensor) -> Mapping[str, Tensor]:
        """Return the outputs by name."""
        found = self.model(**dict(zip(self.inputs, inputs, strict=True)), use_cache=False)
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _example(config: SeqMixConfig, batch: int, length: int) -> dict[str, Tensor]:
    """Make inputs by name, with a pad on the left of the first row where there is room for one."""
    image = config.image_shape
    if image is not None:
        height, width = (cells * size for cells, size in zip(image.grid_size, image.patch_size, strict=True))
        return {"pixel_values": torch.randn(batch, image.num_channels, height, width)}
    shape = (batch, length) if config.num_segments == 1 else (batch, config.num_segments, length)
    mask = torch.ones(shape, dtype=torch.long)
    mask[0, ..., : min(3, length - 1)] = 0
    return {"input_ids": torch.randint(config.vocab_size, shape), "attention_mask": mask}


def _trials(config: SeqMixConfig, max_length: int | None) -> Iterator[dict[str, Tensor]]:
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
