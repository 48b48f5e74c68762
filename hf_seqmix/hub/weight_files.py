"""Compares the tensors in weight files with the model of a configuration, by the headers of the files alone."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from ..models.block import SeqMixBlock
from ..models.configuration import SeqMixConfig
from ..models.configuration.limits import short
from .remote_code import family_of
from .repository_files import is_present, read_json
from .safetensors_header import Header, read_header

__all__ = ["check_weights", "model_class", "weight_headers"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MOST_TENSORS = 2**18
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_INTEGERS = {"I64": torch.int64, "I32": torch.int32, "BOOL": torch.bool}


def weight_headers(folder: Path) -> dict[str, Header]:
    """Return the headers of the weight files that the library would open: name of a file -> its tensors.

    Raises:
        ValueError: for weights that are missing, not whole, or not those that the index names, and for a single file
            beside an index, of which the library would take the file.
    """
    if not is_present(folder, _INDEX):
        if not is_present(folder, _SINGLE):
            raise ValueError(f"there are no weights: neither {_SINGLE} nor {_INDEX}.")
        return {_SINGLE: read_header(folder / _SINGLE)}
    if is_present(folder, _SINGLE):
        raise ValueError(f"there are both {_SINGLE} and {_INDEX}, which may hold two models: remove one of them.")
    index = read_json(folder / _INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{_INDEX}: weight_map is missing or empty.")
    names: dict[str, set[str]] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not _is_plain(file):
            raise ValueError(f"{_INDEX} names {short(file)}; it must be a *.safetensors file of this folder.")
        names.setdefault(file, set()).add(tensor)
    headers: dict[str, Header] = {}
    for file, listed in sorted(names.items()):
        if not is_present(folder, file):
            raise ValueError(f"{_INDEX} names {short(file)}, which is not there.")
        headers[file] = read_header(folder / file)
        if listed != set(headers[file]):
            raise ValueError(f"{file} does not hold the tensors that {_INDEX} says.")
    if not isinstance(index.get("metadata"), dict):  # without which the library does not open the files
        raise ValueError(f"{_INDEX}: metadata is missing or no object; it must be {{}} at least.")
    return headers


def _is_plain(file: str) -> bool:
    return PurePosixPath(file).name == file and "\\" not in file and file.endswith(".safetensors")


def model_class(fields: dict[str, Any], config: SeqMixConfig) -> Any:
    """Return the class that wrote a model, by its configuration's `architectures`.

    Raises:
        ValueError: if it names no class, several, or one of another family.
    """
    classes: dict[str, Any] = {cls.__name__: cls for cls in family_of(config).classes.values()}
    architectures = fields.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else None
    if not isinstance(name, str) or name not in classes:
        raise ValueError(
            f"config.json: architectures is {short(architectures)}; it must name one of {', '.join(classes)}."
        )
    return classes[name]


def check_weights(headers: dict[str, Header], fields: dict[str, Any], config: SeqMixConfig) -> None:
    """Compare the tensors of the weight files with those of the model, by name, shape and type.

    Blocks are compared first, one after another, so that no more of a large model is built than a file holds.

    Raises:
        ValueError: naming the first tensor that is missing, unexpected, or other than the configuration says.
    """
    found: Header = {}
    for file, header in headers.items():
        twice = sorted(set(header) & set(found))
        if twice:
            raise ValueError(f"{file}: the tensor {twice[0]!r} is in another weight file, too.")
        found.update(header)
    if len(found) > _MOST_TENSORS:
        raise ValueError(f"the weights have {len(found):,} tensors; at most {_MOST_TENSORS:,} are allowed.")
    odd = sorted({dtype for dtype, _ in found.values()} - {*_FLOATS, *_INTEGERS})
    if odd:
        raise ValueError(f"the weights have tensors of type {', '.join(odd)}; known are {', '.join(_FLOATS)}.")
    cls = model_class(fields, config)
    try:
        with torch.device("meta"):
            _check_blocks(found, config)
            model = cls(config)
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise ValueError(f"config.json describes a model too large to be built: {error}.") from error
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    _compare(found, model.state_dict(), tied)


def _check_blocks(found: Header, config: SeqMixConfig) -> None:
    blocks: dict[int, tuple[str, Header]] = {}
    for name, entry in found.items():
        if match := re.match(r"((?:model\.)?layers\.(0|[1-9]\d{0,5})\.)", name):
            blocks.setdefault(int(match[2]), (match[1], {}))[1][name] = entry
    if len(blocks) != config.num_blocks:
        raise ValueError(f"the weights have {len(blocks)} blocks, but config.json describes {config.num_blocks}.")
    if max(blocks) != len(blocks) - 1:
        raise ValueError(f"the weights have blocks {short(sorted(blocks))[1:-1]}; they must be numbered from 0 on.")
    for number, (prefix, header) in sorted(blocks.items()):
        block = SeqMixBlock(config, number)
        _compare(header, {prefix + name: tensor for name, tensor in block.state_dict().items()}, set())


def _compare(found: Header, expected: dict[str, Tensor], tied: set[str]) -> None:
    for name, tensor in expected.items():
        if name not in found:
            if name in tied:
                continue
            raise ValueError(f"the weights lack {name!r}, which the model of config.json has.")
        dtype, shape = found[name]
        if shape != tuple(tensor.shape):
            raise ValueError(
                f"the tensor {name!r} has shape {list(shape)}, but by config.json it has {list(tensor.shape)}."
            )
        if dtype in _INTEGERS and _INTEGERS[dtype] != tensor.dtype:
            raise ValueError(f"the tensor {name!r} is of type {dtype}; the model's own is {tensor.dtype}.")
    extra = sorted(set(found) - set(expected))
    if extra:
        raise ValueError(f"the weights have {extra[0]!r}, which the model of config.json does not have.")
