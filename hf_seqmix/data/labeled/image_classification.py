"""Images with one label, several labels or a number each."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import datasets
import pyarrow as pa
from PIL import Image

from .classification import Classification
from .labels import require_columns, require_training, require_values

__all__ = ["ImageClassification"]


@dataclass(frozen=True, kw_only=True)
class ImageClassification(Classification):
    """One label, several labels or a number for each image.

    Images stay as they are stored, and are decoded when a batch is made (see `ImageCollator`).

    Attributes:
        image_column: holds encoded images ({"bytes": ...}, as in parquet files of the Hub), paths of image files
            (`load_labeled` says where relative ones start), or the images of a `datasets.Image` feature.
    """

    image_column: str

    @classmethod
    def from_data(
        cls,
        train: datasets.Dataset,
        image_column: str,
        label_columns: Sequence[str],
        problem_type: str | None = None,
    ) -> Self:
        """Return the task that the training split poses; `Classification.read_labels` says which kind.

        Raises:
            ValueError: a column is missing or holds no images, or the labels make no such task.
        """
        require_training(train, [image_column, *label_columns])
        task = cls(image_column=image_column, **cls.read_labels(train, label_columns, problem_type))
        task._images(train.take(1), "training")
        return task

    def encode(self, split: datasets.Dataset, name: str) -> datasets.Dataset:
        """Return rows of `image`, and of `labels` if the split has labels.

        Raises:
            ValueError: the column is missing, holds no images, misses some, or has one that cannot be read.
        """
        return self.add_labels(self._images(split, name), split, name)

    def _images(self, split: datasets.Dataset, name: str) -> datasets.Dataset:
        require_columns(split, [self.image_column], name)
        images = split.select_columns([self.image_column])
        require_values(images, [self.image_column], name, "image")
        first: Any = images.features[self.image_column]
        try:
            if not isinstance(first, datasets.Image):
                images = images.cast_column(self.image_column, datasets.Image())
            first = images[0][self.image_column]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, OSError) as error:
            raise ValueError(
                f"the column {self.image_column!r} of the {name} data holds no images: {error}. Images are encoded "
                f'({{"bytes": ...}}), or paths of image files that exist: relative to the table where `load_labeled` '
                f"is told of the column, else to {Path.cwd()}."
            ) from error
        if not isinstance(first, Image.Image):
            raise ValueError(f"the column {self.image_column!r} holds {type(first).__name__}, not images.")
        stored = images.cast_column(self.image_column, datasets.Image(decode=False))
        for number, row in enumerate(stored):
            if fault := _fault(row[self.image_column]):
                raise ValueError(
                    f"image {number} of the {name} data (from 0, after others were held out) cannot be read: {fault}. "
                    "Mend it, or leave its row out."
                )
        return images if self.image_column == "image" else images.rename_column(self.image_column, "image")


def _fault(stored: Mapping[str, Any]) -> str | None:
    """Return what is wrong with an encoded image or its file, whose pixels are not decoded."""
    content, path = stored["bytes"], stored["path"]
    if content is None and path is not None and "://" in path:  # not on this machine
        return None
    try:
        with Image.open(path if content is None else io.BytesIO(content)) as image:
            is_jpeg = image.format == "JPEG"
            image.verify()
        if is_jpeg and _is_cut(Path(path).read_bytes() if content is None else content):
            return f"{path or 'it'} ends before its last line"
    except (OSError, SyntaxError, ValueError, AttributeError) as error:  # no path, either
        if not content and (content is not None or path is None):
            return "it is empty"
        return str(error) if content is None else f"its bytes{f' ({path})' if path else ''} are no whole image"
    return None


def _is_cut(content: bytes) -> bool:
    """Return whether a JPEG, of which `verify` reads the header alone, lacks the mark of its end behind its last scan.

    A preview in the header has marks of its own. Behind the end there may be anything.
    """
    return content.rfind(b"\xff\xd9") < content.rfind(b"\xff\xda")
