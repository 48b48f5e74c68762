"""Registering the image processor, apart from the configurations, which need no Pillow."""

from ..configuration import SeqMixConfig

__all__ = ["register_image_processor"]


def register_image_processor(config_class: type[SeqMixConfig]) -> None:
    """Make `AutoImageProcessor` load the processor of a family whose models read images.

    Nothing happens without Pillow, which a model does not need.
    """
    from transformers.utils import is_vision_available

    if not is_vision_available():
        return
    # Not the public name, which in older releases is of no use without torchvision, not even for registering.
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    from .processing import SeqMixImageProcessor

    # One class for both names: where torchvision is installed, the library asks for that first.
    processors: dict[str, type] = {"pil": SeqMixImageProcessor, "torchvision": SeqMixImageProcessor}
    AutoImageProcessor.register(config_class, image_processor_classes=processors, exist_ok=True)
