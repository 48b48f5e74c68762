"""Opens a saved model of the package, whatever its head, with the tokenizer or image processor beside the model."""

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from ..models.pretrained import SeqMixPreTrainedModel
from .checking import check_checkpoint, describe, open_processor
from .repository_files import read_json
from .weight_files import model_class

__all__ = ["open_checkpoint"]

# The files of a repository that may be read: no code, nothing that is unpickled, weights at the top level only.
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_OTHER_WEIGHTS = ["*/*.safetensors"]


def open_checkpoint(
    name: str | Path, *, revision: str | None = None, dtype: str = "auto"
) -> tuple[SeqMixPreTrainedModel, Any]:
    """Open a checkpoint by the class that wrote it, and its tokenizer or image processor.

    The files are checked first, see `check_checkpoint`. Code beside the weights is not run, and the library does not
    ask whether to run it. Nothing is unpickled, and no weight is drawn anew or left out.

    Args:
        name: a folder, or a repository on the Hub.
        revision: of the repository.
        dtype: of the weights; by default that of the file.

    Returns:
        The model in evaluation mode, and its processor, None where there are no files of a processor.

    Raises:
        ValueError: for a checkpoint that no class of the package wrote, or that is not whole; the message names the
            file. Also for a `revision` of a folder.
    """
    name = str(name)
    try:
        if Path(name).is_dir():
            if revision is not None:
                raise ValueError(f"revision is {revision!r}, and a folder has none: leave it out.")
            return _open_folder(Path(name), dtype)
        folder = Path(
            snapshot_download(name, revision=revision, allow_patterns=_FILES, ignore_patterns=_OTHER_WEIGHTS)
        )
        model, processor = _open_folder(folder, dtype)
    except HFValidationError as error:
        raise ValueError(f"{name} cannot be opened: it is neither a folder nor the name of a repository.") from error
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"{name} is no folder here (paths start from {Path.cwd()}), and the Hub cannot be reached."
        ) from error
    except Exception as error:  # of the libraries, too, which do not look at all that they read
        raise ValueError(f"{name} cannot be opened: {describe(error)}") from error
    model.name_or_path = model.config.name_or_path = name  # not where its files were put on this machine
    return model, processor


def _open_folder(folder: Path, dtype: str) -> tuple[SeqMixPreTrainedModel, Any]:
    config = check_checkpoint(folder)
    cls = model_class(read_json(folder / "config.json"), config)
    place = str(folder)
    model, loading = cls.from_pretrained(
        place,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
    )
    _check_loading(model, loading)
    return model.eval(), open_processor(folder, config)


def _check_loading(model: SeqMixPreTrainedModel, loading: dict[str, Any]) -> None:
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    missing = sorted(name for name in loading["missing_keys"] if name not in tied)
    for names, what in (
        (missing, "lack"),
        (sorted(loading["unexpected_keys"]), "have, as no part of the model,"),
        (sorted(name for name, *_ in loading["mismatched_keys"]), "have of another shape"),
    ):
        if names:
            raise ValueError(f"the weights {what} {', '.join(names[:3])}{', ...' if names[3:] else ''}.")
