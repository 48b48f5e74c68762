"""Cache layers for mixers whose output depends on the past through sums, on the library's own base classes.

A layer keeps the sums over all but the last steps, and the rows of the last steps, not yet summed. To drop a row is
exact; to subtract a row from a sum is not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._compat import register_layer_type
from ..ops.common.invariance import is_batch_invariant
from .layer import SeqMixDynamicLayer, SeqMixStaticLayer, bring_back, refuse_layer
from .recent_inputs import check_rows

__all__ = ["SUMS", "SumsLayer", "SumsStaticLayer", "append_sums", "read_sums"]

SUMS = "seqmix_sums"
"""The name by which a config's `layer_types` asks for running sums."""

Fold = Callable[[Tensor], Tensor]
Carry = Callable[[Tensor, Tensor], Tensor]


class SumsLayer(SeqMixDynamicLayer):
    """Running sums over all but the last steps, and the rows of those: constant in size, and croppable within them.

    `sums` is (batch, state) in float32 (float64 for float64 rows); `keys`, the rows, is (batch, 1, steps, width).
    `values` is a part of `keys`, of width 0. Between `kept` and `2 * kept` rows are held, or as many as the last call
    added, if that is more.
    """

    _layer_type = SUMS
    held = ("keys", "sums")  # values follow
    kept = 64
    """Steps that can always be taken back, if there were as many."""
    sums: Tensor | None = None
    summed: int = 0
    """Steps that `sums` stands for, whose rows are gone."""
    carries = True
    """Whether sums can fade, which those of older releases cannot."""
    record_past = False
    crop_advice = "crop less, call activate_past_recording() before the first tokens to take all of these back"

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """Nothing, of the shape of the rows but for a width of 0."""
        return None if self.keys is None else self.keys[..., :0]

    @values.setter
    def values(self, nothing: Tensor | None) -> None:
        pass

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add the rows of this call.

        Args:
            key_states: (batch, 1, new, width).
            value_states: not looked at.
            *args: ignored.
            **kwargs: `fold`, which maps rows (batch, rows, width) to their sum; and `carry`, where sums fade, which
                maps sums and further rows to what is left of the sums after these.

        Returns:
            All rows that the sums did not count before, and `value_states`.
        """
        fold: Fold = kwargs["fold"]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        empty = self.get_seq_length() == 0
        if not empty:
            check_rows(self.keys.shape[0], key_states)
        rows = key_states if empty else torch.cat([self.keys, key_states], dim=2)
        self.keys = rows
        held, new = rows.shape[2], key_states.shape[2]
        keep = self.kept if empty and not self.record_past else max(self.kept, new)
        # Where the order of sums is fixed, no part is summed ahead of the rest.
        if (held >= 2 * keep or (empty and held > keep)) and not is_batch_invariant():
            gone = rows[:, 0, : held - keep]
            contribution, carry = fold(gone), kwargs.get("carry")
            before = self.sums if self.sums is None or carry is None else carry(self.sums, gone)
            self.sums = contribution if before is None else before + contribution
            self.summed += held - keep
            self.floor = max(self.floor, self.summed)
            # Copied, so that the rows that were summed are let go.
            self.keys = rows[:, :, held - keep :].clone()
        return rows, value_states

    def get_seq_length(self) -> int:
        """Return the number of steps seen."""
        return self.summed + super().get_seq_length()

    def _reset(self) -> None:
        """Forget everything."""
        super()._reset()
        self.summed = 0

    def _crop(self, tokens_to_remove: int) -> None:
        """Take the last steps back.

        Args:
            tokens_to_remove: minus the number of steps, as the library's own layers take it.

        Raises:
            ValueError: for a positive number; `check_crop` has refused steps whose rows are no longer held.
        """
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop({tokens_to_remove}) is not supported: give minus the number of tokens to take back, as in "
                "crop(-3)."
            )
        if self.keys is not None:
            self.keys = self.keys[:, :, : self.keys.shape[2] + tokens_to_remove]

    def _join(self, others: Sequence[Any]) -> None:
        """Add the rows of other layers of this kind; rows of fewer tokens begin with pads, which add nothing."""
        seen = max(layer.get_seq_length() for layer in (self, *others))
        super()._join(others)
        assert self.keys is not None
        self.summed = seen - self.keys.shape[2]

    def _forget_first(self, count: int) -> None:
        """Forget the first positions, which are pads of every row."""
        held = max(0, count - self.summed)
        self.summed -= count - held
        super()._forget_first(held)


class SumsStaticLayer(SeqMixStaticLayer):
    """Running sums for compiled decoding: `keys` is (batch, 1, 1, state), of any number of steps; no cropping."""

    _layer_type = SUMS
    carries = True
    keeps_tokens = False
    supports_early_init = False  # the size of the sums is not known before the first call

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate sums of the shape of `key_states`."""
        # Called by `update` with the sums of a call; older releases also call it early, which reserves nothing.
        self.dtype, self.device = key_states.dtype, key_states.device
        self.batch_size, self.num_heads = key_states.shape[:2]
        self.k_head_dim, self.v_head_dim = key_states.shape[-1], 0
        self.keys = torch.zeros_like(key_states)
        self.values = torch.zeros_like(key_states[..., :0])
        self.cumulative_length = self.cumulative_length.to(self.device)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.keys)
            torch._dynamo.mark_static_address(self.cumulative_length)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Sum the rows of this call, (batch, 1, new, width); for `fold` and `carry` see `SumsLayer.update`."""
        fold: Fold = kwargs["fold"]
        sums = fold(key_states[:, 0])[:, None, None]
        held = self.keys
        others = held is not None and not torch.compiler.is_compiling() and len(held) != len(sums)
        if held is not None and others and int(self.cumulative_length) > 0:
            raise ValueError(
                f"{len(sums)} rows cannot continue a cache of {len(held)} rows: give as many rows, or build a new "
                "cache."
            )
        if held is None or held.shape != sums.shape or held.dtype != sums.dtype:
            self.lazy_initialization(sums, sums)
        # In place: compiled graphs know the address.
        assert self.keys is not None
        if kwargs.get("carry") is not None:
            # A copy, since a backward pass may still want the value it has now.
            self.keys.copy_(kwargs["carry"](self.keys[:, 0, 0].clone(), key_states[:, 0])[:, None, None])
        self.keys.add_(sums)
        self.cumulative_length.add_(key_states.shape[2])
        return key_states, value_states


register_layer_type(SumsLayer, SumsStaticLayer)


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
    layer: Any = layers[layer_idx] if layer_idx < len(layers) else None
    # By its name, not its class, of which exported model code may have brought a copy.
    if getattr(layer, "_layer_type", None) == SUMS and layer.is_compileable:
        # The tensor is updated in place, and a backward pass may still want the value it has now.
        if layer.keys is None or layer.keys.shape[2] != 1:
            return None, None
        return layer.keys[:, 0, 0].clone(), None
    if getattr(layer, "_layer_type", None) != SUMS:
        refuse_layer(layer, layer_idx, "", "this mixer keeps running sums")
    bring_back(past_key_values, layer)
    return layer.sums, None if layer.keys is None else layer.keys[:, 0]


def append_sums(past_key_values: Any, layer_idx: int, rows: Tensor, fold: Fold, carry: Carry | None = None) -> Tensor:
    """Add the rows of this call to a layer of running sums.

    Args:
        past_key_values: cache of the library, built for the model's configuration.
        layer_idx: number of the layer.
        rows: (batch, new, width), zeros at pads.
        fold: maps rows, (batch, steps, width), to what they add to the sums, (batch, state) in float32 (float64).
        carry: maps sums, (batch, state), and the rows that follow them, (batch, steps, width), to what is left of the
            sums after these rows; None where sums do not fade.

    Returns:
        (batch, steps + new, width), the rows that `read_sums` gave before, and these.

    Raises:
        ValueError: where sums fade, for a layer of an older release, whose sums do not.
    """
    keys = rows.unsqueeze(1)
    settings: dict[str, Any] = {"fold": fold}
    if carry is not None:
        if not getattr(past_key_values.layers[layer_idx], "carries", False):
            raise ValueError(
                f"layer {layer_idx} of the cache has running sums of an older release, which cannot fade by gates: "
                "update hf_seqmix, or load the model in a process of its own."
            )
        settings["carry"] = carry
    held: Tensor = past_key_values.update(keys, keys, layer_idx, **settings)[0]  # values are not looked at
    return held[:, 0]
