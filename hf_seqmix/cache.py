"""Cache layers for mixers that need their whole input history, or sums over it, on the library's own base classes.

A Toeplitz mixer keeps what it mixes: `keys` is (batch, 1, tokens, channels) and `values` has width 0, so that cropping,
reordering for beams, selecting rows and offloading are the library's own code. The taps of the kernel are kept beside the
history, since they cost more than a step of decoding and cannot change while a cache is in use.

A mixer whose output depends on the past through sums keeps those, and the rows of the last steps beside them, not yet
summed: dropping rows is exact, taking them out of a sum is not.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._compat import DynamicLayer, StaticLayer, register_layer_type
from .ops.masking import TokenLayout

__all__ = [
    "HISTORY",
    "SUMS",
    "HistoryLayer",
    "HistoryStaticLayer",
    "SumsLayer",
    "SumsStaticLayer",
    "append_history",
    "append_sums",
    "cached_taps",
    "past_length",
    "read_sums",
]

HISTORY = "seqmix_history"
"""The name by which a config's `layer_types` asks for a history layer."""

SUMS = "seqmix_sums"
"""The name by which a config's `layer_types` asks for running sums."""

Fold = Callable[[Tensor], Tensor]


class HistoryLayer(DynamicLayer):
    """Growing history of a mixer's inputs: `keys` of shape (batch, 1, tokens, channels), `values` of width 0."""

    _layer_type = HISTORY
    taps: Tensor | None = None

    def reset(self) -> None:
        """Forget the history and the taps, whose weights may have changed since."""
        # Not the library's: older releases zero the history and keep its length.
        self.keys = self.values = self.taps = None
        self.is_initialized = False


class HistoryStaticLayer(StaticLayer):
    """Preallocated history of a mixer's inputs, for compiled decoding: `keys` of shape (batch, 1, max_cache_len, channels)."""

    _layer_type = HISTORY
    taps: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # Early initialisation passes values as wide as the keys; a history has none.
        super().lazy_initialization(key_states, value_states[..., :0])

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new inputs after those held, and return all places, used or not."""
        # Early initialisation gives every layer the shape of the attention layers of a hybrid.
        if self.keys is not None and self.keys.shape[1::2] != key_states.shape[1::2]:
            self.lazy_initialization(key_states, value_states)
        return super().update(key_states, value_states, *args, **kwargs)

    def reset(self) -> None:
        """Forget the history and the taps, whose weights may have changed since."""
        super().reset()
        self.taps = None


register_layer_type(HistoryLayer, HistoryStaticLayer)


class SumsLayer(DynamicLayer):
    """Running sums over all but the last steps, and the rows of those: constant in size, and croppable within them.

    `sums` is (batch, state) in float32 (float64 for float64 rows); `keys`, the rows, is (batch, 1, steps, width), and
    `values` has width 0. Between `kept` and `2 * kept` rows are held, or as many as the last call added, if that is more.
    """

    _layer_type = SUMS
    kept = 64
    """Steps that can always be taken back, if there were as many."""
    sums: Tensor | None = None
    summed: int = 0
    """Steps that `sums` stands for, whose rows are gone."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add the rows of this call, (batch, 1, new, width); `fold` maps rows (batch, rows, width) to their sum."""
        fold: Fold = kwargs["fold"]
        empty = self.get_seq_length() == 0
        rows, nothing = super().update(key_states, value_states)
        held, new = rows.shape[2], key_states.shape[2]
        keep = self.kept if empty else max(self.kept, new)
        if held >= 2 * keep or (empty and held > keep):
            contribution = fold(rows[:, 0, : held - keep])
            self.sums = contribution if self.sums is None else self.sums + contribution
            self.summed += held - keep
            # Copied, so that the rows that were summed are let go.
            self.keys, self.values = rows[:, :, held - keep :].clone(), nothing[:, :, held - keep :]
        return rows, nothing

    def get_seq_length(self) -> int:
        """Return the number of steps seen."""
        return self.summed + super().get_seq_length()

    def reset(self) -> None:
        """Forget everything."""
        self.keys = self.values = self.sums = None
        self.summed = 0
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last steps back.

        Args:
            tokens_to_remove: minus the number of steps, as the library's own layers take it.

        Raises:
            ValueError: if the rows of that many steps are no longer held, and for a positive number.
        """
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop({tokens_to_remove}) is not supported: give minus the number of tokens to take back, as in crop(-3)."
            )
        remove, seen = -tokens_to_remove, self.get_seq_length()
        if remove == 0 or not self.is_initialized:
            return
        held = seen - self.summed
        if remove >= seen:
            self.reset()
        elif remove > held:
            raise ValueError(
                f"{remove} tokens were to be cropped from a cache of {seen}, but running sums can only take back the last "
                f"{held}: crop less, or start from an empty cache (for assisted generation, set num_assistant_tokens to at "
                f"most {self.kept - 1} and num_assistant_tokens_schedule to 'constant')."
            )
        else:
            self.keys, self.values = self.keys[:, :, : held - remove], self.values[:, :, : held - remove]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows of the batch for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        self._map(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep rows of the batch."""
        self._map(lambda x: x[indices.to(x.device)])

    def offload(self) -> None:
        """Move what is held to the CPU."""
        self._map(lambda x: x.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move what is held back to the device."""
        self._map(lambda x: x.to(self.device, non_blocking=True))

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if not self.is_initialized:
            return
        self.keys, self.values = change(self.keys), change(self.values)
        if self.sums is not None:
            self.sums = change(self.sums)


class SumsStaticLayer(StaticLayer):
    """Running sums for compiled decoding: `keys` is (batch, 1, 1, state), of any number of steps; nothing can be cropped."""

    _layer_type = SUMS
    supports_early_init = False  # the size of the sums is not known before the first call

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # Called by `update` with the sums of a call; older releases also call it early, which reserves nothing.
        self.dtype, self.device = key_states.dtype, key_states.device
        self.batch_size, self.num_heads = key_states.shape[:2]
        self.k_head_dim, self.v_head_dim = key_states.shape[-1], 0
        self.keys = torch.zeros_like(key_states)
        self.values = self.keys[..., :0]
        self.cumulative_length = self.cumulative_length.to(self.device)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.keys)
            torch._dynamo.mark_static_address(self.cumulative_length)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Sum the rows of this call, (batch, 1, new, width); `fold` maps rows (batch, rows, width) to their sum."""
        fold: Fold = kwargs["fold"]
        sums = fold(key_states[:, 0])[:, None, None]
        if self.keys is None or self.keys.shape != sums.shape or self.keys.dtype != sums.dtype:
            self.lazy_initialization(sums, sums)
        # In place: compiled graphs know the address.
        self.keys.add_(sums)
        self.cumulative_length.add_(key_states.shape[2])
        return key_states, value_states


register_layer_type(SumsLayer, SumsStaticLayer)


def past_length(past_key_values: Any, layer_idx: int = 0) -> int | Tensor:
    """Return how many positions a cache holds before this call: an int, or a tensor for a preallocated cache."""
    if past_key_values is None:
        return 0
    length = past_key_values.get_seq_length(layer_idx)
    # The tensor counter is updated in place: keep the value it has now.
    return length.clone() if isinstance(length, Tensor) else length


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
    """
    past = past_length(past_key_values, layer_idx)
    keys = layout.zero_pads(values).unsqueeze(1)
    history, _ = past_key_values.update(keys, keys[..., :0], layer_idx)  # (batch, 1, total, channels)
    positions = torch.arange(values.shape[1], device=values.device) + past
    if not layout.realign:
        return history[:, 0], positions
    order = layout.history_order(past, history.shape[2])  # (batch, total)
    history = history[:, 0].gather(1, order.unsqueeze(-1).expand(-1, -1, history.shape[-1])).unsqueeze(1)
    layer = past_key_values.layers[layer_idx]
    if layer.is_compileable:
        layer.keys.copy_(history)
    else:
        layer.keys = history
    return history[:, 0], order.argsort(dim=-1).index_select(1, positions)


def cached_taps(past_key_values: Any, layer_idx: int, build: Callable[[int], Tensor], length: int) -> Tensor:
    """Return at least `length` taps of a layer's kernel, built once and kept with the cache.

    Args:
        past_key_values: a cache whose layer `layer_idx` exists.
        layer_idx: number of the layer.
        build: makes the causal kernel, (channels, taps), for a number of taps; earlier taps do not depend on that number.
        length: taps needed.

    Returns:
        (channels, taps) with taps >= length.
    """
    layer = past_key_values.layers[layer_idx]
    taps = getattr(layer, "taps", None)
    if taps is None or taps.shape[1] < length:
        # Twice as many at each rebuild, so that decoding n tokens rebuilds log n times.
        taps = build(length if taps is None else max(length, 2 * taps.shape[1]))
        layer.taps = taps
    return taps


def read_sums(past_key_values: Any, layer_idx: int) -> tuple[Tensor | None, Tensor | None]:
    """Return what a layer of running sums holds.

    Args:
        past_key_values: cache of the library, built for the model's configuration.
        layer_idx: number of the layer.

    Returns:
        sums: (batch, state) in float32 (float64), the sums over the steps whose rows are not held; None for none.
        recent: (batch, steps, width), rows that count in addition; None for none, always so for a preallocated cache.

    Raises:
        ValueError: for a cache that was not built for running sums.
    """
    layers = past_key_values.layers
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    if isinstance(layer, SumsStaticLayer):
        # The tensor is updated in place, and a backward pass may still want the value it has now.
        ready = layer.keys is not None and layer.keys.shape[2] == 1
        return (layer.keys[:, 0, 0].clone() if ready else None), None
    if not isinstance(layer, SumsLayer):
        raise ValueError(
            f"layer {layer_idx} of the cache is {type(layer).__name__}, but this mixer keeps running sums: build the cache "
            "with DynamicCache(config=model.config) or StaticCache(config=model.config, ...)."
        )
    return layer.sums, layer.keys[:, 0] if layer.is_initialized else None


def append_sums(past_key_values: Any, layer_idx: int, rows: Tensor, fold: Fold) -> None:
    """Add the rows of this call to a layer of running sums.

    Args:
        past_key_values: cache of the library, built for the model's configuration.
        layer_idx: number of the layer.
        rows: (batch, new, width), zeros at pads.
        fold: maps rows, (batch, steps, width), to what they add to the sums, (batch, state) in float32 (float64).
    """
    keys = rows.unsqueeze(1)
    past_key_values.update(keys, keys[..., :0], layer_idx, fold=fold)
