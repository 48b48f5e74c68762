"""Configuration of hybrids: a mixer a layer, softmax attention among them."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError

from ..configuration import MIXER_CONFIGS, SeqMixConfig, check_range
from .heads import check_heads

__all__ = ["AttentionConfig", "SeqMixHybridConfig"]

# What a layer's mixer shares with the model it is part of.
_SHARED_FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "hidden_act",
    "hidden_dropout",
    "norm_eps",
    "initializer_range",
    "linear_init",
    "is_causal",
)


def _check_mixers(mixer_types: Any, mixer_configs: Any) -> None:
    """Refuse names and fields of mixers of other types, before anything is computed from them."""
    if not isinstance(mixer_types, list | None) or not all(isinstance(name, str) for name in mixer_types or []):
        raise ValueError(
            f"mixer_types is {repr(mixer_types)[:80]}; it must be a list of names, such as ['tnn', 'attention']."
        )
    if not isinstance(mixer_configs, dict | None) or not all(
        isinstance(own, dict) for own in (mixer_configs or {}).values()
    ):
        raise ValueError(
            f"mixer_configs is {repr(mixer_configs)[:80]}; it must map the name of a mixer to its fields, such as "
            "{'attention': {'num_heads': 4}}."
        )


def _with_fields_added_later(
    mixer_types: Sequence[str],
    mixer_configs: dict[str, dict[str, Any]] | None,
    value: Callable[[type[SeqMixConfig], str], Any],
) -> dict[str, dict[str, Any]]:
    """Return the fields of each mixer with those of `missing_fields`, which `value` gives where they are not said."""
    filled = dict(mixer_configs or {})
    for name in {*mixer_types, *filled} & MIXER_CONFIGS.keys():
        mixer = MIXER_CONFIGS[name]
        if mixer.missing_fields:
            filled[name] = {**{field: value(mixer, field) for field in mixer.missing_fields}, **filled.get(name, {})}
    return filled


@strict
class AttentionConfig(SeqMixConfig):
    """Fields of the mixer "attention": multi-head softmax attention with rotary positions.

    Args:
        num_heads: number of heads.
        head_dim: channels of a head, even where positions are rotary. By default hidden_size / num_heads, which must
            then divide.
        rope_theta: base of the rotary wavelengths; None for no rotary positions.
    """

    model_type: ClassVar[str] = "attention"
    cache_layer_type: ClassVar[str] = "full_attention"

    num_heads: int = 8
    head_dim: int | None = None  # type: ignore[assignment]
    rope_theta: float | int | None = 10000.0

    def derive_fields(self) -> None:
        """Share the channels out to the heads, beside what every model derives."""
        if self.head_dim is None and self.num_heads > 0 and self.hidden_size % self.num_heads == 0:
            self.head_dim = self.hidden_size // self.num_heads
        super().derive_fields()

    @property
    def mixes_by_place(self) -> bool:
        """Whether there is a mask of what comes later, or queries and keys are rotated."""
        return self.is_causal or self.rope_theta is not None

    @property
    def num_attention_heads(self) -> int:
        """Heads of keys and values that a preallocated cache keeps."""
        return self.num_heads

    @property
    def mixer_tp_plan(self) -> dict[str, str]:
        """Split the heads, which attend each alone."""
        return {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}

    def check_architecture(self) -> None:
        """Check the shared fields, the heads and the base."""
        super().check_architecture()
        check_range("rope_theta", self.rope_theta, above=0)
        check_heads(self.hidden_size, self.num_heads, self.head_dim, self.rope_theta is not None)


@strict
class SeqMixHybridConfig(SeqMixConfig):
    """Configuration of a model whose layers have mixers of different families; all "attention" is the control.

    `SeqMixHybridConfig(mixer_types=["tnn", "tnn", "attention"] * 2, mixer_configs={"attention": {"num_heads": 4}})`

    Args:
        mixer_types: the mixer of each layer, "attention", "short_conv" or a family's `model_type`. Fewer names are
            repeated, if the number of layers is a multiple of theirs. All "attention" by default.
        mixer_configs: for each mixer, its own fields where they differ from its defaults. Fields that a mixer shares
            with the model (`hidden_size`, `is_causal`, ...) are the model's. All mix an image (`image_size`) as a
            sequence.
        num_hidden_layers: 0 stands for the length of `mixer_types`, or, without it, for 7.
    """

    model_type: ClassVar[str] = "seqmix_hybrid"

    num_hidden_layers: int = 0
    mixer_types: list[str] | None = None
    mixer_configs: dict[str, dict[str, Any]] | None = None

    def derive_fields(self) -> None:
        """Name the mixer of each layer and the fields of each mixer, beside what every model derives."""
        _check_mixers(self.mixer_types, self.mixer_configs)
        if self.num_hidden_layers == 0:
            self.num_hidden_layers = 7 if self.mixer_types is None else len(self.mixer_types)
        if self.mixer_types is None:
            self.mixer_types = ["attention"]
        if self.mixer_types and self.num_hidden_layers > 0 and self.num_hidden_layers % len(self.mixer_types) == 0:
            self.mixer_types = self.mixer_types * (self.num_hidden_layers // len(self.mixer_types))
        # A file says what a later version may take for something else.
        self.mixer_configs = _with_fields_added_later(
            self.mixer_types, self.mixer_configs, lambda mixer, field: getattr(mixer, field)
        )
        super().derive_fields()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read the fields of a file; fields of a mixer that an older file lacks mean what they meant then."""
        types, configs = config_dict.get("mixer_types"), config_dict.get("mixer_configs")
        _check_mixers(types, configs)
        filled = _with_fields_added_later(types or [], configs, lambda mixer, field: mixer.missing_fields[field])
        return super().from_dict({**config_dict, "mixer_configs": filled}, **kwargs)

    def mixer_config(self, mixer_type: str) -> SeqMixConfig:
        """Build the configuration of a mixer: the fields it shares with the model, and its own."""
        return self._mixer_config(mixer_type)

    def _mixer_config(self, mixer_type: str, **changed: Any) -> SeqMixConfig:
        """Build the configuration of a mixer with some of the shared fields changed."""
        shared = {field: getattr(self, field) for field in _SHARED_FIELDS}
        own = (self.mixer_configs or {}).get(mixer_type, {})
        # Only the row operation of a whole IPA model has these centers, which must divide its width.
        unused = {"num_row_centers": 1} if mixer_type == "ipa" else {}
        return MIXER_CONFIGS[mixer_type](**{**shared, **unused, **changed, **own})

    def mixer_configs_at(self, length: int) -> dict[str, dict[str, Any]]:
        """Return `mixer_configs` for a model whose `max_position_embeddings` becomes `length` and whose layers stay.

        They name each field whose default follows from `max_position_embeddings`, such as the offsets of IPA.
        """
        kept = dict(self.mixer_configs or {})
        for name in sorted(set(self.layer_mixers)):
            before, after = self.mixer_config(name), self._mixer_config(name, max_position_embeddings=length)
            fields = type(before).__dataclass_fields__.keys() - SeqMixConfig.__dataclass_fields__.keys()
            own = {field: getattr(before, field) for field in sorted(fields - {*before.whole_model_fields})}
            moved = {field: value for field, value in own.items() if value != getattr(after, field)}
            if moved:
                kept[name] = {**kept.get(name, {}), **moved}
        return kept

    @property
    def layer_mixers(self) -> list[str]:
        """Name of the mixer of each layer."""
        return self.mixer_types or []

    @property
    def layer_types(self) -> list[str]:
        """Name what the cache keeps for each layer."""
        # Without building configurations: a compiled graph that builds its cache asks for this.
        own = self.mixer_configs or {}
        kept = [MIXER_CONFIGS[name].cache_layer_type_of(own.get(name, {})) for name in self.layer_mixers]
        return self.own_layer_types(kept)

    @property
    def _cached_mixer_config(self) -> SeqMixConfig:
        types = self.layer_mixers
        return self.mixer_config("attention" if "attention" in types else types[0])

    @property
    def num_attention_heads(self) -> int:
        """Heads of the attention layers; 1 without any."""
        return self._cached_mixer_config.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Channels of a head of the attention layers; without any, of the first mixer's history."""
        return self._cached_mixer_config.head_dim

    def check_architecture(self) -> None:
        """Check the shared fields, the names of the mixers, and the configuration of each."""
        if not self.mixer_types:
            raise ValueError(
                f"mixer_types is {self.mixer_types}; it must name a mixer for each layer, or fewer that are to be "
                f"repeated: {', '.join(sorted(MIXER_CONFIGS))}."
            )
        super().check_architecture()
        types = self.layer_mixers
        if len(types) != self.num_hidden_layers:
            raise ValueError(
                f"mixer_types names {len(types)} layers, but num_hidden_layers is {self.num_hidden_layers}: give one "
                "name a layer, or fewer that are to be repeated, of which that is a multiple."
            )
        configs = self.mixer_configs or {}
        for mixer_type in sorted({*types, *configs}):
            if mixer_type not in MIXER_CONFIGS:
                field = "mixer_types" if mixer_type in types else "mixer_configs"
                raise ValueError(
                    f"{field} names {mixer_type!r}; known are {', '.join(sorted(MIXER_CONFIGS))}, and "
                    "hf_seqmix.models.mixers.register_mixer adds one."
                )
            whole = {*SeqMixConfig.__dataclass_fields__, *MIXER_CONFIGS[mixer_type].whole_model_fields}
            clash = [field for field in configs.get(mixer_type, {}) if field in whole]
            unknown = [
                field
                for field in configs.get(mixer_type, {})
                if field not in MIXER_CONFIGS[mixer_type].__dataclass_fields__
            ]
            if clash or unknown:
                raise ValueError(
                    f"mixer_configs[{mixer_type!r}] sets {', '.join(clash or unknown)}: "
                    f"{'these are fields of the whole model' if clash else 'the mixer has no such field'}."
                )
            try:
                self.mixer_config(mixer_type)
            except (ValueError, StrictDataclassError) as error:
                raise ValueError(f"mixer_configs[{mixer_type!r}]: {error}") from error
