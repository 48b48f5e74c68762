"""The base classes of the package's cache layers, growing and preallocated, on those of the library.

Beside its own tensors a layer may hold the last inputs of short convolutions (`recent_inputs.py`), and the first layer
what a copy head keeps (`copy_keys.py`). To crop, reorder, select, join or reset a layer does the same to these.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F

from .._compat import DynamicLayer, StaticLayer
from .recent_inputs import RecentInputs, check_rows, highest_floor, last_real, stack_rows

__all__ = ["SeqMixDynamicLayer", "SeqMixStaticLayer", "bring_back", "refuse_layer"]


def refuse_layer(layer: Any, layer_idx: int, keeps: str, needs: str) -> NoReturn:
    """Refuse a layer of a cache that was not built for a mixer, and say how to build the cache.

    Args:
        layer: what the cache holds there; None for nothing.
        layer_idx: number of the layer.
        keeps: what the layer does not keep, after its class.
        needs: who needs it.

    Raises:
        ValueError: always.
    """
    found = f"the cache holds no layer {layer_idx} yet"
    if layer is not None:
        found = f"layer {layer_idx} of the cache is {type(layer).__name__}{keeps}"
    raise ValueError(
        f"{found}, but {needs}: build the cache with DynamicCache(config=model.config) or "
        "StaticCache(config=model.config, ...). For mixers without a model, give a configuration of their family, "
        "such as PolyTransformerConfig(num_hidden_layers=2) for layers 0 and 1."
    )


def bring_back(past_key_values: Any, layer: Any) -> None:
    """Bring back what a layer of an offloaded cache holds, before a read; the library does so in `update` alone."""
    if getattr(past_key_values, "offloading", False) and layer.is_initialized:
        torch.cuda.default_stream(layer.device).wait_stream(past_key_values.prefetch_stream)
        layer.prefetch()


class SeqMixDynamicLayer(DynamicLayer):
    """A growing layer whose tensors, all with the batch first, are named by `held`; each may be None.

    Public methods (`crop`, `reset`, `join`, ...) act on the layer's own tensors by a method with an underscore before
    its name (`_crop`), which a subclass overrides, and then on the companions.

    Attributes:
        companions: what shares the layer's fate, by name: `RecentInputs`, or other layers.
    """

    held: ClassVar[tuple[str, ...]] = ("keys", "values")
    fills: ClassVar[dict[str, int]] = {}
    """What a tensor has at pads, where that is not zero."""
    record_past: bool = True
    """Whether the first call, too, can be taken back as far as it goes."""
    floor: int | Tensor = 0
    """First position to which a crop may lead back; a crop to no tokens is always possible. What earlier positions
    brought is no longer held, or stands elsewhere in some row. () long where a mask decides."""
    crop_advice: ClassVar[str] = "crop less"

    def __init__(self, **kwargs: Any) -> None:
        self.companions: dict[str, Any] = {}
        super().__init__(**kwargs)

    def activate_past_recording(self) -> None:
        """Keep all that the first call adds, as assisted decoding asks: there that is a prompt with candidates."""
        self.record_past = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add keys (batch, heads, new, width) and values (batch, heads, new, values); return all held, old first."""
        if self.is_initialized and self.keys is not None and self.get_seq_length() > 0:
            check_rows(self.keys.shape[0], key_states)
        return super().update(key_states, value_states, *args, **kwargs)

    def push_inputs(self, name: str, inputs: Tensor, real: Tensor | None, count: int) -> Tensor:
        """Add the inputs of this call, and return the last real ones before it, see `last_real`.

        Args:
            name: of the convolution, one of those of this layer.
            inputs: (batch, length, channels), zeros at pads.
            real: (batch, length) bool, True at real tokens; None when all are.
            count: how many to return, the same in every call.

        Returns:
            (batch, count, channels), zeros first where there were fewer.
        """
        recent: RecentInputs = self.companions.setdefault(name, RecentInputs())
        return recent.push(inputs, real, count, self.record_past)

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last steps back.

        Args:
            tokens_to_remove: minus the number of steps, as the library's own layers take it.

        Raises:
            ValueError: if what that many steps brought is no longer held, and for a positive number.
        """
        if tokens_to_remove < 0 and self.get_seq_length() <= -tokens_to_remove:
            self.reset()
            return
        self.check_crop(tokens_to_remove)
        self._crop(tokens_to_remove)
        for companion in self.companions.values():
            companion.crop(tokens_to_remove)

    def check_crop(self, tokens_to_remove: int) -> None:
        """Refuse what the layer, or something attached to it, cannot take back.

        Args:
            tokens_to_remove: minus the number of steps.

        Raises:
            ValueError: if what that many steps brought is no longer held.
        """
        for companion in self.companions.values():
            companion.check_crop(tokens_to_remove)
        if tokens_to_remove >= 0:
            return
        seen, floor = self.get_seq_length(), int(self.floor)
        if seen + tokens_to_remove < floor:
            raise ValueError(
                f"{-tokens_to_remove} tokens were to be cropped from a cache of {seen}, which can only take back the "
                f"last {seen - floor}: {self.crop_advice}, or start from an empty cache, since other layers of "
                "this cache may have been cropped already."
            )

    def join(self, others: Sequence[Any]) -> None:
        """Add the rows of other layers of this kind; rows of fewer tokens begin with pads."""
        layers: list[SeqMixDynamicLayer] = [self, *others]
        self.floor = highest_floor([(int(layer.floor), layer.get_seq_length()) for layer in layers])
        self._join(others)
        for name, companion in self.companions.items():
            companion.join([other.companions[name] for other in others])

    def forget_first(self, count: int) -> None:
        """Forget the first positions, which are pads of every row."""
        self.floor = max(0, int(self.floor) - count)
        self._forget_first(count)
        for companion in self.companions.values():
            companion.forget_first(count)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows of the batch by `beam_idx`, (batch,) long, for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        self._batch_repeat_interleave(repeats)
        for companion in self.companions.values():
            companion.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor | Sequence[int]) -> None:
        """Keep rows of the batch: numbers of rows, or a mask, as of a tensor."""
        indices = torch.as_tensor(indices)
        self._batch_select_indices(indices)
        for companion in self.companions.values():
            companion.batch_select_indices(indices)

    def offload(self) -> None:
        """Move what is held to the CPU."""
        self._offload()
        for companion in self.companions.values():
            companion.offload()

    def prefetch(self) -> None:
        """Move what is held back to the device."""
        self._prefetch()
        for companion in self.companions.values():
            companion.prefetch()

    def reset(self) -> None:
        """Forget everything."""
        self._reset()
        for companion in self.companions.values():
            companion.reset()

    def detach(self) -> None:
        """Cut what is held from the graph of the calls that brought it, as training on segments of a text does.

        What was made of weights alone, such as the taps of a kernel, is let go: the next call makes it of the weights
        of then, with derivatives.
        """
        self._detach()
        for companion in self.companions.values():
            companion.detach()

    def _crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)

    def _join(self, others: Sequence[Any]) -> None:
        layers: list[SeqMixDynamicLayer] = [self, *others]
        rows = [0 if layer.keys is None else len(layer.keys) for layer in layers]
        for name in self.held:
            parts = [getattr(layer, name) for layer in layers]
            setattr(self, name, stack_rows(parts, rows, self.fills.get(name, 0)))

    def _forget_first(self, count: int) -> None:
        assert self.keys is not None and self.values is not None
        self.keys, self.values = self.keys[:, :, count:], self.values[:, :, count:]

    def _batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda x: x.repeat_interleave(repeats, dim=0))

    def _batch_select_indices(self, indices: Tensor) -> None:
        self._map(lambda x: x[indices.to(x.device)])

    def _offload(self) -> None:
        self._map(lambda x: x.to("cpu", non_blocking=True))

    def _prefetch(self) -> None:
        self._map(lambda x: x.to(self.device, non_blocking=True))

    def _detach(self) -> None:
        self._map(lambda x: x.detach())

    def _reset(self) -> None:
        # Not the library's: older releases zero the tensors and keep their length.
        for name in self.held:
            setattr(self, name, None)
        self.floor = 0
        self.is_initialized = False

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.get_seq_length() == 0:
            return
        for name in self.held:
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, change(tensor))


class SeqMixStaticLayer(StaticLayer):
    """A preallocated layer, which may hold the last real inputs of short convolutions, too.

    Attributes:
        before: for each convolution, (batch, taps - 1, channels), its last real inputs so far.
        companions: other layers that share this layer's fate, by name.
    """

    is_croppable = False  # the library's own are, since 5.24

    def __init__(self, max_cache_len: int, **kwargs: Any) -> None:
        super().__init__(max_cache_len=max_cache_len, **kwargs)
        self.before: dict[str, Tensor] = {}
        self.companions: dict[str, Any] = {}

    def push_inputs(self, name: str, inputs: Tensor, real: Tensor | None, count: int) -> Tensor:
        """Add the inputs of this call, and return the last real ones before, see `SeqMixDynamicLayer.push_inputs`."""
        held = self.before.get(name)
        if held is None:
            held = self.before[name] = inputs.new_zeros((inputs.shape[0], count, inputs.shape[2]))
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(held)
        before = held.clone()
        known = None if real is None else F.pad(real, (count, 0), value=True)
        # In place: compiled graphs know the address.
        held.copy_(last_real(torch.cat([before, inputs], dim=1), known, count))
        return before

    def crop(self, tokens_to_remove: int) -> NoReturn:
        """Refuse: sums and last inputs of before are no longer held.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"crop({tokens_to_remove}) of a preallocated cache, which does not hold what was before: take a "
            "DynamicCache."
        )

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        for held in self.before.values():
            held.zero_()
        for companion in self.companions.values():
            companion.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows of the batch for beam search."""
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        for name, held in self.before.items():
            self.before[name] = held.index_select(0, beam_idx.to(held.device))
        for companion in self.companions.values():
            companion.reorder_cache(beam_idx)
