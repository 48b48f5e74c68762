"""The modes of a distilled kernel, as a part of a model that is saved with the model."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...ops.common.dispatch import has_numbers
from ...ops.toeplitz.distillation import ModalFit
from ...ops.toeplitz.modal import ModalKernel
from .configuration import EncodedToeplitzConfig

__all__ = ["DistilledTail", "attach_tail"]

_PROBES = (0, 3, 15, 63)
"""Lags, from 0 and from the first that modes give, whose taps tell one kernel from another."""

_MOVED = 2**-6
"""By how much, relative to their norm, these taps may move. Weights rounded to bfloat16 move them by up to 2^-7."""


class DistilledTail(nn.Module):
    """Modes that stand for the tail of a kernel in decoding.

    The numbers are kept as the bits of float64, int64 buffers: a pole that is rounded to the dtype of a model is
    another pole, and neither loading nor `to(torch.bfloat16)` touches integers. So are a few taps of the kernel that
    was fitted, in float32: modes do not fit a kernel that has changed since. Files written before lack these taps,
    which are then zeros and not compared. A model that is made of a distilled configuration alone has zeros
    everywhere, and decodes by the exact kernel.

    Args:
        channels: of the kernel.
        modes: number of modes.
        reach: number of exact taps before the tail.
    """

    def __init__(self, channels: int, modes: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.lags = [lag for lag in _PROBES if lag < reach] + [reach + lag for lag in _PROBES]
        self.poles: Tensor
        self.weights: Tensor
        self.kernel_taps: Tensor
        self.register_buffer("poles", torch.zeros(modes, 2, dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(channels, modes, 2, dtype=torch.int64))
        self.register_buffer("kernel_taps", torch.zeros(channels, len(self.lags), dtype=torch.int32))
        self._looked_at: tuple[Tensor, int, bool] | None = None  # weights, their version, whether modes were fitted

    def init_weights(self, config: Any) -> None:
        """Set the modes and the taps to zero, which says that none were fitted."""
        for bits in (self.poles, self.weights, self.kernel_taps):
            init.zeros_(bits)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}poles" in state_dict:  # of 0.2.0, without the taps
            state_dict.setdefault(f"{prefix}kernel_taps", torch.zeros_like(self.kernel_taps))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def check_context_length(self, length: int) -> None:
        """Refuse another context length.

        Raises:
            ValueError: always, since the modes are those of the kernel that would change.
        """
        raise ValueError(
            "the context length of a distilled model cannot change: call undo_distillation() first, and "
            "distill_decoder() afterwards."
        )

    @property
    def is_fitted(self) -> bool:
        """Whether modes were fitted. A configuration alone makes room for them, with zeros."""
        known = self._looked_at
        if not has_numbers(self.weights):
            return known is None or known[2]
        version = 0 if self.weights.is_inference() else self.weights._version
        if known is None or known[0] is not self.weights or known[1] != version:  # on a GPU, looking waits
            fitted = bool(self.weights.any()) or bool(self.kernel_taps.any())
            known = self._looked_at = (self.weights, version, fitted)
        return known[2]

    @property
    def taps(self) -> int:
        """Number of first taps that `kernel` wants."""
        return self.lags[-1] + 1

    def set(self, fit: ModalFit, taps: Tensor) -> None:
        """Take the modes of a fit to taps (channels, n); the kernel is zero beyond."""
        device = self.poles.device
        self.poles = torch.view_as_real(fit.poles).contiguous().view(torch.int64).to(device)
        self.weights = torch.view_as_real(fit.weights).contiguous().view(torch.int64).to(device)
        known = nn.functional.pad(taps, (0, self.taps))[:, self.lags]
        self.kernel_taps = known.float().contiguous().view(torch.int32).to(device)

    def kernel(self, taps: Tensor, dtype: torch.dtype, layer_idx: int) -> ModalKernel:
        """Return the kernel for inputs of a dtype.

        Args:
            taps: (channels, self.taps), exact, on the device of the inputs.
            dtype: of the inputs.
            layer_idx: by which the error names the layer.

        Raises:
            ValueError: for taps of another kernel than that of the modes; tracing and recording compare none.
        """
        poles, weights = (
            torch.view_as_complex(bits.to(taps.device).contiguous().view(torch.float64))
            for bits in (self.poles, self.weights)
        )
        kernel = ModalKernel(taps[:, : self.reach], poles, weights, dtype)
        if has_numbers(taps) and self._fits_another(taps):
            raise ValueError(
                f"the kernel of layer {layer_idx} changed after distill_decoder(), and modes do not follow: call "
                "undo_distillation() to decode by the exact kernel, and distill_decoder() to fit modes anew."
            )
        return kernel

    def _fits_another(self, taps: Tensor) -> bool:
        """Return whether the modes are those of another kernel than that of taps (channels, self.taps)."""
        known = self.kernel_taps.to(taps.device).contiguous().view(torch.float32)
        size = known.norm()
        return bool((size > 0) & ((taps[:, self.lags].float() - known).norm() > _MOVED * size))

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return f"modes={len(self.poles)}, reach={self.reach}"


def attach_tail(operator: nn.Module, config: EncodedToeplitzConfig, layer_idx: int) -> None:
    """Give the operator of a layer room for the modes that the configuration names, if any."""
    if config.decoder_modes is not None and config.decoder_taps is not None:
        operator.tail = DistilledTail(config.mixer_size, config.decoder_modes[layer_idx], config.decoder_taps)
