"""Is a repository what it says, and safe to open? Read from its files alone, before anything is built or allocated."""

import dataclasses
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from huggingface_hub.utils import validate_repo_id

from ..models.auto import AUTO_CLASSES, FAMILIES
from ..models.configuration import SeqMixConfig
from .remote_code import family_of
from .safetensors_header import read_header

__all__ = ["check_repo_id", "check_repository"]

_MAX_JSON = 64 * 2**20
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".npy", ".npz", ".joblib")
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
}
# What the library writes beside the fields of a configuration.
_LIBRARY_FIELDS = {"model_type", "transformers_version", "auto_map", "architectures", "dtype", "_name_or_path"}


def check_repo_id(repo_id: str) -> str:
    """Return the name of a repository on the Hub, "user/name".

    Raises:
        ValueError: for anything else, such as a path.
    """
    if not isinstance(repo_id, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", repo_id, re.ASCII):
        raise ValueError(
            f"the name of a repository is {repo_id!r}; it must be 'user/name', of letters, digits, '-', '_', '.'."
        )
    validate_repo_id(repo_id)  # its error is a ValueError
    return repo_id


def check_repository(folder: str | Path) -> SeqMixConfig:
    """Check the files of a repository against each other; nothing is run, built in memory, or unpickled.

    The configuration must be one of the package's, without fields that it does not know; the weight files must be whole,
    and hold the tensors of the model that the configuration describes, of those shapes; the tokenizer must not have ids
    beyond the vocabulary; no name may point outside the folder.

    Args:
        folder: with config.json and *.safetensors.

    Returns:
        The configuration.

    Raises:
        ValueError: saying which file is wrong, and how.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder.")
    _check_files(folder)
    fields = _read_json(folder / "config.json")
    config = _check_config(folder, fields)
    _check_auto_map(folder, fields)
    _check_weights(folder, fields, config)
    _check_tokenizer(folder, config)
    return config


def _check_files(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            if not path.resolve().is_file():
                raise ValueError(f"{name} is a link to a folder or to nothing; a repository holds files.")
            # The Hub's local cache links every file to where its content lies.
            if "blobs" not in path.resolve().parts:
                raise ValueError(f"{name} is a link to {path.resolve()}; a repository holds files.")
        if path.suffix.lower() in _PICKLES:
            raise ValueError(f"{name} may run code when it is read; weights belong into *.safetensors files.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON:
            raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes; at most {_MAX_JSON:,} are read.")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path.name} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds a {type(content).__name__}; it must be an object.")
    return content


def _check_config(folder: Path, fields: dict[str, Any]) -> SeqMixConfig:
    known = {family.config_class.model_type: family.config_class for family in FAMILIES}
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in known:
        raise ValueError(
            f"config.json: model_type is {model_type!r}; it must be one of {', '.join(map(repr, known))}."
        )
    config_class = known[model_type]
    properties = {"num_labels", "id2label", "label2id"}
    unknown = sorted(
        set(fields) - {field.name for field in dataclasses.fields(config_class)} - _LIBRARY_FIELDS - properties
    )
    if unknown:
        raise ValueError(f"config.json: {', '.join(unknown)}: a {model_type!r} configuration has no such fields.")
    try:
        config = config_class.from_dict(dict(fields))
    except Exception as error:
        raise ValueError(f"config.json: {error}") from error
    return config


def _check_auto_map(folder: Path, fields: dict[str, Any]) -> None:
    auto_map = fields.get("auto_map")
    if auto_map is None:
        return
    if not isinstance(auto_map, dict):
        raise ValueError(f"config.json: auto_map is a {type(auto_map).__name__}; it must be an object.")
    allowed = {"AutoConfig", "AutoImageProcessor", *(cls.__name__ for cls in AUTO_CLASSES.values())}
    for name, reference in auto_map.items():
        if name not in allowed or not isinstance(reference, str) or not re.fullmatch(r"\w+\.\w+", reference, re.ASCII):
            raise ValueError(
                f"config.json: auto_map has {name!r}: {reference!r}; it must name a class in a file of this repository, "
                "'file.Class'."
            )
        if not (folder / (reference.split(".")[0] + ".py")).is_file():
            raise ValueError(f"config.json: auto_map names {reference.split('.')[0]}.py, which is not there.")


def _check_weights(folder: Path, fields: dict[str, Any], config: SeqMixConfig) -> None:
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in _weight_files(folder):
        for name, (dtype, shape) in read_header(folder / file).items():
            if name in found:
                raise ValueError(f"{file}: the tensor {name!r} is in another weight file, too.")
            found[name] = (dtype, shape)
    layers = {int(match[1]) for name in found if (match := re.match(r"(?:model\.)?layers\.(\d+)\.", name))}
    if len(layers) != config.num_blocks:
        raise ValueError(f"the weights have {len(layers)} blocks, but config.json describes {config.num_blocks}.")
    expected, tied = _expected_tensors(fields, config)
    for name, shape in expected.items():
        if name not in found and name not in tied:
            raise ValueError(f"the weights lack {name!r}, which the model of config.json has.")
        if name in found and found[name][1] != shape:
            raise ValueError(
                f"the tensor {name!r} has shape {list(found[name][1])}, but by config.json it has {list(shape)}."
            )
    extra = sorted(set(found) - set(expected))
    if extra:
        raise ValueError(f"the weights have {extra[0]!r}, which the model of config.json does not have.")
    odd = sorted({dtype for dtype, _ in found.values()} - set(_DTYPES))
    if odd:
        raise ValueError(f"the weights have tensors of type {', '.join(odd)}; known are {', '.join(_DTYPES)}.")


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        if not (folder / "model.safetensors").is_file():
            raise ValueError("there are no weights: neither model.safetensors nor model.safetensors.index.json.")
        return ["model.safetensors"]
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index.name}: weight_map is missing or empty.")
    files = sorted({str(file) for file in weight_map.values()})
    for file in files:
        if PurePosixPath(file).name != file or "\\" in file or not file.endswith(".safetensors"):
            raise ValueError(f"{index.name} names {file!r}; it must be a *.safetensors file of this folder.")
        if not (folder / file).is_file():
            raise ValueError(f"{index.name} names {file}, which is not there.")
    for file in files:
        listed = {name for name, place in weight_map.items() if place == file}
        if listed != set(read_header(folder / file)):
            raise ValueError(f"{file} does not hold the tensors that {index.name} says.")
    return files


def _expected_tensors(fields: dict[str, Any], config: SeqMixConfig) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """Return the tensors of the model that a configuration describes, and which of them need not be stored."""
    classes = {cls.__name__: cls for cls in family_of(config).classes.values()}
    architectures = fields.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else None
    if not isinstance(name, str) or name not in classes:
        raise ValueError(f"config.json: architectures is {architectures!r}; it must name one of {', '.join(classes)}.")
    with torch.device("meta"):
        model = classes[name](config)
    tensors = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return tensors, set(getattr(model, "all_tied_weights_keys", {}) or {})


def _check_tokenizer(folder: Path, config: SeqMixConfig) -> None:
    settings = folder / "tokenizer_config.json"
    if settings.exists() and "auto_map" in _read_json(settings):
        raise ValueError(
            "tokenizer_config.json has an auto_map: the package's models need no tokenizer with code of its own."
        )
    path = folder / "tokenizer.json"
    if not path.exists() or config.image_shape is not None:
        return
    content = _read_json(path)
    vocabulary = (content.get("model") or {}).get("vocab") if isinstance(content.get("model"), dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary or [])))
    ids += [token.get("id") for token in content.get("added_tokens") or [] if isinstance(token, dict)]
    if not all(isinstance(number, int) for number in ids):
        raise ValueError("tokenizer.json has ids that are not integers.")
    largest = max(ids, default=-1)
    if largest >= config.vocab_size or min(ids, default=0) < 0:
        raise ValueError(
            f"tokenizer.json has ids up to {largest}, but vocab_size is {config.vocab_size}: it is not the model's tokenizer."
        )
