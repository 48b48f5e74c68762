"""From pictures to `pixel_values`."""

from typing import Any

import numpy as np
from PIL import Image
from transformers import PreTrainedConfig
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import PILImageResampling, infer_channel_dimension_format
from transformers.processing_utils import ImagesKwargs

from ..configuration.image_shape import ImageShape

__all__ = ["SeqMixImageProcessor"]

_MODES = {1: "L", 3: "RGB"}
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Weights of red, green and blue in a gray value (ITU-R 601-2, as Pillow has them)."""

_UP_TO_ONE = "values run from 0 to 1, but are to be rescaled: give uint8, or an array with do_rescale=False."


_OF_BYTES = 1 / 200
"""A factor up to which values are meant to be bytes."""


class SeqMixImageProcessorKwargs(ImagesKwargs, total=False):
    """What the processor takes beside the library's own arguments."""

    num_channels: int


class SeqMixImageProcessor(PilBackend):
    """Make `pixel_values` (batch, num_channels, height, width) of PIL images or arrays of any sizes.

    Colors are brought to `num_channels`, then images are resized (bilinear), rescaled to [0, 1], and normalized, (x -
    image_mean) / image_std. The processor needs Pillow, and no torchvision.

    Args:
        size: {"height": ..., "width": ...} in pixels.
        num_channels: 1 makes color gray, 3 makes gray color; transparency is dropped.
        image_mean, image_std: one number, or one for each channel.
        **kwargs: the library's other fields, `do_resize`, `do_rescale`, `do_normalize`, `resample`, `rescale_factor`.
    """

    valid_kwargs = SeqMixImageProcessorKwargs
    resample = PILImageResampling.BILINEAR
    size = {"height": 32, "width": 32}
    num_channels = 3
    image_mean = 0.5
    image_std = 0.5
    do_resize = True
    do_rescale = True
    do_normalize = True

    @classmethod
    def for_model(cls, config: PreTrainedConfig, **kwargs: Any) -> "SeqMixImageProcessor":
        """Make the processor of a model: its image size and number of channels.

        Args:
            config: of this package, or of another model of images with these fields, such as ViT.
            **kwargs: fields of the processor.

        Raises:
            ValueError: for a model of text, and for one of images that says no size or number of channels.
        """
        size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
        if size is None or channels is None:
            missing = "image_size" if size is None else "num_channels"
            raise ValueError(f"{missing} of the {config.model_type!r} configuration is None, as for a model of text.")
        height, width = ImageShape.from_fields(channels, size, 1).image_size
        return cls(**{"size": {"height": height, "width": width}, "num_channels": channels, **kwargs})

    def _prepare_image_like_inputs(self, images: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Let (height, width) arrays stand for gray images, which the library only lets PIL images do."""
        if isinstance(images, (list, tuple)):
            images = [_with_channels(image) for image in images]
        return super()._prepare_image_like_inputs(_with_channels(images), *args, **kwargs)

    def process_image(self, image: Any, *args: Any, num_channels: int | None = None, **kwargs: Any) -> np.ndarray:
        """Return one image as (num_channels, height, width).

        Raises:
            ValueError: for an array with a number of channels that cannot be brought to `num_channels`, and for a gray
                picture of mode I or F with values that are not from 0 to 255.
        """
        channels = self.num_channels if num_channels is None else num_channels
        if isinstance(image, Image.Image):
            image = _within_bytes(image)
            if channels in _MODES:
                image = image.convert(_MODES[channels])  # palettes and transparency are known here only
        elif kwargs.get("input_data_format") is None:
            # Older releases do not expect transparency.
            kwargs["input_data_format"] = infer_channel_dimension_format(image, num_channels=(1, 3, 4, channels))
        array = super().process_image(image, *args, **{**kwargs, "do_convert_rgb": False})
        given = array.shape[0]
        if given == channels:
            return array
        if channels == 1 and given in (3, 4):
            if array.dtype == np.uint8:
                return np.asarray(Image.fromarray(np.moveaxis(array[:3], 0, -1)).convert("L"))[None]
            gray = np.tensordot(_LUMA, array[:3], axes=1)[None]
            return gray > 0.5 if array.dtype == bool else gray.astype(array.dtype)
        if channels == 3 and given in (1, 4):
            return np.repeat(array, 3, axis=0) if given == 1 else array[:3]
        raise ValueError(f"an image has {given} channels; this processor makes {channels} (num_channels).")

    def _preprocess(self, images: list[np.ndarray], *args: Any, **kwargs: Any) -> Any:
        """Scale bool arrays, and refuse real numbers up to 1, where values are divided by 255: both would be black."""
        white = 255 if kwargs.get("do_rescale") else 1
        images = [image.astype(np.uint8) * white if image.dtype == bool else image for image in images]
        if kwargs.get("do_rescale") and kwargs["rescale_factor"] <= _OF_BYTES:
            real = [image for image in images if np.issubdtype(image.dtype, np.floating) and image.size]
            # Of whole numbers up to 1, or beside larger ones, pictures are dark and right.
            if real and 0 < max(image.max() for image in real) <= 1 and any((image % 1).any() for image in real):
                raise ValueError(_UP_TO_ONE)
        return super()._preprocess(images, *args, **kwargs)


def _within_bytes(image: Image.Image) -> Image.Image:
    """Return a picture whose values are from 0 to 255: gray ones of 16 bits scaled, others as they are."""
    if image.mode.startswith("I;16"):
        return Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in ("I", "F") and min(image.size) > 0:
        values = np.asarray(image)
        low, high = values.min(), values.max()
        if low < 0 or high > 255:
            raise ValueError(
                f"a picture of mode {image.mode!r} has values from {low:g} to {high:g}; they must be from 0 to 255: "
                "scale them, or give mode 'L' or 'I;16'."
            )
        if image.mode == "F" and 0 < high <= 1:
            raise ValueError(
                "a picture of mode 'F' has values up to 1, which would become black: give numpy.asarray(picture) with "
                "do_rescale=False, or a picture of mode 'L'."
            )
    return image


def _with_channels(image: Any) -> Any:
    is_flat = getattr(image, "ndim", None) == 2
    return image[None] if is_flat else image
