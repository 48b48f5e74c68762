"""How a family is made: one row of a table, from which its classes follow.

A family is a configuration and a mixer. Everything else it has (backbone, heads, registration, caching, the common tests)
comes from its row:

    class MyConfig(SeqMixConfig):               # with @strict; fields of the mixer, model_type, cache_layer_type
        ...

    MY_FAMILY = Family("My", MyConfig, build_my_mixer)
    MyPreTrainedModel, MyModel, MyForCausalLM, ... = MY_FAMILY.build(__name__)

and one more line, in `auto.FAMILIES` or a call of `auto.register_family`, makes the library's `Auto` classes know it.
"""

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import GenerationMixin

from .._compat import register_causal_lm_name, register_image_classification_name
from .backbone import SeqMixModel, SeqMixPreTrainedModel
from .configuration import SeqMixConfig
from .heads import (
    SeqMixForCausalLM,
    SeqMixForMaskedLM,
    SeqMixForQuestionAnswering,
    SeqMixForSequenceClassification,
    SeqMixForTokenClassification,
)
from .mixers import register_feed_forward, register_mixer
from .vision import SeqMixForImageClassification

__all__ = ["IMAGE_HEADS", "TEXT_HEADS", "Family"]

TEXT_HEADS: tuple[type[SeqMixPreTrainedModel], ...] = (
    SeqMixForCausalLM,
    SeqMixForMaskedLM,
    SeqMixForSequenceClassification,
    SeqMixForTokenClassification,
    SeqMixForQuestionAnswering,
)
"""The heads for text, in the order in which `Family.build` returns them."""

IMAGE_HEADS: tuple[type[SeqMixPreTrainedModel], ...] = (SeqMixForImageClassification,)
"""The heads for images (`image_shape`), whose patches every mixer reads as a sequence."""


@dataclass(frozen=True)
class Family:
    """A row of the table of families.

    Args:
        prefix: what the names of the family's classes begin with.
        config_class: its configuration; `model_type` names it and its mixer.
        build_mixer: called with (config, layer_idx), see `register_mixer`; None for a family whose layers all are mixers
            of other families.
        heads: the heads it has, classes of `heads.py` and `vision.py`; all by default.
        build_feed_forward: called with (config), for a feed-forward other than the gated linear unit, see
            `register_feed_forward`.
    """

    prefix: str
    config_class: type[SeqMixConfig]
    build_mixer: Callable[..., nn.Module] | None
    heads: tuple[type[SeqMixPreTrainedModel], ...] = TEXT_HEADS + IMAGE_HEADS
    build_feed_forward: Callable[..., nn.Module | None] | None = None
    classes: dict[str, type] = field(default_factory=dict, compare=False)

    def build(self, module: str) -> tuple[Any, ...]:
        """Make the family's classes, and register its mixer and the names that the `Trainer` and the pipelines look for.

        Args:
            module: `__name__` of the module whose globals will hold the classes, where pickle and remote code find them.

        Returns:
            The pretrained-model class, the backbone, and one class a head, in order.
        """
        if self.build_mixer is not None:
            register_mixer(self.config_class.model_type, self.config_class, self.build_mixer)
        if self.build_feed_forward is not None:
            register_feed_forward(self.config_class.model_type, self.build_feed_forward)
        common = {"config_class": self.config_class, "__annotations__": {"config": self.config_class}}
        pretrained = self._class("PreTrainedModel", (SeqMixPreTrainedModel,), module, common)
        model = self._class("Model", (SeqMixModel, pretrained), module, common)
        built = [pretrained, model]
        for head in self.heads:
            # `generate` looks for the mixin among the direct bases.
            mixin = (GenerationMixin,) if issubclass(head, SeqMixForCausalLM) else ()
            name = head.__name__.removeprefix("SeqMix")
            built.append(self._class(name, (head, pretrained, *mixin), module, {**common, "base_model_class": model}))
        if "ForCausalLM" in self.classes:
            register_causal_lm_name(self.config_class.model_type, self.classes["ForCausalLM"].__name__)
        if "ForImageClassification" in self.classes:
            name = self.classes["ForImageClassification"].__name__
            register_image_classification_name(self.config_class.model_type, name)
        return tuple(built)

    def _class(self, suffix: str, bases: tuple[type, ...], module: str, namespace: dict[str, Any]) -> type:
        name = self.prefix + suffix
        doc = f"{bases[0].__doc__ or ''}\n\n    Mixer: {self.config_class.model_type}; see `{self.config_class.__name__}`."
        body = {"__module__": module, "__doc__": doc, **namespace}
        cls = types.new_class(name, bases, {}, lambda ns: ns.update(body))
        self.classes[suffix] = cls
        return cls
