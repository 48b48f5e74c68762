"""The tables of mixers and feed-forwards: how a name in `config.layer_mixers` becomes a module."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._compat import PicklableCapture, known_layer_types
from ..cache import past_length
from ..ops.common.dispatch import without_autocast
from ..ops.layout import TokenLayout, token_layout
from .configuration import MIXER_CONFIGS, SeqMixConfig
from .inputs import check_tensors

__all__ = [
    "FEED_FORWARDS",
    "MIXERS",
    "NumberedModule",
    "QueryKey",
    "WeighingMixer",
    "branch_scale",
    "build_mixer",
    "layout_of_call",
    "register_feed_forward",
    "register_mixer",
]

MIXERS: dict[str, Callable[..., nn.Module]] = {}
"""Name of a mixer -> how it is built for a layer. Its configuration is in `MIXER_CONFIGS`, which needs no models."""

FEED_FORWARDS: dict[str, Callable[..., nn.Module | None]] = {}
"""`model_type` of a family -> how its own feed-forward is built."""


def branch_scale(config: SeqMixConfig) -> float:
    """Return the factor with which layers that end branches begin: 1 / sqrt(2 L), or 1 without residuals.

    Each of L layers adds 2 branches to the residual stream. Without residuals nothing is added up, and the factors of
    all layers would multiply.
    """
    return float((2 * config.num_hidden_layers) ** -0.5) if config.use_residual else 1.0


class QueryKey(NamedTuple):
    """What the logits of a mixer are made of: S = scale q k^T + bias."""

    query: Tensor
    """(batch, heads, queries, width)."""
    key: Tensor
    """(batch, heads, keys, width)."""
    scale: float = 1.0
    bias: Tensor | None = None
    """(batch or 1, heads, queries, keys)."""

    def logits(self) -> Tensor:
        """Return (batch, heads, queries, keys) in float32 at least: of all pairs, hidden ones, too."""
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        with without_autocast(self.query.device.type):
            product = self.scale * self.query.to(dtype) @ self.key.to(dtype).transpose(-1, -2)
            return product if self.bias is None else product + self.bias


class WeighingMixer(PicklableCapture, nn.Module, ABC):
    """A mixer that weighs tokens by their content, so that a model can return the weights (`output_attentions`).

    Called with `output_attentions=True`, the mixer returns a pair: its output, and the weights that the values were
    summed with, (batch, heads, queries, keys). Keys of a cache come first, and hidden keys have weight 0.
    """

    @abstractmethod
    def query_key(self, hidden_states: Tensor, position_ids: Tensor | None = None) -> QueryKey:
        """Return the queries and keys of rows without pads, (batch, length, hidden_size), before any normalization."""


class NumberedModule(nn.Module):
    """A module of one layer of a cache; setting its `layer_idx` sets that of its mixer and its operator, too."""

    @property
    def layer_idx(self) -> int:
        """Which layer of a cache is this module's."""
        return self._layer_idx

    @layer_idx.setter
    def layer_idx(self, layer_idx: int) -> None:
        self._layer_idx = layer_idx
        for name in ("mixer", "operator"):
            part = getattr(self, name, None)
            if part is not None:
                part.layer_idx = layer_idx


def register_mixer(name: str, config_class: type[SeqMixConfig], build: Callable[..., nn.Module]) -> None:
    """Make a mixer known by name, to its own family and to hybrids.

    Args:
        name: entry of a hybrid's `mixer_types`; for a family, its `model_type`.
        config_class: configuration with the mixer's fields; its `cache_layer_type` says what the cache keeps. One of
            bidirectional mixers alone, which no cache meets, may name any.
        build: called with (config, layer_idx); returns a module called with (hidden_states, attention_mask=...,
            past_key_values=..., position_ids=...) that maps (batch, length, hidden_size) to the same shape.

    Raises:
        TypeError: for what is no class derived from `SeqMixConfig`.
        ValueError: for a `cache_layer_type` that no cache knows, as where the class names none.
    """
    if not isinstance(config_class, type) or not issubclass(config_class, SeqMixConfig):
        raise TypeError(f"config_class is {config_class!r}; it must be a class derived from SeqMixConfig.")
    kept = config_class.cache_layer_type_of({})
    # An export of a bidirectional family leaves the code of its caches out.
    if kept not in known_layer_types() and not kept.startswith("seqmix_"):
        raise ValueError(
            f"cache_layer_type of {config_class.__name__} is {kept!r}; set it to what the cache keeps for the mixer, "
            f"one of {', '.join(map(repr, known_layer_types()))}."
        )
    MIXER_CONFIGS[name] = config_class
    MIXERS[name] = build


def build_mixer(config: SeqMixConfig, layer_idx: int) -> nn.Module:
    """Build the mixer of layer `layer_idx`, as `config.layer_mixers` names it.

    Raises:
        ValueError: for a name that no mixer was registered under.
    """
    name = config.layer_mixers[layer_idx]
    if name not in MIXERS:
        raise ValueError(
            f"layer {layer_idx} asks for the mixer {name!r}; known are {', '.join(sorted(MIXERS))}, and "
            "hf_seqmix.models.mixers.register_mixer adds one."
        )
    return MIXERS[name](config.mixer_config(name), layer_idx)


def register_feed_forward(model_type: str, build: Callable[..., nn.Module | None]) -> None:
    """Give a family a feed-forward of its own instead of the gated linear unit.

    Args:
        model_type: the family's.
        build: called with (config); returns a module that maps (batch, length, hidden_size) to the same shape, each
            position alone, or None for blocks without a feed-forward.
    """
    FEED_FORWARDS[model_type] = build


def layout_of_call(
    attention_mask: Tensor | TokenLayout | None,
    hidden_states: Tensor,
    past_key_values: Any,
    layer_idx: int,
    mixes_grid: bool = False,
    **kwargs: Any,
) -> TokenLayout:
    """Return where the tokens of a mixer's call lie: what a backbone found for all layers, or, alone, what masks say.

    Args:
        attention_mask: as a mixer takes it, but for 4D masks.
        hidden_states: (batch, length, hidden_size).
        past_key_values: cache of the library, or None.
        layer_idx: which layer of the cache is the mixer's.
        mixes_grid: whether the mixer reads `grid_size`.
        **kwargs: boundaries of packed sequences, and `grid_size`, see `token_layout`.

    Raises:
        TypeError: for a mask that is no tensor.
        ValueError: for hidden states of other than three dimensions, masks by another name, and a grid that the mixer
            does not read.
    """
    if isinstance(attention_mask, TokenLayout):
        return attention_mask
    if hidden_states.ndim != 3:
        raise ValueError(
            f"hidden_states have shape {tuple(hidden_states.shape)}; they must be (batch, length, hidden_size)."
        )
    check_tensors(attention_mask=attention_mask)
    for name, value in kwargs.items():
        if name.endswith("mask") and value is not None:
            raise ValueError(f"{name} was given, which is not read: give attention_mask, 1 at real tokens, 0 at pads.")
    if kwargs.get("grid_size") is not None and not mixes_grid:
        raise ValueError(
            f"grid_size is {kwargs['grid_size']}, but this mixer reads sequences: leave it out, or build a mixer with "
            "a grid, such as TNNMixer(..., is_causal=False, grid_size=(height, width))."
        )
    batch, length = hidden_states.shape[:2]
    past, has_cache = past_length(past_key_values, layer_idx), past_key_values is not None
    return token_layout(attention_mask, batch, length, past_length=past, has_cache=has_cache, **kwargs)
