"""Mixing along the sequence with a Toeplitz kernel, with and without a cache."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...cache import append_history, cached_taps, convolve_steps
from ...modules.products import ToeplitzProduct
from ...ops.common.dispatch import compute_dtype
from ...ops.common.invariance import is_batch_invariant
from ...ops.layout import TokenLayout
from ...ops.rows import RowOperation
from ...ops.toeplitz.continuation import toeplitz_continuation
from ...ops.toeplitz.modal import ModalKernel
from ...ops.toeplitz.online_kernel import OnlineKernel, lags_that_matter
from ...ops.toeplitz.product import toeplitz_matmul, toeplitz_step
from ...ops.toeplitz.response import response_matmul
from ..mixers import layout_of_call
from .tail import DistilledTail

__all__ = ["ToeplitzOperator"]


class ToeplitzOperator(nn.Module):
    """Apply y[i] = sum_j k(i - j) x[j] to each channel, over the real tokens of each sequence.

    Source: Qin et al. 2023 (arXiv 2305.04749), section 3.1.
    Departure: neither pads nor other sequences of a packed row are mixed in.

    Args:
        kernel: module called with (length, device) that returns taps, (channels, length) when causal, else
            (channels, 2 length - 1). Causal taps must not depend on the length. A bidirectional kernel may have a
            method `response_for(length, values)` that returns its frequency response or None (see `FrequencyKernel`).
        is_causal: whether outputs see the past and the present only.
        layer_idx: which layer of a cache is this operator's; a `GatedToeplitzUnit` sets it to its own.
    """

    def __init__(self, kernel: nn.Module, is_causal: bool = True, layer_idx: int = 0) -> None:
        super().__init__()
        self.kernel = kernel
        self.product = ToeplitzProduct()
        self.is_causal = is_causal
        self.layer_idx = layer_idx
        self.tail: DistilledTail | None = None  # modes, where the kernel is distilled for decoding

    def forward(
        self, values: Tensor, layout: TokenLayout | Tensor | None = None, past_key_values: Any = None
    ) -> Tensor:
        """Mix positions.

        Args:
            values: (batch, length, channels), pads of any value.
            layout: where the real tokens lie, or a mask as mixers take it; None where all are real.
            past_key_values: cache whose history these tokens continue; causal only.

        Returns:
            (batch, length, channels); pad positions are undefined.

        Raises:
            TypeError: for a layout of another type.
            ValueError: for a cache given to a bidirectional operator, or together with packed sequences.
        """
        layout = layout_of_call(layout, values, past_key_values, self.layer_idx)
        if values.shape[1] == 0:
            return values
        if past_key_values is None:
            longest = layout.longest(values.shape[1])
            response = self._response(longest, values)
            if response is not None:
                return layout.mix(lambda rows: response_matmul(rows.transpose(1, 2), response).transpose(1, 2), values)
            return layout.mix(
                _ON_ROWS, values, [self.kernel(longest, values.device)], [int(self.is_causal)], self.product
            )
        if not self.is_causal:
            raise ValueError("past_key_values is given, but a bidirectional mixer has no cache: pass None.")
        if layout.sequence_ids is not None:
            # Nothing can follow a row of packed sequences, so nothing of it is worth keeping.
            raise ValueError("packed sequences cannot fill a cache: pass use_cache=False, or one sequence a row.")
        mixed = convolve_steps(past_key_values, self.layer_idx, values, layout, self)
        if mixed is not None:
            return mixed
        before = self._before(past_key_values, layout) if values.shape[1] > 1 else None
        history, positions = append_history(past_key_values, self.layer_idx, values, layout)
        grows = not past_key_values.layers[self.layer_idx].is_compileable
        at_once = getattr(self.kernel, "at_once", 1) if grows and not torch.compiler.is_compiling() else 1
        taps = cached_taps(
            past_key_values,
            self.layer_idx,
            lambda length: self.kernel(max(length, at_once), values.device),
            history.shape[1],
        )
        if before is not None:
            return self._continued(before, history[:, before.shape[1] :], taps)
        if values.shape[1] == 1 and not layout.realign:
            return toeplitz_step(history, taps, None if grows else positions)
        mixed = _multiply(history, [taps], [1], self.product)
        if positions.ndim == 1:
            return mixed.index_select(1, positions)
        return mixed.gather(1, positions.unsqueeze(-1).expand(-1, -1, mixed.shape[-1]))

    def _before(self, past_key_values: Any, layout: TokenLayout) -> Tensor | None:
        """Return the earlier inputs, (batch, past, channels), where training on a segment of a text continues them.

        Derivatives of what was cut from its graph are not computed then. Elsewhere one product over all inputs serves.
        """
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or is_batch_invariant() or layout.realign:
            return None
        layers = past_key_values.layers
        layer = layers[self.layer_idx] if self.layer_idx < len(layers) else None
        if layer is None or layer.is_compileable or layer.get_seq_length() == 0:
            return None
        keys: Tensor = layer.keys
        return keys[:, 0].clone() if keys.is_inference() else keys[:, 0]  # else nothing may be saved for derivatives

    def _continued(self, before: Tensor, values: Tensor, taps: Tensor) -> Tensor:
        """Mix the new inputs, (batch, length, channels), with each other and with those before."""
        length, dtype = values.shape[1], compute_dtype(values.dtype)
        earlier = toeplitz_continuation(before.transpose(1, 2), taps, length)
        own = self.product(values.to(dtype).transpose(1, 2), taps[:, :length], True)
        return (own + earlier).transpose(1, 2).to(values.dtype)

    def decoder_kernel(self, dtype: torch.dtype, device: torch.device, known: Tensor | None = None) -> OnlineKernel:
        """Return the causal kernel as steps of decoding want it, for inputs of a dtype on a device.

        A kernel that builds all its taps at once says how many there are by `at_once`. Another may build taps of some
        lags by `between(first, last, device)`, and may say by `end(dtype, device)` how many count, or None for all.

        Args:
            dtype: of the inputs.
            device: of the inputs.
            known: (channels, taps), the first taps, if they have been built.
        """
        dtype = compute_dtype(dtype)

        between = getattr(self.kernel, "between", None)

        def build(first: int, last: int) -> Tensor:
            if known is not None and last <= known.shape[1]:
                return known[:, first:last]
            return self.kernel(last, device)[:, first:] if between is None else between(first, last, device)

        at_once = getattr(self.kernel, "at_once", None)
        if at_once is not None:
            taps = build(0, at_once)
            return OnlineKernel(taps[:, : lags_that_matter(taps, torch.finfo(dtype).eps)], dtype=dtype)
        return OnlineKernel(build, dtype=dtype, length=self.decoder_end(dtype, device))

    def decoder_end(self, dtype: torch.dtype, device: torch.device) -> int | None:
        """Return how many taps of the causal kernel count for inputs of a dtype, where the kernel says that."""
        end = getattr(self.kernel, "end", None)
        return None if end is None else end(compute_dtype(dtype), device)

    @property
    def has_modes(self) -> bool:
        """Whether calls with a cache mix by exact taps and modes: for a distilled kernel, but not in training."""
        return self.tail is not None and not self.training and self.tail.is_fitted

    def modal_kernel(self, dtype: torch.dtype, device: torch.device) -> ModalKernel:
        """Return the distilled kernel for inputs of a dtype on a device.

        Raises:
            ValueError: where the model is no longer distilled, or its kernel changed afterwards.
        """
        if self.tail is None:
            raise ValueError(
                "the cache was filled by a distilled model, which this is no more: start from an empty one."
            )
        return self.tail.kernel(self.kernel(self.tail.taps, device), dtype, self.layer_idx)

    def _response(self, longest: int, values: Tensor) -> Tensor | None:
        """Return the frequency response of a bidirectional kernel that is given by it, where that saves transforms."""
        give = getattr(self.kernel, "response_for", None)
        # Whether it saves transforms depends on the longest row.
        return None if give is None or self.is_causal or is_batch_invariant() else give(longest, values)


def _multiply(
    rows: Tensor,
    tensors: Sequence[Tensor],
    settings: Sequence[int],
    product: Callable[..., Tensor] = toeplitz_matmul,
) -> Tensor:
    """Mix rows by a kernel of as many positions, or of more: tensors are its taps, settings whether it is causal."""
    (taps,), causal, length = tensors, bool(settings[0]), rows.shape[1]
    if causal:
        taps = taps[:, :length]
    else:
        longest = (taps.shape[1] + 1) // 2
        if length != longest:
            taps = taps[:, longest - length : longest + length - 1]
    return product(rows.transpose(1, 2), taps, causal).transpose(1, 2)


_ON_ROWS = RowOperation("hf_seqmix::packed_toeplitz_v1", _multiply)
