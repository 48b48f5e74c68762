"""What a model of images reads, and the checks of the fields that say so."""

import math
from typing import NamedTuple

from .checks import check_range

__all__ = ["ImageShape", "Pixels", "check_image_fields"]

Pixels = int | list[int] | tuple[int, ...]
"""A size in pixels: one number, or [height, width]."""


def _pair(value: Pixels) -> tuple[int, int]:
    """Return (height, width) of a size given as one number or two."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


class ImageShape(NamedTuple):
    """What a model of images reads: sizes in pixels, (height, width)."""

    num_channels: int
    image_size: tuple[int, int]
    patch_size: tuple[int, int]

    @classmethod
    def from_fields(cls, num_channels: int, image_size: Pixels, patch_size: Pixels) -> "ImageShape":
        """Return the shape that the fields of a configuration name."""
        return cls(num_channels, _pair(image_size), _pair(patch_size))

    @property
    def grid_size(self) -> tuple[int, int]:
        """(height, width) of an image in patches."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def num_patches(self) -> int:
        """Patches of an image, the length of the sequence that the mixers read."""
        return math.prod(self.grid_size)

    def check_model(self, num_segments: int, max_position_embeddings: int) -> None:
        """Check the fields of a model of such images that are about sequences.

        Raises:
            ValueError: for several segments, and for fewer positions than patches.
        """
        if num_segments != 1:
            raise ValueError(f"num_segments is {num_segments}, but a model of images (image_size) has 1.")
        if max_position_embeddings < self.num_patches:
            raise ValueError(
                f"max_position_embeddings is {max_position_embeddings}, but the images have {self.num_patches} "
                "patches (image_size / patch_size): leave it out, or set it to at least that."
            )


def check_image_fields(num_channels: int, image_size: Pixels | None, patch_size: Pixels) -> None:
    """Check the fields that name an image.

    Args:
        num_channels: at least 1.
        image_size: one number or [height, width], each at least 1; without it the others are checked alone.
        patch_size: one number or [height, width], each at least 1; patches divide the image.

    Raises:
        ValueError: naming the field, the value given and what is allowed.
    """
    check_range("num_channels", num_channels, low=1)
    for field, value in (("image_size", image_size), ("patch_size", patch_size)):
        if isinstance(value, (list, tuple)) and len(value) != 2:
            raise ValueError(f"{field} is {list(value)!r}; it must be one number or [height, width], in pixels.")
        for pixels in () if value is None else _pair(value):
            check_range(field, pixels, low=1)
    if image_size is None:
        return
    if any(pixels % patch for pixels, patch in zip(_pair(image_size), _pair(patch_size), strict=True)):
        raise ValueError(
            f"image_size is {image_size!r}, which patch_size {patch_size!r} does not divide: choose sizes that do."
        )
