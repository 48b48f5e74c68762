"""A family: one row of a table, which names its classes, its mixer and its feed-forward.

A family is a folder with a configuration, a mixer and `modeling_<family>.py`:

    class MyConfig(SeqMixConfig):               # with @strict; fields of the mixer, model_type, cache_layer_type
        ...

    class MyPreTrainedModel(SeqMixPreTrainedModel):
        config: MyConfig
        config_class = MyConfig

    class MyModel(SeqMixModel, MyPreTrainedModel): ...

    class MyForCausalLM(SeqMixForCausalLM, MyPreTrainedModel, GenerationMixin):
        base_model_class = MyModel

    MY_FAMILY = Family(MyPreTrainedModel, build_my_mixer)

One more line, in `auto.FAMILIES` or a call of `auto.register_family`, makes the library's `Auto` classes know the
family. `README.md` beside this file has the steps. The heads are those of the folder `heads`. `GenerationMixin` has
to be a direct base, where `generate` looks for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from .._compat import register_causal_lm_name, register_export_patch, register_image_classification_name
from ..ops.common.dispatch import real_route, traced_route
from .configuration import SeqMixConfig
from .mixers import register_feed_forward, register_mixer
from .pretrained import SeqMixPreTrainedModel

__all__ = ["KNOWN_FAMILIES", "Family"]

KNOWN_FAMILIES: dict[str, "Family"] = {}
"""`model_type` of a family -> its row, of other packages, too."""

# Other runtimes know neither the package's operators nor all transforms.
register_export_patch(traced_route, real_route)


@dataclass(frozen=True)
class Family:
    """A row of the table of families.

    Making a row registers it in `KNOWN_FAMILIES`, its mixer, its feed-forward, and the names that the `Trainer` and
    the pipelines look for.
    The row stands below the classes of the family.

    Args:
        pretrained: the class that all models of the family have as a direct base. Its name is `prefix` +
            "PreTrainedModel".
        build_mixer: called with (config, layer_idx), see `register_mixer`; None for a family whose layers all are
            mixers of other families.
        build_feed_forward: called with (config), for a feed-forward other than the gated linear unit, see
            `register_feed_forward`.

    Attributes:
        classes: the backbone and the heads, by what their names add to the prefix: "Model", "ForCausalLM" and so on.

    Raises:
        ValueError: for a class whose name does not begin with the prefix.
    """

    pretrained: type[SeqMixPreTrainedModel]
    build_mixer: Callable[..., nn.Module] | None
    build_feed_forward: Callable[..., nn.Module | None] | None = None
    classes: dict[str, type[SeqMixPreTrainedModel]] = field(init=False, compare=False, default_factory=dict)

    @property
    def prefix(self) -> str:
        """What the names of the family's classes begin with."""
        return self.pretrained.__name__.removesuffix("PreTrainedModel")

    @property
    def config_class(self) -> type[SeqMixConfig]:
        """The family's configuration; its `model_type` names the family and its mixer."""
        return self.pretrained.config_class

    def __post_init__(self) -> None:
        for cls in self.pretrained.__subclasses__():
            if not cls.__name__.startswith(self.prefix):
                raise ValueError(f"{cls.__name__} is a class of the family {self.prefix!r}: begin its name with that.")
            self.classes[cls.__name__.removeprefix(self.prefix)] = cls
        model_type = self.config_class.model_type
        KNOWN_FAMILIES[model_type] = self
        if self.build_mixer is not None:
            register_mixer(model_type, self.config_class, self.build_mixer)
        if self.build_feed_forward is not None:
            register_feed_forward(model_type, self.build_feed_forward)
        if "ForCausalLM" in self.classes:
            register_causal_lm_name(model_type, self.classes["ForCausalLM"].__name__)
        if "ForImageClassification" in self.classes:
            register_image_classification_name(model_type, self.classes["ForImageClassification"].__name__)
