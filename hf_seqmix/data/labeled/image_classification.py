"""Images with one label, several labels or a number each."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import datasets
from PIL import Image, ImageFile

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

    def encode(
        self, split: datasets.Dataset, name: str, processor: Callable[[Image.Image], Any] | None = None
    ) -> datasets.Dataset:
        """Return rows of `image`, and of `labels` if the split has labels.

        Args:
            split: the rows.
            name: of the split, for messages.
            processor: an image processor, which is shown the images whose values it may refuse.

        Raises:
            ValueError: the column is missing, holds no images, misses some, or has one that cannot be read or that
                `processor` refuses.
        """
        return self.add_labels(self._images(split, name, processor), split, name)

    def _images(
        self, split: datasets.Dataset, name: str, processor: Callable[[Image.Image], Any] | None = None
    ) -> datasets.Dataset:
        require_columns(split, [self.image_column], name)
        images = split.select_columns([self.image_column])
        require_values(images, [self.image_column], name, "image")
        images = self._declared(images, name)
        if self.image_column != "image":
            images = images.rename_column(self.image_column, "image")

        def check(number: int, fault: str | None) -> None:
            if fault is not None:
                raise ValueError(
                    f"image {number} of the {name} data (from 0, after others were held out) {fault}. Mend it, or "
                    "leave its row out."
                )

        if images.features["image"].mode is not None:
            processor = None  # which sees the images in that mode, not as they are stored
        for number, row in enumerate(images.cast_column("image", datasets.Image(decode=False))):
            check(number, _fault(row["image"]))
            check(number, None if processor is None else _refusal(row["image"], processor))
        try:
            first = images[0]["image"]
        except OSError as error:  # on another machine
            check(0, f"cannot be read: {error}")
        if not isinstance(first, Image.Image):
            raise ValueError(f"the column {self.image_column!r} holds {type(first).__name__}, not images.")
        return images

    def _declared(self, images: datasets.Dataset, name: str) -> datasets.Dataset:
        """Return the images as a `datasets.Image` feature; what holds none is a `ValueError`."""
        if isinstance(images.features[self.image_column], datasets.Image):
            return images
        try:
            images = images.cast_column(self.image_column, datasets.Image())
            stored = images.take(1).cast_column(self.image_column, datasets.Image(decode=False))
            if (fault := _fault(stored[0][self.image_column])) is None:
                return images
            fault = f"the first {fault}"
        except (NotImplementedError, TypeError, ValueError) as error:  # numbers; lists of text; ragged or empty lists
            fault = str(error)
        raise ValueError(
            f"the column {self.image_column!r} of the {name} data holds no images: {fault}. Images are encoded "
            f'({{"bytes": ...}}), or paths of image files that exist: relative to the table where `load_labeled` is '
            f"told of the column, else to {Path.cwd()}."
        )


def _fault(stored: Mapping[str, Any]) -> str | None:
    """Return that an encoded image or its file cannot be read, and why; None if it can.

    Pixels are decoded where nothing else tells that an image is whole; PNG has checksums, and JPEG a mark of its end.
    """
    content, path = stored["bytes"], stored["path"]
    if content is None and path is not None and "://" in path:  # not on this machine
        return None
    try:
        with Image.open(path if content is None else io.BytesIO(content)) as image:
            is_jpeg = image.format == "JPEG"
            if is_jpeg or type(image).verify is not ImageFile.ImageFile.verify:
                image.verify()
            else:
                image.load()
        if is_jpeg and _is_cut(Path(path).read_bytes() if content is None else content):
            return f"cannot be read: {path or 'it'} ends before its last line"
    # No path is an AttributeError. A damaged AVIF is a RuntimeError, and what claims to be huge an error of its own.
    except (OSError, SyntaxError, ValueError, AttributeError, RuntimeError, Image.DecompressionBombError) as error:
        if not content and (content is not None or path is None):
            return f"cannot be read: {f'{path} ' if path else 'it '}is empty"
        if content is not None:
            return f"cannot be read: its bytes{f' ({path})' if path else ''} are no whole image"
        return f"cannot be read: {error if path in str(error) else f'{path}: {error}'}"
    return None


def _refusal(stored: Mapping[str, Any], processor: Callable[[Image.Image], Any]) -> str | None:
    """Return that an image of numbers beyond bytes is refused by an image processor, and why; None if it is not."""
    content, path = stored["bytes"], stored["path"]
    if content is None and "://" in path:
        return None
    with Image.open(path if content is None else io.BytesIO(content)) as image:
        if image.mode not in ("I", "F"):
            return None
        try:
            processor(image)
        except ValueError as error:
            return f"cannot be used{f' ({path})' if path else ''}: {str(error).rstrip('.')}"
    return None


def _is_cut(content: bytes) -> bool:
    """Return whether a JPEG, of which `verify` reads the header alone, lacks the mark of its end behind its last scan.

    A preview in the header has marks of its own. Behind the end there may be anything.
    """
    return content.rfind(b"\xff\xd9") < content.rfind(b"\xff\xda")
