"""A model as a repository that opens anywhere: weights, configuration, code, tokenizer, card."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import PreTrainedTokenizerBase
from transformers.image_processing_utils import BaseImageProcessor

from ..data.whole_files import write_json
from ..models.backbone import SeqMixPreTrainedModel
from .cards import check_card, head_of, plain_card
from .remote_code import remote_code

__all__ = ["export"]

_OF_THIS_MACHINE = frozenset(["is_local", "local_files_only", "name_or_path"])


def export(
    model: SeqMixPreTrainedModel,
    processor: Any,
    folder: str | Path,
    *,
    card: ModelCard | str | None = None,
    max_shard_size: int | str = "5GB",
) -> Path:
    """Write a model as a self-contained repository.

    It opens with `trust_remote_code=True` where hf_seqmix is not installed, by any head of the family, and as the
    package's own class where hf_seqmix is imported. It is written beside `folder` and renamed when it is complete.

    Args:
        model: of one of the package's families, weights in memory.
        processor: its tokenizer or image processor; None for none.
        folder: where to; it must not exist yet, or be empty.
        card: a finished model card, see `build_card`; by default one with what the model itself says.
        max_shard_size: bytes of a weight file, as a number or like "5GB".

    Returns:
        The folder.

    Raises:
        ValueError: for a folder with something in it, a model or mixer from outside the package, weights that are not in
            memory, a processor that does not fit, or a card with blanks.
    """
    folder = Path(folder)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} is a file or a link. Give a folder, or a name that does not exist yet.")
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"the folder {folder} is not empty, and an export replaces nothing. Give another.")
    head_of(model)
    _check_weights(model)
    check_processor(model.config, processor)
    code = remote_code(model.config)
    text = str(plain_card(model, processor) if card is None else card)
    check_card(text)

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        model.save_pretrained(temporary, max_shard_size=max_shard_size)
        save_processor(processor, temporary)
        for name, source in code.files.items():
            (temporary / name).write_text(source, encoding="utf-8")
        _add_auto_map(temporary / "config.json", {**code.auto_map, **code.processor_map})
        if (temporary / "preprocessor_config.json").exists():
            _add_auto_map(temporary / "preprocessor_config.json", code.processor_map)
        (temporary / "README.md").write_text(text, encoding="utf-8")
        _open_permissions(temporary)
        temporary.replace(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def save_processor(processor: Any, folder: Path) -> None:
    """Write a tokenizer or image processor, without what it remembers of how it was opened on this machine."""
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
        ValueError: for a tokenizer with more ids than the vocabulary, or a processor of the other kind.
    """
    if processor is None:
        return
    if config.image_shape is not None:
        if not isinstance(processor, BaseImageProcessor):
            raise ValueError(f"this is a model of images, but the processor is a {type(processor).__name__}.")
        return
    if not isinstance(processor, PreTrainedTokenizerBase):
        raise ValueError(f"this is a model of text, but the processor is a {type(processor).__name__}, no tokenizer.")
    largest = max(processor.get_vocab().values(), default=-1)
    if largest >= config.vocab_size:
        raise ValueError(
            f"the tokenizer has ids up to {largest}, but vocab_size is {config.vocab_size}: it is not the model's, or the "
            "embeddings have to be resized (model.resize_token_embeddings(len(tokenizer)))."
        )


def _check_weights(model: SeqMixPreTrainedModel) -> None:
    elsewhere = [name for name, tensor in model.state_dict().items() if tensor.device.type == "meta"]
    if elsewhere:
        raise ValueError(
            f"{len(elsewhere)} weights are not in memory ({elsewhere[0]}, ...): open the model without offloading."
        )


def _add_auto_map(path: Path, auto_map: dict[str, str]) -> None:
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), "auto_map": auto_map})


def _open_permissions(folder: Path) -> None:
    """Give a private temporary folder the permissions that a folder has."""
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
