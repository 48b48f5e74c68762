"""Cache layers for causal convolutions, which decode a token in O(log^2 n) from the state of an `OnlineConvolution`.

A prompt is kept as a plain history (`history.py`), which the first single token after the prompt turns into a state.
The state is exact, and its inputs can be read back: all other calls of the library find the history in `keys`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .._compat import register_layer_type
from ..ops.common.dispatch import compute_dtype
from ..ops.common.invariance import is_batch_invariant
from ..ops.layout import TokenLayout
from ..ops.toeplitz.online import OnlineConvolution
from ..ops.toeplitz.online_kernel import OnlineKernel
from .history import FEW_STEPS, HistoryLayer, HistoryStaticLayer
from .modes import ModalKernelSource
from .recent_inputs import check_rows, highest_floor

__all__ = ["CONVOLUTION", "ConvolutionLayer", "ConvolutionStaticLayer", "convolve_steps"]

CONVOLUTION = "seqmix_convolution"
"""The name by which a config's `layer_types` asks for such a layer."""

PLAIN_ELEMENTS = 2**25
"""Elements of history up to which an accelerator multiplies the plain history. Counted from the bytes of both ways and
the launches of a step, not measured; a CPU never does."""

PAST_END = 4
"""Times as long as its kernel is a history that an accelerator gives up for a state before that, which is then smaller
and takes fewer launches a step (counted: 81 instead of 95 by a TNN of four layers)."""


class KernelSource(Protocol):
    """What makes the kernel of a layer."""

    def decoder_kernel(self, dtype: torch.dtype, device: torch.device, known: Tensor | None = None) -> OnlineKernel:
        """Return the kernel as steps of decoding want it, for inputs of a dtype on a device; some taps are known."""

    def decoder_end(self, dtype: torch.dtype, device: torch.device) -> int | None:
        """Return how many taps count, where that is known before they are made."""


class ConvolutionLayer(HistoryLayer):
    """Growing history of a convolution's inputs, which decoding replaces by the state of the convolution.

    Attributes:
        state: what stands for the history since steps of decoding followed a prompt; None before.
        kernel: taps, prepared for steps; kept with the cache, since weights do not change while a cache is in use.
        dropped: first positions whose inputs are gone, since the kernel ended before; `keys` has zeros there.
        end: lags of the kernel that let them go; copies know it, too, which have no kernel.
    """

    _layer_type = CONVOLUTION
    held = ("keys",)  # values follow

    def __init__(self, **kwargs: Any) -> None:
        self._clear()
        super().__init__(**kwargs)

    def _clear(self) -> None:
        self._plain: Tensor | None = None
        self._unused = 0  # first positions of the state that are forgotten, since they are pads
        self.state: OnlineConvolution | None = None
        self._place: torch.device | None = None  # where the state is
        self.kernel: OnlineKernel | None = None
        self.dropped = 0
        self.end: int | None = None
        self._lags: tuple[int | None, torch.dtype] | None = None  # of the kernel, where asked for; and of which dtype

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """The history, (batch, 1, tokens, channels). To read it ends the state, which the next step makes again."""
        if self.state is not None:
            inputs, total = self.state.inputs(), self.get_seq_length()
            if inputs.shape[1] < total and self.kernel is not None:
                self.dropped, self.end = max(self.dropped, total - inputs.shape[1]), self.kernel.length
            inputs = inputs[:, max(0, inputs.shape[1] - total) :]
            self.keys = torch.nn.functional.pad(inputs, (0, 0, total - inputs.shape[1], 0)).unsqueeze(1)
        return self._plain

    @keys.setter
    def keys(self, history: Tensor | None) -> None:
        self._plain = history
        self.state, self._unused = None, 0

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """Nothing, of the shape of the history but for a width of 0."""
        keys = self.keys
        return None if keys is None else keys[..., :0]

    @values.setter
    def values(self, nothing: Tensor | None) -> None:
        pass

    def decodes(self, count: int, layout: TokenLayout | None = None, decoder: Any = None) -> bool:
        """Return whether `update` with a decoder mixes so many new tokens itself.

        Few tokens after a history are mixed so, where no derivatives are wanted, no graph is traced and the order of
        sums is free.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or is_batch_invariant():
            return False
        if layout is not None and layout.realign:
            return False
        if self.state is not None or self._plain is None:
            return self.state is not None and count <= FEW_STEPS
        if count > FEW_STEPS or not self._plain.numel():
            return False
        short = self.device.type != "cpu" and self._plain.numel() <= PLAIN_ELEMENTS
        return not short or self._is_past_end(self._plain, decoder)

    def _is_past_end(self, history: Tensor, decoder: Any) -> bool:
        """Return whether most of a history is beyond the last lag of its kernel."""
        end = getattr(decoder, "decoder_end", None)  # which model code that was exported before may lack
        if end is None:
            return False
        if self._lags is None or self._lags[1] != history.dtype:
            self._lags = (end(history.dtype, history.device), history.dtype)  # waits for the accelerator, once
        lags = self._lags[0]
        return lags is not None and history.shape[2] >= PAST_END * lags

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add new inputs after those held.

        Args:
            key_states: (batch, 1, new, channels), the inputs, zeros at pads.
            value_states: of width 0.
            *args: ignored.
            **kwargs: `decoder`, what makes the kernel; others are ignored.

        Returns:
            All inputs and empty values; or, with a `decoder`, the outputs of the new positions, (batch, 1, new,
            channels), and empty values.
        """
        decoder: KernelSource | None = kwargs.get("decoder")
        if decoder is None:
            return super().update(key_states, value_states)
        x = key_states[:, 0]
        if self.state is None or self.state.dtype != x.dtype:
            self._begin(x.dtype, decoder)
        assert self.state is not None
        check_rows(self.state.batch, key_states)
        return self.state.step(x).unsqueeze(1), value_states

    def _begin(self, dtype: torch.dtype, decoder: KernelSource) -> None:
        """Make the state of the history."""
        history = self.keys
        assert history is not None
        if self.kernel is None or self.kernel.dtype != compute_dtype(dtype):
            self.kernel = decoder.decoder_kernel(dtype, history.device, self.taps)
        state = OnlineConvolution(self.kernel, len(history), dtype)
        state.load(history[:, 0].to(dtype))
        self.keys = self.taps = self.room = None
        self.state, self._place = state, history.device

    def get_seq_length(self) -> int:
        """Return the number of positions seen."""
        if self.state is not None:
            return self.state.position - self._unused
        return 0 if self._plain is None or not self._plain.numel() else self._plain.shape[2]

    def _crop(self, tokens_to_remove: int) -> None:
        """Take the last steps back.

        Args:
            tokens_to_remove: minus the number of steps, as the library's own layers take it.

        Raises:
            ValueError: if inputs that count are gone, and for a positive number.
        """
        total = self.get_seq_length()
        left = total + tokens_to_remove
        if tokens_to_remove >= 0 or total == 0:
            super()._crop(tokens_to_remove)  # which does nothing, or refuses
        elif self.state is not None:
            self.state.crop(left + self._unused)
        else:
            if self.dropped and self.end is not None and left - self.end < self.dropped:
                raise ValueError(
                    f"{total} tokens cannot be cropped to {left}: the kernel ends after {self.end} lags, so the "
                    f"inputs of the first {self.dropped} tokens were dropped. Start from an empty cache."
                )
            super()._crop(tokens_to_remove)

    def _join(self, others: Sequence[Any]) -> None:
        """Add the rows of other layers of this kind; rows of fewer tokens begin with pads."""
        layers = (self, *others)
        seen = [layer.get_seq_length() for layer in layers]
        longest = max(seen[1:])
        if self.state is None or longest > self.get_seq_length():
            super()._join(others)
        else:
            for layer in others:
                # What is held is not made again.
                self.state.join(layer.keys[:, 0].to(self.state.dtype))
        # Positions of rows of fewer tokens move: all end together.
        self.dropped = highest_floor([(layer.dropped, count) for layer, count in zip(layers, seen, strict=True)])
        self.end = max((layer.end for layer in layers if layer.end is not None), default=None)

    def _forget_first(self, count: int) -> None:
        """Forget the first positions, which are pads of every row."""
        if self.state is None:
            super()._forget_first(count)
        else:
            # Zeros at the front change nothing: they leave when they are most of the state.
            self._unused += count
            if 2 * self._unused > self.state.position:
                self.keys = self.keys
        self.dropped = max(0, self.dropped - count)

    def _batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        if self.state is None:
            super()._batch_repeat_interleave(repeats)
        else:
            rows = torch.arange(self.state.batch, device=self._place)
            self.state.reorder(rows.repeat_interleave(repeats))

    def _batch_select_indices(self, indices: Tensor) -> None:
        """Keep rows of the batch."""
        if self.state is None:
            super()._batch_select_indices(indices)
        else:
            # Any index of rows, on any device, as of a tensor: a mask, numbers from the end.
            rows = torch.arange(self.state.batch, device=self._place)
            self.state.reorder(rows[indices.to(rows.device)])

    def _offload(self) -> None:
        """Move what is held to the CPU; the taps stay, and room for further tokens is let go."""
        if self.state is None:
            super()._offload()
        else:
            self._place = torch.device("cpu")
            self.state.to(self._place, non_blocking=True)

    def _prefetch(self) -> None:
        """Move what is held back to the device."""
        if self.state is None:
            super()._prefetch()
        else:
            self._place = self.device
            self.state.to(self._place, non_blocking=True)

    def _detach(self) -> None:
        """Cut the history from its graph, and let go of the taps and of the kernel of steps."""
        super()._detach()  # which reads the history, and so ends the state
        self.kernel = self._lags = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the history alone, of which the next step makes the rest.
        history = self.keys
        return {**super().__getstate__(), "_plain": history, "state": None, "kernel": None, "_lags": None}

    def _reset(self) -> None:
        """Forget the history and the taps, whose weights may have changed since."""
        self._clear()
        super()._reset()


class ConvolutionStaticLayer(HistoryStaticLayer):
    """Preallocated history of a convolution's inputs, for compiled decoding by the O(n) product with the history."""

    _layer_type = CONVOLUTION


register_layer_type(ConvolutionLayer, ConvolutionStaticLayer)


def convolve_steps(
    past_key_values: Any,
    layer_idx: int,
    values: Tensor,
    layout: TokenLayout,
    decoder: KernelSource | ModalKernelSource,
) -> Tensor | None:
    """Add this call's inputs to a layer, and return the outputs at their positions, where the layer makes these.

    Args:
        past_key_values: a cache of the library.
        layer_idx: number of the layer, which may be of any kind.
        values: (batch, length, channels), inputs of this call, pads of any value.
        layout: where the real tokens of this call lie.
        decoder: what makes the kernel that the layer asks for.

    Returns:
        (batch, length, channels); None where nothing was added, since the layer leaves this call to a product over
        its history.
    """
    layers = past_key_values.layers
    # By what the layer does, not by its class, of which exported model code may have brought a copy.
    decodes = getattr(layers[layer_idx], "decodes", None) if layer_idx < len(layers) else None
    if decodes is None or not decodes(values.shape[1], layout, decoder):
        return None
    inputs = layout.zero_pads(values).unsqueeze(1)
    mixed, _ = past_key_values.update(inputs, inputs[..., :0], layer_idx, decoder=decoder, layout=layout)
    return mixed[:, 0]
