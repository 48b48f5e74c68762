"""Cache layers of keys and values that also keep the last inputs of the keys, for mixers that convolve these.

The library's own layers serve where keys and values alone are kept, both of the same width; these serve any width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._compat import StaticLayer, register_layer_type
from ..ops.common.ordering import inverse_order, places_first
from .held import HeldLayer

__all__ = ["KEY_INPUTS", "KeyInputsLayer", "KeyInputsStaticLayer", "last_real", "previous_inputs"]

KEY_INPUTS = "seqmix_key_inputs"
"""The name by which a config's `layer_types` asks for such a layer."""


def last_real(inputs: Tensor, real: Tensor | None, count: int) -> Tensor:
    """Return the last `count` real inputs of each row, in order, zeros before them where there are fewer.

    Args:
        inputs: (batch, length, channels), zeros at pads.
        real: (batch, length) bool, True at real tokens; None when all are.
        count: how many.

    Returns:
        (batch, count, channels).
    """
    inputs = F.pad(inputs, (0, 0, count, 0))
    if real is not None:
        order = inverse_order(places_first(F.pad(~real, (count, 0), value=True)))
        inputs = inputs.gather(1, order.unsqueeze(-1).expand_as(inputs))
    return inputs[:, inputs.shape[1] - count :]


class KeyInputsLayer(HeldLayer):
    """Growing keys and values, and the inputs of the last steps: at least 64, or as many as the last call added."""

    _layer_type = KEY_INPUTS
    held = ("keys", "values", "inputs", "real", "earlier")
    kept = 64
    """Steps that can always be taken back, if there were as many."""
    inputs: Tensor | None = None
    """(batch, held, channels), inputs of the last steps, zeros at pads."""
    real: Tensor | None = None
    """(batch, held) bool, True at real tokens."""
    earlier: Tensor | None = None
    """(batch, taps - 1, channels), the last real inputs before those held."""

    def push_inputs(self, inputs: Tensor, real: Tensor | None, count: int) -> Tensor:
        """Add the inputs of this call, and return the last real ones before it, see `last_real`.

        Args:
            inputs: (batch, length, channels), zeros at pads.
            real: (batch, length) bool, True at real tokens; None when all are.
            count: how many to return, the same in every call.

        Returns:
            (batch, count, channels), zeros first where there were fewer.
        """
        flags = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device) if real is None else real
        if self.inputs is None or self.real is None or self.earlier is None:
            self.inputs, self.real = inputs, flags
            self.earlier = inputs.new_zeros((inputs.shape[0], count, inputs.shape[2]))
            return self.earlier
        known = F.pad(self.real, (count, 0), value=True)
        before = last_real(torch.cat([self.earlier, self.inputs], dim=1), known, count)
        held = torch.cat([self.inputs, inputs], dim=1)
        flags = torch.cat([self.real, flags], dim=1)
        keep = max(self.kept, inputs.shape[1])
        if held.shape[1] >= 2 * keep:
            gone = held.shape[1] - keep
            known = F.pad(flags[:, :gone], (count, 0), value=True)
            self.earlier = last_real(torch.cat([self.earlier, held[:, :gone]], dim=1), known, count)
            # Copied, so that the inputs before them are let go.
            held, flags = held[:, gone:].clone(), flags[:, gone:].clone()
        self.inputs, self.real = held, flags
        return before

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last steps back.

        Args:
            tokens_to_remove: minus the number of steps, as the library's own layers take it.

        Raises:
            ValueError: if the inputs of that many steps are no longer held, and for a positive number.
        """
        remove = -tokens_to_remove
        if remove > 0 and remove >= self.get_seq_length():
            self.reset()
            return
        if remove > 0 and self.inputs is not None and self.real is not None:
            held = self.inputs.shape[1]
            if remove > held:
                raise ValueError(
                    f"{remove} tokens were to be cropped from a cache of {self.get_seq_length()}, but the inputs of "
                    f"only the last {held} are held: crop less, or start from an empty cache."
                )
            self.inputs, self.real = self.inputs[:, : held - remove], self.real[:, : held - remove]
        super().crop(tokens_to_remove)

    def forget_first(self, count: int) -> None:
        """Forget the first positions, which are pads of every row, and their inputs as far as they are held."""
        super().forget_first(count)
        if self.inputs is not None and self.real is not None:
            gone = max(0, self.inputs.shape[1] - self.get_seq_length())
            self.inputs, self.real = self.inputs[:, gone:], self.real[:, gone:]


class KeyInputsStaticLayer(StaticLayer):
    """Preallocated keys and values of any widths, and the last real inputs, for compiled decoding; no cropping."""

    _layer_type = KEY_INPUTS
    before: Tensor | None = None
    """(batch, taps - 1, channels), the last real inputs so far."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new keys and values after those held, and return all places, used or not."""
        # Early initialization gives all layers, keys and values one width.
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            if held is not None and (held.shape[1] != new.shape[1] or held.shape[3] != new.shape[3]):
                self.lazy_initialization(key_states, value_states)
        return super().update(key_states, value_states, *args, **kwargs)

    def push_inputs(self, inputs: Tensor, real: Tensor | None, count: int) -> Tensor:
        """Add the inputs of this call, and return the last real ones before it, see `last_real`.

        Args:
            inputs: (batch, length, channels), zeros at pads.
            real: (batch, length) bool, True at real tokens; None when all are.
            count: how many to return, the same in every call.

        Returns:
            (batch, count, channels), zeros first where there were fewer.
        """
        if self.before is None:
            self.before = inputs.new_zeros((inputs.shape[0], count, inputs.shape[2]))
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(self.before)
        before = self.before.clone()
        known = None if real is None else F.pad(real, (count, 0), value=True)
        # In place: compiled graphs know the address.
        self.before.copy_(last_real(torch.cat([before, inputs], dim=1), known, count))
        return before

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        if self.before is not None:
            self.before.zero_()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows of the batch for beam search."""
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        if self.before is not None:
            self.before = self.before.index_select(0, beam_idx.to(self.before.device))


register_layer_type(KeyInputsLayer, KeyInputsStaticLayer, attends=True)


def previous_inputs(past_key_values: Any, layer_idx: int, inputs: Tensor, real: Tensor | None, count: int) -> Tensor:
    """Add the inputs of this call to a layer, and return the last real ones before it.

    Args:
        past_key_values: cache of the library, built for the model's configuration.
        layer_idx: number of the layer.
        inputs: (batch, length, channels), zeros at pads.
        real: (batch, length) bool, True at real tokens; None when all are.
        count: how many to return.

    Returns:
        (batch, count, channels), zeros first where there were fewer.

    Raises:
        ValueError: for a cache that was not built for them.
    """
    layers = past_key_values.layers
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    # By what it does, not by its class, of which exported model code may have brought a copy.
    push = getattr(layer, "push_inputs", None)
    if push is None:
        raise ValueError(
            f"layer {layer_idx} of the cache is {type(layer).__name__}, which keeps no inputs, but token_shift needs "
            "the last ones: build the cache with DynamicCache(config=model.config) or "
            "StaticCache(config=model.config, ...)."
        )
    return push(inputs, real, count)
