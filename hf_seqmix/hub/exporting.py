"""Exports a model as a repository that opens anywhere: weights, configuration, code, tokenizer, card."""

import copy
import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResultEntry, ModelCard
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .._files import write_json
from ..models.mixers import FEED_FORWARDS, MIXERS
from ..models.pretrained import SeqMixPreTrainedModel
from .cards import check_card, head_of, plain_card
from .eval_results import write_eval_results
from .remote_code import remote_code
from .repository_files import PICTURES

__all__ = ["export"]

_OF_THIS_MACHINE = frozenset(["is_local", "local_files_only", "name_or_path"])
# The library writes these of a configuration, beside its fields.
_BESIDE_FIELDS = frozenset(
    ["model_type", "architectures", "dtype", "transformers_version", "num_labels", "id2label", "label2id"]
)


def export(
    model: SeqMixPreTrainedModel,
    processor: Any,
    folder: str | Path,
    *,
    card: ModelCard | str | None = None,
    pictures: Sequence[str | Path] = (),
    results: Sequence[EvalResultEntry] = (),
    max_shard_size: int | str = "5GB",
) -> Path:
    """Write a model as a self-contained repository.

    Where hf_seqmix is not installed, any head of the family opens the repository with `trust_remote_code=True`, from
    the code beside the weights (see `remote_code`). Where hf_seqmix is imported, the package's own class opens the
    repository.

    Files are written to a temporary folder beside `folder`, checked by `check_repository`, and renamed when complete.
    Fields of the configuration that no class of the package reads, put there by other tools, are left out.

    Args:
        model: of one of the package's families, weights in memory, adapters merged, not quantized.
        processor: the model's tokenizer or image processor; None for none.
        folder: of the repository; it must not exist yet, or be empty.
        card: a finished model card, see `build_card`; by default a card with the facts of the model alone.
        pictures: files that the card shows, copied beside the card.
        results: evaluations on benchmarks of the Hub, see `eval_results`.
        max_shard_size: bytes of a weight file, as a number or like "5GB".

    Returns:
        The folder.

    Raises:
        ValueError: for a folder that is not empty, a model or mixer from outside the package, weights that are not in
            memory or do not fit the configuration, a processor that does not fit the model, a card with blanks, or a
            picture that is missing, of another kind, or of the name of another.
    """
    from .checking import check_repository

    folder = _new_folder(folder)
    _check_shard_size(max_shard_size)
    head_of(model)
    _check_weights(model)
    check_processor(model.config, processor)
    code = remote_code(model.config)
    text = str(plain_card(model, processor) if card is None else card)
    check_card(text)

    made = [parent for parent in folder.parents if not parent.exists()]
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        model.save_pretrained(temporary, max_shard_size=max_shard_size)
        save_processor(processor, temporary)
        for name, source in code.files.items():
            (temporary / name).write_text(source, encoding="utf-8")
        _drop_foreign_fields(temporary / "config.json", model.config)
        _add_auto_map(temporary / "config.json", {**code.auto_map, **code.processor_map})
        if (temporary / "preprocessor_config.json").exists():
            _add_auto_map(temporary / "preprocessor_config.json", code.processor_map)
        (temporary / "README.md").write_text(text, encoding="utf-8")
        for picture in map(Path, pictures):
            _copy_picture(picture, temporary)
        write_eval_results(temporary, results)
        _open_permissions(temporary)
        check_repository(temporary)
        temporary.replace(folder)
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            if parent.exists() and not any(parent.iterdir()):
                parent.rmdir()
        raise
    return folder


def _copy_picture(picture: Path, folder: Path) -> None:
    """Copy a picture; its ending keeps the picture from replacing a file of the model."""
    if picture.suffix.lower() not in PICTURES or not picture.is_file():
        raise ValueError(f"{picture} is no picture, or missing; a card shows {', '.join(PICTURES)}.")
    if (folder / picture.name).exists():
        raise ValueError(f"there are two pictures {picture.name!r}, which would be one file: rename one of them.")
    shutil.copyfile(picture, folder / picture.name)


def save_processor(processor: Any, folder: Path) -> None:
    """Write a tokenizer or image processor, without the fields that say how it was opened on this machine."""
    if processor is None:
        return
    processor.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    if settings.exists():
        values = json.loads(settings.read_text(encoding="utf-8"))
        write_json(settings, {name: value for name, value in values.items() if name not in _OF_THIS_MACHINE})


def check_processor(config: Any, processor: Any) -> None:
    """Refuse a tokenizer or image processor that does not fit a model.

    Raises:
        ValueError: for a tokenizer with ids beyond the vocabulary, an image processor that is not the package's or
            makes images of another size, a tokenizer for a model of images, or an image processor for a model of text.
    """
    if processor is None:
        return
    if config.image_shape is not None:
        _check_image_processor(config.image_shape, processor)
        return
    if not isinstance(processor, PreTrainedTokenizerBase):
        raise ValueError(f"this is a model of text, but the processor is a {type(processor).__name__}, no tokenizer.")
    largest = max(processor.get_vocab().values(), default=-1)
    if largest >= config.vocab_size:
        raise ValueError(
            f"the tokenizer has ids up to {largest}, but vocab_size is {config.vocab_size}: it is not the model's, or "
            "the embeddings have to be resized (model.resize_token_embeddings(len(tokenizer)))."
        )


def _check_image_processor(image: Any, processor: Any) -> None:
    from ..models.images.processing import SeqMixImageProcessor

    if type(processor) is not SeqMixImageProcessor:
        raise ValueError(
            f"this is a model of images, but the processor is a {type(processor).__name__}: give the one of "
            "SeqMixImageProcessor.for_model(model.config)."
        )
    made = (processor.size.get("height"), processor.size.get("width"), processor.num_channels)
    wanted = (*image.image_size, image.num_channels)
    if made != wanted:
        raise ValueError(
            f"the image processor makes images of height, width and channels {made}, but the model reads {wanted}: "
            "give the one of SeqMixImageProcessor.for_model(model.config)."
        )


def _new_folder(folder: str | Path) -> Path:
    """Return the folder if it is new or empty, and neither the current folder nor one around it."""
    if not isinstance(folder, (str, os.PathLike)):
        raise ValueError(f"folder is {folder!r}; it must be the name of a folder.")
    folder = Path(folder)
    refuse_current(folder)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} is a file or a link. Give a folder, or a name that does not exist yet.")
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"the folder {folder} is not empty, and an export replaces nothing. Give another.")
    return folder


def refuse_current(folder: Path) -> None:
    """Refuse the current folder and those around it, in the place of which a new folder cannot be put."""
    here = Path.cwd()
    if folder.name in ("", "..") or folder.resolve() in (here, *here.parents):
        raise ValueError(
            f"the folder {str(folder)!r} is the current one, or one around it. Give another, or call from elsewhere."
        )


def _check_shard_size(size: Any) -> None:
    if isinstance(size, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*[KMGT]B\s*", size, re.ASCII | re.IGNORECASE)
        fits = found is not None and float(found[1]) > 0
    else:
        fits = isinstance(size, int) and not isinstance(size, bool) and size > 0
    if not fits:
        raise ValueError(
            f"max_shard_size is {size!r}; it must be a number of bytes above 0, or like '5GB' or '200MB'."
        )


def _check_weights(model: SeqMixPreTrainedModel) -> None:
    """Refuse a model with modules or tensors that its configuration does not describe, or tensors not in memory."""
    if getattr(model, "_hf_peft_config_loaded", False) or hasattr(model, "peft_config"):
        raise ValueError("the model has adapters: merge them first (peft's merge_and_unload), or delete them.")
    tensors: dict[str, Any] = model.state_dict()
    odd = [name for name, tensor in tensors.items() if type(tensor) is not Tensor]
    if odd or getattr(model.config, "quantization_config", None) is not None:
        what = f"{odd[0]} is a {type(tensors[odd[0]]).__name__}" if odd else "the configuration says so"
        raise ValueError(f"the model is quantized or split over devices ({what}): export it as it was before.")
    elsewhere = [name for name, tensor in tensors.items() if tensor.device.type == "meta"]
    if elsewhere:
        raise ValueError(
            f"{len(elsewhere)} weights are not in memory ({elsewhere[0]}, ...): open the model without offloading."
        )
    _check_registered(model)
    with torch.device("meta"):
        described = type(model)(copy.deepcopy(model.config))
    by_config = "so the model is not the one that its configuration describes, and would not open again."
    kinds = {name: type(module) for name, module in described.named_modules()}
    for name, module in model.named_modules():
        if kinds.get(name) is not type(module):
            raise ValueError(
                f"{name or 'the model'} is a {type(module).__module__}.{type(module).__name__}, {by_config}"
            )
    shapes = {name: tuple(tensor.shape) for name, tensor in described.state_dict().items()}
    for name in {**shapes, **tensors}:
        shape = tuple(tensors[name].shape) if name in tensors else None
        if shape != shapes.get(name):
            raise ValueError(f"{name} has shape {shape}, and by the configuration {shapes.get(name)}, {by_config}")
    for name, source in (getattr(described, "all_tied_weights_keys", None) or {}).items():
        if tensors[name].data_ptr() != tensors[source].data_ptr() and not torch.equal(tensors[name], tensors[source]):
            raise ValueError(f"{name} is not {source}, though tie_word_embeddings is True: set it to False first.")


def _check_registered(model: SeqMixPreTrainedModel) -> None:
    """Refuse mixers and feed-forwards that were registered in place of the package's own."""
    names = {model.config.model_type, *model.config.layer_mixers}
    builders: dict[str, Any] = {f"the mixer {name!r}": MIXERS[name] for name in names if name in MIXERS}
    builders |= {f"the feed-forward of {name!r}": FEED_FORWARDS[name] for name in names if name in FEED_FORWARDS}
    for what, build in builders.items():
        if not str(getattr(build, "__module__", "")).startswith(f"{__package__.split('.')[0]}."):
            raise ValueError(f"{what} was registered from outside the package: only its own code can be exported.")


def _drop_foreign_fields(path: Path, config: Any) -> None:
    known = {field.name for field in dataclasses.fields(config)} | _BESIDE_FIELDS
    fields = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {name: value for name, value in fields.items() if name in known})


def _add_auto_map(path: Path, auto_map: dict[str, str]) -> None:
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), "auto_map": auto_map})


def _open_permissions(folder: Path) -> None:
    """Give a private temporary folder the permissions that a folder has."""
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
