"""Cache layers for mixers that need their whole input history, on the library's own base classes.

A Toeplitz mixer keeps what it mixes: `keys` is (batch, 1, tokens, channels) and `values` has width 0, so that
cropping, reordering for beams, selecting rows and offloading are the library's own code. A growing history has room
for further tokens, so that a step of decoding copies nothing. The taps of the kernel are kept beside the history,
since they cost more than a step of decoding and cannot change while a cache is in use.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._compat import register_layer_type
from ..ops.common.ordering import inverse_order
from ..ops.layout import TokenLayout
from .layer import SeqMixDynamicLayer, SeqMixStaticLayer
from .recent_inputs import check_rows

__all__ = ["HISTORY", "HistoryLayer", "HistoryStaticLayer", "append_history", "cached_taps", "past_length"]

HISTORY = "seqmix_history"
"""The name by which a config's `layer_types` asks for a history layer."""

FEW_STEPS = 12
"""Tokens after a history up to which single steps beat a product over all: 6 tokens after 1024 in half the time."""


class HistoryLayer(SeqMixDynamicLayer):
    """Growing history of a mixer's inputs: `keys` of shape (batch, 1, tokens, channels), `values` of width 0."""

    _layer_type = HISTORY
    crop_advice = "pads that followed tokens have moved before them; crop less, pad on the left"
    taps: Tensor | None = None
    room: Tensor | None = None
    """(channels, batch, places), of which `keys` is a view after the second call: the tokens of a channel, which a
    step of decoding reads, lie side by side, and places for further tokens follow."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add inputs, (batch, 1, new, channels); return all inputs, and values of width 0."""
        keys = self.keys
        by_copying = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if by_copying or keys is None or not keys.numel() or keys.dtype != key_states.dtype:
            wants_grad = torch.is_grad_enabled() and not torch.compiler.is_compiling()
            if keys is not None and wants_grad and keys.is_inference():
                self.keys = keys.clone()  # inputs read in inference mode may not be saved for derivatives
            return super().update(key_states, value_states)
        batch, _, held, channels = keys.shape
        check_rows(batch, key_states)
        total = held + key_states.shape[2]
        room = self.room
        if room is None or not self._in_room(keys) or room.shape[2] < total:
            # Half as much again, so that n steps copy the history log n times.
            room = self.room = keys.new_empty((channels, batch, total + max(64, total // 2)))
            room[:, :, :held] = keys[:, 0].permute(2, 0, 1)
        room[:, :, held:total] = key_states[:, 0].permute(2, 0, 1)
        self.keys = room[:, :, :total].permute(1, 2, 0).unsqueeze(1)
        self.values = self.keys[..., :0]
        return self.keys, self.values

    def _in_room(self, keys: Tensor) -> bool:
        """Return whether the history is where the last call put it, cropped or not, and may be written to."""
        room = self.room
        if room is None or keys.data_ptr() != room.data_ptr() or keys.stride()[2:] != (1, room.stride(0)):
            return False
        return keys.shape[0] == room.shape[1] and room.is_inference() == torch.is_inference_mode_enabled()

    def _offload(self) -> None:
        """Let go of the room for further tokens, too."""
        super()._offload()
        self.room = None

    def _detach(self) -> None:
        """Cut the history from its graph, and let the taps go."""
        super()._detach()
        self.taps = None

    def __getstate__(self) -> dict[str, Any]:
        # The library's exporters take every tensor of a copied cache for state that a graph reads and returns.
        return {**self.__dict__, "taps": None, "room": None}

    def _reset(self) -> None:
        """Forget the history and the taps, whose weights may have changed since."""
        super()._reset()
        self.taps = self.room = None


class HistoryStaticLayer(SeqMixStaticLayer):
    """Preallocated history of a mixer's inputs for compiled decoding: `keys` (batch, 1, max_cache_len, channels)."""

    _layer_type = HISTORY
    taps: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the history; `value_states` has any width."""
        # Early initialization passes values as wide as the keys; a history has none.
        super().lazy_initialization(key_states, value_states[..., :0])

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new inputs after those held, and return all places, used or not."""
        # Early initialization gives every layer the shape of the attention layers of a hybrid.
        if self.keys is not None and self.keys.shape[1::2] != key_states.shape[1::2]:
            self.lazy_initialization(key_states, value_states)
        return super().update(key_states, value_states, *args, **kwargs)

    def reset(self) -> None:
        """Forget the history and the taps, whose weights may have changed since."""
        super().reset()
        self.taps = None


register_layer_type(HistoryLayer, HistoryStaticLayer)


def past_length(past_key_values: Any, layer_idx: int = 0) -> int | Tensor:
    """Return how many positions a cache holds before this call: an int, or () long for a preallocated cache.

    Raises:
        TypeError: for anything but a cache, such as a tuple of tensors, which old versions of the library had.
    """
    if past_key_values is None:
        return 0
    if not hasattr(past_key_values, "get_seq_length"):
        raise TypeError(
            f"past_key_values is a {type(past_key_values).__name__}; it must be a cache of the library, such as "
            "DynamicCache(config=model.config), or what an earlier call returned as past_key_values."
        )
    length = past_key_values.get_seq_length(layer_idx)
    # The tensor counter is updated in place: keep the value it has now.
    return length.clone() if isinstance(length, Tensor) else length


def check_room(past_key_values: Any, past: int | Tensor, batch: int, length: int, copies: bool = False) -> None:
    """Refuse more tokens than a preallocated cache has room for, and another number of rows.

    Args:
        past_key_values: a cache of the library.
        past: positions that the cache holds, an int or () long.
        batch: rows of this call.
        length: new tokens.
        copies: whether the model keeps all tokens beside what its layers keep, for a copy head.

    Raises:
        ValueError: a layer that keeps all tokens is full, or what a layer allocated has other rows.
    """
    for layer in past_key_values.layers:
        if layer.is_compileable and (rows := _allocated_rows(layer)) not in (None, batch):
            raise ValueError(
                f"the cache was allocated for {rows} rows, and this call has {batch}: give as many rows, or build a "
                "new StaticCache, since reset() keeps the rows."
            )
    limits = [
        layer.max_cache_len
        for layer in past_key_values.layers
        if layer.is_compileable
        and (copies or (getattr(layer, "keeps_tokens", True) and not getattr(layer, "is_sliding", False)))
    ]
    # The length is read from the device, once and only where a layer may be full.
    if limits and (total := int(past) + length) > min(limits):
        raise ValueError(
            f"the cache has room for {min(limits)} tokens, and would hold {total}: build it with "
            "StaticCache(config=model.config, max_cache_len=...) for the prompt and all new tokens."
        )


def _knowing_its_floor(layer: Any) -> Any:
    """Return a layer that refuses a crop which would be wrong; one of a cache without a configuration does not."""
    if layer.is_compileable or hasattr(layer, "check_crop"):
        return layer
    own = HistoryLayer()
    vars(own).update(vars(layer))
    return own


def _allocated_rows(layer: Any) -> int | None:
    """Return the rows of what a preallocated layer holds; None where nothing is allocated, or anew for each batch."""
    copy_keys = getattr(layer, "companions", {}).get("copy_keys")
    own = layer.keys if getattr(layer, "keeps_tokens", True) else None
    tensors = [own, None if copy_keys is None else copy_keys.keys, *getattr(layer, "before", {}).values()]
    return next((len(tensor) for tensor in tensors if isinstance(tensor, Tensor)), None)


def append_history(past_key_values: Any, layer_idx: int, values: Tensor, layout: TokenLayout) -> tuple[Tensor, Tensor]:
    """Add this call's inputs to a layer's history, keeping each row's real tokens together at its end.

    Args:
        past_key_values: a cache of the library whose layer `layer_idx` keeps its history (any layer with keys does).
        layer_idx: number of the layer.
        values: (batch, length, channels), inputs of this call, pads of any value.
        layout: where the real tokens of this call lie.

    Returns:
        history: (batch, total, channels), with zeros at pads and, in a preallocated cache, at positions not yet used.
        positions: (length,) or (batch, length) long, where this call's tokens stand in the history.

    Raises:
        ValueError: the layer holds something else, such as keys and values that prefix tuning made for attention.
    """
    layers = past_key_values.layers
    layer: Any = layers[layer_idx] if layer_idx < len(layers) else None
    # A preallocated layer, which `generate` lays out for attention everywhere, is laid out anew by its first inputs.
    held = None if layer is None or layer.is_compileable else getattr(layer, "keys", None)
    if isinstance(held, Tensor) and held.ndim == 4 and (held.shape[1], held.shape[3]) != (1, values.shape[-1]):
        raise ValueError(
            f"layer {layer_idx} of the cache holds keys of shape {tuple(held.shape)}, but this mixer keeps its "
            f"inputs, (batch, 1, tokens, {values.shape[-1]}). Build the cache with DynamicCache(config=model.config). "
            "Keys and values made for attention, as by prefix tuning, cannot be used: prompt tuning can."
        )
    past = past_length(past_key_values, layer_idx)
    keys = layout.zero_pads(values).unsqueeze(1)
    history, _ = past_key_values.update(keys, keys[..., :0], layer_idx)  # (batch, 1, total, channels)
    positions = torch.arange(values.shape[1], device=values.device) + past
    if not layout.realign:
        return history[:, 0], positions
    places = layout.history_places(past, history.shape[2])  # (batch, total)
    order = inverse_order(places)
    layer = layers[layer_idx] = _knowing_its_floor(layers[layer_idx])
    if layer.is_compileable and torch.is_grad_enabled():
        history = history.clone()  # `gather` keeps what it reads, which is written to below
    history = history[:, 0].gather(1, order.unsqueeze(-1).expand(-1, -1, history.shape[-1])).unsqueeze(1)
    if layer.is_compileable:
        layer.keys.copy_(history)
    else:
        layer.keys = history
        layer.floor = past + layout.moved()
    return history[:, 0], places.index_select(1, positions)


def cached_taps(past_key_values: Any, layer_idx: int, build: Callable[[int], Tensor], length: int) -> Tensor:
    """Return at least `length` taps of a layer's kernel, built once and kept with the cache.

    Args:
        past_key_values: a cache whose layer `layer_idx` exists.
        layer_idx: number of the layer.
        build: makes the causal kernel, (channels, taps), for a number of taps; earlier taps do not depend on that
            number.
        length: taps needed.

    Returns:
        (channels, taps) with taps >= length.
    """
    layer = past_key_values.layers[layer_idx]
    if torch.compiler.is_exporting() and not layer.is_compileable:
        return build(length)  # one graph for all lengths cannot keep what only some calls rebuild
    taps = getattr(layer, "taps", None)
    wanted = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if wanted and not getattr(layer, "taps_with_graph", True):
        taps = None  # a kernel without derivatives does not serve a call that wants them
    if taps is None or taps.shape[1] < length:
        # Twice as many at each rebuild, so that decoding n tokens rebuilds log n times.
        taps = build(length if taps is None else max(length, 2 * taps.shape[1]))
        layer.taps, layer.taps_with_graph = taps, torch.is_grad_enabled()
        if layer.is_compileable and not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(taps)  # else a CUDA graph copies them in each step
    return taps
