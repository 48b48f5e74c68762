"""The table of families, and the loop that makes the library's `Auto` classes know them."""

from importlib import import_module

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from .family import Family
from .fd_tnn.modeling_fd_tnn import FDTNN_FAMILY
from .heads import (
    SeqMixForCausalLM,
    SeqMixForImageClassification,
    SeqMixForMaskedLM,
    SeqMixForQuestionAnswering,
    SeqMixForSequenceClassification,
    SeqMixForTokenClassification,
)
from .hybrid.modeling_hybrid import HYBRID_FAMILY
from .images.registration import register_image_processor
from .ipa.modeling_ipa import IPA_FAMILY
from .poly_transformer.modeling_poly_transformer import POLY_TRANSFORMER_FAMILY
from .ski_tnn.modeling_ski_tnn import SKITNN_FAMILY
from .tnn.modeling_tnn import TNN_FAMILY

__all__ = ["AUTO_CLASSES", "FAMILIES", "IMAGE_HEADS", "TEXT_HEADS", "register_family"]

FAMILIES: tuple[Family, ...] = (
    TNN_FAMILY,
    FDTNN_FAMILY,
    SKITNN_FAMILY,
    IPA_FAMILY,
    POLY_TRANSFORMER_FAMILY,
    HYBRID_FAMILY,
)

TEXT_HEADS = (
    SeqMixForCausalLM,
    SeqMixForMaskedLM,
    SeqMixForSequenceClassification,
    SeqMixForTokenClassification,
    SeqMixForQuestionAnswering,
)
"""The heads for text, which the families derive theirs from."""

IMAGE_HEADS = (SeqMixForImageClassification,)
"""The heads for images, whose patches every mixer reads as a sequence."""

AUTO_CLASSES = {
    "Model": AutoModel,
    "ForCausalLM": AutoModelForCausalLM,
    "ForMaskedLM": AutoModelForMaskedLM,
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
    "ForQuestionAnswering": AutoModelForQuestionAnswering,
    "ForImageClassification": AutoModelForImageClassification,
}
"""The `Auto` class of each head, by the end of the head's name."""


def register_family(family: Family) -> None:
    """Register a family's configuration and classes; registering it again changes nothing."""
    AutoConfig.register(family.config_class.model_type, family.config_class, exist_ok=True)
    for suffix, cls in family.classes.items():
        if suffix in AUTO_CLASSES:
            AUTO_CLASSES[suffix].register(family.config_class, cls, exist_ok=True)
        if suffix == "ForImageClassification":
            register_image_processor(family.config_class)


for _family in FAMILIES:
    register_family(_family)
import_module(".short_conv.mixer", __package__)  # registers a mixer of hybrids that is no family
