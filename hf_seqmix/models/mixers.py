"""The tables of mixers and feed-forwards: what a name in `config.layer_mixers`, and a `model_type`, stands for."""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from .configuration import SeqMixConfig

__all__ = ["FEED_FORWARDS", "MIXERS", "Mixer", "build_mixer", "register_feed_forward", "register_mixer"]


class Mixer(NamedTuple):
    """A mixer of the zoo: the class that configures it, and how it is built for a layer."""

    config_class: type[SeqMixConfig]
    build: Callable[[SeqMixConfig, int], nn.Module]


MIXERS: dict[str, Mixer] = {}


def register_mixer(name: str, config_class: type[SeqMixConfig], build: Callable[..., nn.Module]) -> None:
    """Make a mixer known by name, to its own family and to hybrids.

    Args:
        name: entry of a hybrid's `mixer_types`; for a family, its `model_type`.
        config_class: configuration with the mixer's fields; its `cache_layer_type` says what the cache keeps.
        build: called with (config, layer_idx); returns a module called with (hidden_states, attention_mask=...,
            past_key_values=..., position_ids=...) that maps (batch, length, hidden_size) to the same shape.
    """
    MIXERS[name] = Mixer(config_class, build)


def build_mixer(config: SeqMixConfig, layer_idx: int) -> nn.Module:
    """Build the mixer of layer `layer_idx`, as `config.layer_mixers` names it."""
    name = config.layer_mixers[layer_idx]
    if name not in MIXERS:
        raise ValueError(f"layer {layer_idx} asks for the mixer {name!r}; known are {', '.join(sorted(MIXERS))}.")
    return MIXERS[name].build(config.mixer_config(name), layer_idx)


FEED_FORWARDS: dict[str, Callable[..., nn.Module | None]] = {}


def register_feed_forward(model_type: str, build: Callable[..., nn.Module | None]) -> None:
    """Give a family a feed-forward of its own instead of the gated linear unit.

    Args:
        model_type: the family's.
        build: called with (config); returns a module that maps (batch, length, hidden_size) to the same shape, each
            position alone, or None for blocks without a feed-forward.
    """
    FEED_FORWARDS[model_type] = build
