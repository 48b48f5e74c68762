"""A saved model of the package, whatever its head, with the tokenizer or image processor beside it."""

from pathlib import Path
from typing import Any

from huggingface_hub.utils import EntryNotFoundError
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer
from transformers.utils import cached_file

from ..models.backbone import SeqMixPreTrainedModel
from .remote_code import family_of

__all__ = ["open_checkpoint"]


def open_checkpoint(
    name: str | Path, *, revision: str | None = None, dtype: str = "auto"
) -> tuple[SeqMixPreTrainedModel, Any]:
    """Open a checkpoint by the class that wrote it, and its tokenizer or image processor.

    Args:
        name: a folder, or a repository on the Hub.
        revision: of the repository.
        dtype: of the weights; by default that of the file.

    Returns:
        The model in evaluation mode, and its processor; None where there are no files of one.

    Raises:
        ValueError: for a checkpoint that was not written by a class of the package.
    """
    name = str(name)
    config = AutoConfig.from_pretrained(name, revision=revision)
    classes: dict[str, Any] = {cls.__name__: cls for cls in family_of(config).classes.values()}
    architectures = config.architectures or []
    if len(architectures) != 1 or architectures[0] not in classes:
        raise ValueError(f"{name}: architectures is {architectures!r}; it must name one of {', '.join(classes)}.")
    model = classes[architectures[0]].from_pretrained(name, revision=revision, dtype=dtype)
    reads_images = config.image_shape is not None
    settings, auto_class = (
        ("preprocessor_config.json", AutoImageProcessor) if reads_images else ("tokenizer_config.json", AutoTokenizer)
    )
    has_processor = _has_file(name, settings, revision)
    return model.eval(), auto_class.from_pretrained(name, revision=revision) if has_processor else None


def _has_file(name: str, file: str, revision: str | None) -> bool:
    try:
        found = cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=False)
    except EntryNotFoundError:
        return False
    return found is not None
