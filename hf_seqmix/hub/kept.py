"""Checkpoints that are kept in this repository, each in a folder with its card."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml

from ..models.pretrained import SeqMixPreTrainedModel
from .cards import build_card
from .exporting import check_processor, refuse_current, save_processor
from .model_files import belongs_to_model
from .opening import open_checkpoint

__all__ = ["CARD_VALUES", "read_card_values", "render_card", "write_weights"]

CARD_VALUES = "card.yaml"
"""The file beside the weights with the values of the card; the card, README.md, is written from this file."""


def write_weights(model: SeqMixPreTrainedModel, processor: Any, folder: str | Path) -> Path:
    """Write the weights, configuration and tokenizer of a checkpoint into its folder, in place of older ones.

    A new folder is written beside the old folder. Files that belong to no model, such as the card, are copied to the
    new folder, and the two change places. So a folder never holds files of two models, and a failure leaves the old
    folder.

    Args:
        model: of one of the package's families, in the dtype that is to be kept.
        processor: its tokenizer or image processor; None for none.
        folder: made if it does not exist.

    Raises:
        ValueError: for a processor that does not fit the model, and for the current folder or one around it.
    """
    check_processor(model.config, processor)
    refuse_current(Path(folder))
    place = Path(folder).resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    new, old = temporary / "new", temporary / "old"
    try:
        new.mkdir()
        model.save_pretrained(new)
        save_processor(processor, new)
        for path in new.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        if place.exists():
            _copy_others(place, new)
        try:
            if place.exists():
                place.replace(old)
            new.replace(place)
        except BaseException:
            if old.exists():
                old.replace(place)
            raise
    finally:
        if place.exists() or not old.exists():
            shutil.rmtree(temporary, ignore_errors=True)
    return Path(folder)


def _copy_others(old: Path, new: Path) -> None:
    """Copy the files and folders that belong to no model."""
    for path in old.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, new / path.name, symlinks=True)
        elif not belongs_to_model(path.name):
            shutil.copy2(path, new / path.name, follow_symlinks=False)
    shutil.copymode(old, new)


def render_card(folder: str | Path, repo_id: str | None = None) -> str:
    """Return the card of a checkpoint's folder, made from its `card.yaml` and the facts of the model.

    Args:
        folder: with `card.yaml`, weights and tokenizer.
        repo_id: the name that the card opens the model by. By default the name is the folder's, which has no code
            beside the weights, and the card says how to push the folder.

    Raises:
        ValueError: there is no `card.yaml`, it cannot be read, or it has blanks.
    """
    folder = Path(folder)
    values = read_card_values(folder / CARD_VALUES)
    model, processor = open_checkpoint(folder)
    place = folder.resolve()
    name = repo_id or f"{place.parent.name}/{place.name}"
    return str(build_card(model, processor, name, values, with_code=repo_id is not None))


def read_card_values(path: str | Path) -> dict[str, Any]:
    """Read the values of a card from YAML, of which JSON is a part.

    Raises:
        ValueError: the file is not there, cannot be read, or holds no mapping.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(
            f"there is no {path}: it holds the values of the card, such as model_name and results."
        ) from error
    except RecursionError as error:
        raise ValueError(f"{path} cannot be read: its values are nested too deeply.") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}; it must be a mapping of names to values.")
    return values
