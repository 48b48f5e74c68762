"""Checks that a repository is consistent and safe to open, from its files alone.

A check runs before a model is built and before memory is allocated for weights.
"""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

from huggingface_hub.utils import validate_repo_id
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from ..models.auto import AUTO_CLASSES, FAMILIES
from ..models.configuration import SeqMixConfig
from .exporting import check_processor
from .repository_files import check_names, is_present, read_any_json, read_json, refuse_adapters, require_file
from .weight_files import check_weights, weight_headers

__all__ = ["check_checkpoint", "check_repo_id", "check_repository", "describe", "open_processor"]

# What the library writes beside the fields of a configuration.
_LIBRARY_FIELDS = {"model_type", "transformers_version", "auto_map", "architectures", "dtype", "_name_or_path"}
_DERIVED_FIELDS = {"num_labels", "id2label", "label2id"}
_OBJECTS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# What the library may read of a checkpoint.
_READ = (".json", ".safetensors", ".jinja", ".txt", ".model")


def check_repo_id(repo_id: str) -> str:
    """Return the name of a repository on the Hub, "user/name".

    Raises:
        ValueError: for anything else, such as a path.
    """
    if not isinstance(repo_id, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", repo_id, re.ASCII):
        raise ValueError(
            f"the name of a repository is {repo_id!r}; it must be 'user/name', of letters, digits, '-', '_', '.'."
        )
    if repo_id.lower().endswith((".git", ".ipynb")) or repo_id.split("/")[0] in ("datasets", "models", "spaces"):
        raise ValueError(f"the name of a repository is {repo_id!r}; the Hub has another meaning for such a name.")
    validate_repo_id(repo_id)  # its error is a ValueError
    return repo_id


def check_repository(folder: str | Path) -> SeqMixConfig:
    """Check the files of a repository against each other; run no code of it, unpickle nothing, read no weight.

    - The configuration is one of the package's, without unknown fields.
    - The weight files are whole and hold the tensors, of the right shapes, of the model that the configuration
      describes.
    - The tokenizer or image processor opens, and the tokenizer has no ids beyond the vocabulary.
    - There are no other weights, no adapter, and only kinds of files that a repository has.
    - No name points outside the folder.

    The contents of `*.py` files are not judged, since a repository may come from another version of the package. A
    checked repository is safe to open with hf_seqmix imported, which ignores its code. With
    `trust_remote_code=True` and without hf_seqmix, the repository is as safe as its author is trusted.

    Args:
        folder: with config.json and *.safetensors.

    Returns:
        The configuration.

    Raises:
        ValueError: for a file that is wrong; the message names the file and the fault.
    """
    folder = _existing(folder)
    names = check_names(folder)
    refuse_adapters(folder)
    config, fields = _read_config(folder)
    _refuse_unknown_fields(config, fields)
    _check_json(folder, names)
    headers = weight_headers(folder)
    unnamed = [name for name in names if name.endswith(".safetensors") and name not in headers]
    if unnamed:
        raise ValueError(
            f"{unnamed[0]} holds weights that are not the model's, which is in {', '.join(headers)[:80]}."
        )
    check_weights(headers, fields, config)
    if config.image_shape is None:
        _check_tokenizer_file(folder, config)
    open_processor(folder, config)
    return config


def check_checkpoint(folder: str | Path) -> SeqMixConfig:
    """Check those files of a saved model that are opened, as `check_repository` does.

    A checkpoint of a training run passes with the state of its optimizer, and so does a configuration with fields of
    other tools.

    Raises:
        ValueError: for a file that is wrong; the message names the file and the fault.
    """
    folder = _existing(folder)
    refuse_adapters(folder)
    for name in sorted(os.listdir(folder)):
        if name.endswith(_READ) and not (folder / name).is_dir():
            require_file(folder / name)
        if name in _OBJECTS:
            read_json(folder / name)
    config, fields = _read_config(folder)
    if fields.get("quantization_config") is not None:
        raise ValueError("config.json: the weights are quantized; open them by the model's own from_pretrained.")
    check_weights(weight_headers(folder), fields, config)
    if config.image_shape is None:
        _check_tokenizer_file(folder, config)
    return config


def _existing(folder: str | Path) -> Path:
    if not isinstance(folder, (str, os.PathLike)) or not os.path.isdir(folder):
        raise ValueError(f"{folder} is not a folder.")
    return Path(folder)


def _read_config(folder: Path) -> tuple[SeqMixConfig, dict[str, Any]]:
    fields = read_json(folder / "config.json")
    known = {family.config_class.model_type: family.config_class for family in FAMILIES}
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in known:
        raise ValueError(
            f"config.json: model_type is {model_type!r}; it must be one of {', '.join(map(repr, known))}."
        )
    if not isinstance(fields.get("auto_map", {}), dict):
        raise ValueError(f"config.json: auto_map is a {type(fields['auto_map']).__name__}; it must be an object.")
    try:
        return known[model_type].from_dict(dict(fields)), fields
    except Exception as error:  # of the library, which does not look at all that it reads
        raise ValueError(f"config.json: {describe(error)}") from error


def _refuse_unknown_fields(config: SeqMixConfig, fields: dict[str, Any]) -> None:
    own = {field.name for field in dataclasses.fields(config)}
    unknown = sorted(set(fields) - own - _LIBRARY_FIELDS - _DERIVED_FIELDS)
    if unknown:
        raise ValueError(
            f"config.json: {', '.join(unknown)}: a {config.model_type!r} configuration has no such fields."
        )


def _check_json(folder: Path, names: list[str]) -> None:
    """Read every JSON file, and check the code that it names."""
    for name in names:
        if not name.endswith(".json") or name == "tokenizer.json":
            continue
        content = read_json(folder / name) if name in _OBJECTS else read_any_json(folder / name)
        if not isinstance(content, dict) or "auto_map" not in content:
            continue
        if name == "tokenizer_config.json":
            raise ValueError(f"{name} has an auto_map: the package's models need no tokenizer with code of its own.")
        _check_auto_map(folder, name, content["auto_map"])


def _check_auto_map(folder: Path, name: str, auto_map: Any) -> None:
    if not isinstance(auto_map, dict):
        raise ValueError(f"{name}: auto_map is a {type(auto_map).__name__}; it must be an object.")
    allowed = {"AutoConfig", "AutoImageProcessor", *(cls.__name__ for cls in AUTO_CLASSES.values())}
    for key, reference in auto_map.items():
        if key not in allowed or not isinstance(reference, str) or not re.fullmatch(r"\w+\.\w+", reference, re.ASCII):
            raise ValueError(
                f"{name}: auto_map has {key!r}: {reference!r}; it must name a class in a file of this repository, "
                "'file.Class'."
            )
        if not is_present(folder, reference.split(".")[0] + ".py"):
            raise ValueError(f"{name}: auto_map names {reference.split('.')[0]}.py, which is not there.")


def _check_tokenizer_file(folder: Path, config: SeqMixConfig) -> None:
    if not is_present(folder, "tokenizer.json"):
        return
    content = read_json(folder / "tokenizer.json")
    try:
        vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab(with_added_tokens=True)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of its Rust code is no Exception
        raise ValueError(f"tokenizer.json is no tokenizer: {error}.") from error
    # Added tokens are numbered anew when they are read, whatever their ids in the file.
    largest = max([*vocabulary.values(), *(token["id"] for token in content.get("added_tokens") or [])], default=-1)
    if largest >= config.vocab_size:
        raise ValueError(
            f"tokenizer.json has ids up to {largest}, but vocab_size is {config.vocab_size}: it is not the model's "
            "tokenizer."
        )


def open_processor(folder: Path, config: SeqMixConfig) -> Any:
    """Open the tokenizer of a model of text, or the image processor of a model of images; run no code of the folder.

    Files beside tokenizer.json may add tokens, so that only the opened tokenizer shows all ids.

    Returns:
        The processor, or None where the folder has no settings of a processor.

    Raises:
        ValueError: if it cannot be opened, or does not fit the model.
    """
    reads_images = config.image_shape is not None
    settings = "preprocessor_config.json" if reads_images else "tokenizer_config.json"
    if not is_present(folder, settings):
        return None
    processor: Any
    try:
        if reads_images:
            # Some releases want torchvision for the Auto class, which the package's own processor does without.
            from ..models.images.processing import SeqMixImageProcessor

            _check_processor_type(read_json(folder / settings))
            processor = SeqMixImageProcessor.from_pretrained(str(folder), local_files_only=True)
        else:
            processor = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        check_processor(config, processor)
    except Exception as error:  # of the library, which does not look at all that it reads
        raise ValueError(f"{settings}: {describe(error)}") from error
    return processor


def _check_processor_type(settings: dict[str, Any]) -> None:
    kind = settings.get("image_processor_type")
    if kind != "SeqMixImageProcessor":
        raise ValueError(
            f"image_processor_type is {kind!r}; the package's models read images by SeqMixImageProcessor."
        )


def describe(error: Exception) -> str:
    """Return the message of an error, with the name of its class unless it is a `ValueError`."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
