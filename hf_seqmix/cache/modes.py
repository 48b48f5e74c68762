"""Cache layers for causal convolutions whose kernels end in decaying modes: constant in size, whatever was read.

A layer keeps the last inputs, a window, and the state of the modes for all earlier ones (`ops/toeplitz/modal.py`).
"""

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .._compat import register_layer_type
from ..ops.common.dispatch import compute_dtype
from ..ops.common.invariance import is_batch_invariant
from ..ops.common.ordering import inverse_order
from ..ops.layout import TokenLayout
from ..ops.toeplitz.modal import ModalKernel
from ..ops.toeplitz.product import toeplitz_matmul
from .history import FEW_STEPS, HistoryLayer, HistoryStaticLayer

__all__ = ["MODES", "ModesLayer", "ModesStaticLayer"]

MODES = "seqmix_modes"
"""The name by which a config's `layer_types` asks for such a layer."""


class ModalKernelSource(Protocol):
    """What makes the kernel of a layer."""

    @property
    def has_modes(self) -> bool:
        """Whether the decoder wants the modes instead of the exact kernel."""

    def modal_kernel(self, dtype: torch.dtype, device: torch.device) -> ModalKernel:
        """Return the kernel for inputs of a dtype on a device."""


class ModesLayer(HistoryLayer):
    """The last inputs, `keys` of shape (batch, 1, window, channels), and the state of the modes for those before.

    Without a state the layer is a history as any other, and mixers that do not decode by modes use it so.

    Attributes:
        state: (batch, channels, modes) complex; None before inputs have left the window.
        passed: positions before the window.
        kernel: taps and modes; kept with the cache, since weights do not change while a cache is in use.
    """

    _layer_type = MODES
    held = ("keys", "values", "state")
    kept = 64
    """Steps that can always be taken back, if there were as many."""
    state: Tensor | None = None
    passed: int = 0
    record_past = False
    kernel: ModalKernel | None = None
    _flipped: Tensor | None = None  # (channels, 1, taps), of which the last belongs to the newest input

    def decodes(self, count: int, layout: TokenLayout, decoder: ModalKernelSource) -> bool:
        """Return whether `update` mixes new tokens itself: any number of tokens, wherever pads are.

        Where a graph is traced, derivatives are wanted, which modes do not have of the kernel, or the order of sums is
        fixed, a layer without a state goes on as a history; one with a state does not go on in training.
        """
        if self.state is not None:
            return decoder.has_modes
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or is_batch_invariant():
            return False
        return decoder.has_modes

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add new inputs after those held.

        Args:
            key_states: (batch, 1, new, channels), the inputs, zeros at pads.
            value_states: of width 0.
            *args: ignored.
            **kwargs: `decoder`, what makes the kernel; `layout`, where the real tokens of this call lie.

        Returns:
            All inputs and empty values; or, with a `decoder`, the outputs of the new positions, (batch, 1, new,
            channels), and empty values.

        Raises:
            ValueError: without a `decoder`, where inputs have left the window.
        """
        decoder: ModalKernelSource | None = kwargs.get("decoder")
        if decoder is None:
            if self.state is not None:
                raise ValueError(
                    f"this cache holds the last {self.get_seq_length() - self.passed} of {self.get_seq_length()} "
                    "inputs, and modes for the rest: go on with the distilled model in evaluation mode, or start from "
                    "an empty cache."
                )
            return super().update(key_states, value_states)
        dtype, device, new = key_states.dtype, key_states.device, key_states.shape[2]
        kernel = self.kernel
        if kernel is None or kernel.dtype != compute_dtype(dtype) or kernel.device != device:
            kernel = self.kernel = decoder.modal_kernel(dtype, device)
            self._flipped = None
        kept = self.kept if self.get_seq_length() == 0 and not self.record_past else max(self.kept, new)
        window, _ = super().update(key_states, key_states[..., :0])
        layout: TokenLayout | None = kwargs.get("layout")
        late = None
        if layout is not None and layout.realign:
            y, late = self._realigned(window[:, 0], new, layout, kernel)
        elif new <= FEW_STEPS and window.shape[2] < kernel.reach + 2 * self.kept + FEW_STEPS:
            y = self._steps(window[:, 0], new, kernel)
        else:
            y = self._product(window[:, 0], new, kernel)
        self._fold(kernel, kept, late)
        return y.to(dtype).unsqueeze(1), value_states

    def _steps(self, window: Tensor, new: int, kernel: ModalKernel) -> Tensor:
        """Return (batch, new, channels), the outputs at the end of a window (batch, held, channels), one by one."""
        total, last = window.shape[1], kernel.reach + 2 * self.kept + FEW_STEPS
        if self._flipped is None:
            self._flipped = kernel.first(last).flip(1).unsqueeze(1)
        # Tokens of a channel side by side, where the history keeps them: one pass, and nothing copied.
        inputs = window.permute(2, 0, 1)
        outputs = [
            (inputs[:, :, :held] * self._flipped[:, :, last - held :]).sum(dim=2).t()
            for held in range(total - new + 1, total + 1)
        ]
        y = torch.stack(outputs, dim=1)
        return y if self.state is None else y + kernel.outputs(self.state, total - new, new)

    def _product(self, window: Tensor, new: int, kernel: ModalKernel, late: Tensor | None = None) -> Tensor:
        """Return the same for many new positions, or, of a window that begins later in some rows, for all."""
        total = window.shape[1]
        y = toeplitz_matmul(window.transpose(1, 2), kernel.first(total)).transpose(1, 2)[:, total - new :]
        return y if self.state is None else y + kernel.outputs(self.state, total - new, new, late)

    def _realigned(
        self, window: Tensor, new: int, layout: TokenLayout, kernel: ModalKernel
    ) -> tuple[Tensor, Tensor | None]:
        """Move pads after real tokens to the front; then return the outputs, and how much later each row begins."""
        total = window.shape[1]
        places = layout.history_places(total - new, total)  # (batch, total)
        window = window.gather(1, inverse_order(places).unsqueeze(-1).expand_as(window))
        self.keys = window.unsqueeze(1)
        self.floor = self.get_seq_length() - new + layout.moved()
        assert layout.mask is not None
        late = None if self.state is None else (~layout.mask).sum(dim=1)
        least = min(total, kernel.reach - 1) if self.state is not None else 0
        y = self._product(window, total - least, kernel, late)
        own = (places[:, total - new :] - least).clamp(min=0)  # pads are undefined
        return y.gather(1, own.unsqueeze(-1).expand(-1, -1, y.shape[-1])), late

    def _fold(self, kernel: ModalKernel, kept: int, late: Tensor | None) -> None:
        """Let the first inputs of a long window go into the state; all rows begin together again.

        Those stay that the modes do not give, and steps to take back. Many leave at once, so that few steps copy.
        """
        assert self.keys is not None
        leaving = self.keys.shape[2] - (kernel.reach - 1 + kept)
        leaving = 0 if leaving <= self.kept else leaving
        if late is not None:
            leaving = max(leaving, int(late.max()))
        self._let_go(leaving, kernel, late)

    def _let_go(self, leaving: int, kernel: ModalKernel, late: Tensor | None = None) -> None:
        if leaving <= 0:
            return
        assert self.keys is not None and self.values is not None
        steps = None if late is None else leaving - late
        self.state = kernel.advance(self.state, self.keys[:, 0, :leaving], steps)
        self.passed += leaving
        # Copied, so that the inputs that left are let go.
        self.keys, self.values = self.keys[:, :, leaving:].clone(), self.values[:, :, leaving:]

    def get_seq_length(self) -> int:
        """Return the number of positions seen."""
        return self.passed + super().get_seq_length()

    def _crop(self, tokens_to_remove: int) -> None:
        """Take the last steps back.

        Args:
            tokens_to_remove: minus the number of steps, as the library's own layers take it.

        Raises:
            ValueError: if so many steps cannot be taken back, and for a positive number.
        """
        seen = self.get_seq_length()
        if tokens_to_remove >= 0 or self.state is None or self.kernel is None or self.keys is None:
            super()._crop(tokens_to_remove)  # which does nothing, or refuses
        else:
            left = seen + tokens_to_remove - self.passed
            if left < self.kernel.reach - 1:
                raise ValueError(
                    f"{-tokens_to_remove} tokens were to be cropped from a cache of {seen}, but modes can only take "
                    f"back the last {seen - self.passed - self.kernel.reach + 1}: crop less, or start from an empty "
                    "cache, since other layers of this cache may have been cropped already."
                )
            self.keys, self.values = self.keys[:, :, :left], self.keys[:, :, :left, :0]

    def _join(self, others: Sequence[Any]) -> None:
        """Add the rows of other layers of this kind; rows of fewer tokens begin with pads, which add nothing."""
        seen = max(layer.get_seq_length() for layer in (self, *others))
        others = [copy.copy(layer) for layer in others]
        layers: list[ModesLayer] = [self, *others]
        kernel = next((layer.kernel for layer in layers if layer.kernel is not None), None)
        windows = [layer.keys.shape[2] for layer in layers if layer.state is not None and layer.keys is not None]
        if kernel is not None and windows:
            for layer in layers:
                held = 0 if layer.keys is None else layer.keys.shape[2]
                layer._let_go(held - min(windows), kernel)
        super()._join(others)
        assert self.keys is not None
        self.passed, self.kernel = seen - self.keys.shape[2], kernel

    def _forget_first(self, count: int) -> None:
        """Forget the first positions, which are pads of every row."""
        held = max(0, count - self.passed)
        self.passed -= count - held
        if self.passed == 0:
            self.state = None  # of pads alone
        super()._forget_first(held)

    def _detach(self) -> None:
        """Cut what is held from its graph, and let go of the taps and of the kernel."""
        super()._detach()
        self.kernel = self._flipped = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_flipped": None}

    def _reset(self) -> None:
        """Forget everything, the kernel, too, whose weights may have changed since."""
        super()._reset()
        self.state, self.passed, self.kernel, self._flipped = None, 0, None, None


class ModesStaticLayer(HistoryStaticLayer):
    """Preallocated history of all inputs, for compiled decoding with the exact kernel."""

    _layer_type = MODES


register_layer_type(ModesLayer, ModesStaticLayer)
