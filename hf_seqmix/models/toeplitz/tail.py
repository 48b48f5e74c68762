"""The modes of a distilled kernel, as a part of a model that is saved with the model."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...ops.toeplitz.distillation import ModalFit
from ...ops.toeplitz.modal import ModalKernel
from .configuration import EncodedToeplitzConfig

__all__ = ["DistilledTail", "attach_tail"]


class DistilledTail(nn.Module):
    """Modes that stand for the tail of a kernel in decoding.

    The numbers are kept as the bits of float64, int64 buffers: a pole that is rounded to the dtype of a model is
    another pole, and neither loading nor `to(torch.bfloat16)` touches integers.

    Args:
        channels: of the kernel.
        modes: number of modes.
        reach: number of exact taps before the tail.
    """

    def __init__(self, channels: int, modes: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.poles: Tensor
        self.weights: Tensor
        self.register_buffer("poles", torch.zeros(modes, 2, dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(channels, modes, 2, dtype=torch.int64))

    def init_weights(self, config: Any) -> None:
        """Set the modes to zero, which is no tail: what a checkpoint lacks."""
        init.zeros_(self.poles)
        init.zeros_(self.weights)

    def check_context_length(self, length: int) -> None:
        """Refuse another context length.

        Raises:
            ValueError: always, since the modes are those of the kernel that would change.
        """
        raise ValueError(
            "the context length of a distilled model cannot change: call undo_distillation() first, and "
            "distill_decoder() afterwards."
        )

    def set(self, fit: ModalFit) -> None:
        """Take the modes of a fit."""
        device = self.poles.device
        self.poles = torch.view_as_real(fit.poles).contiguous().view(torch.int64).to(device)
        self.weights = torch.view_as_real(fit.weights).contiguous().view(torch.int64).to(device)

    def kernel(self, exact: Tensor, dtype: torch.dtype) -> ModalKernel:
        """Return the kernel for inputs of a dtype, given its exact taps (channels, reach) on their device."""
        poles, weights = (
            torch.view_as_complex(bits.to(exact.device).contiguous().view(torch.float64))
            for bits in (self.poles, self.weights)
        )
        return ModalKernel(exact, poles, weights, dtype)

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return f"modes={len(self.poles)}, reach={self.reach}"


def attach_tail(operator: nn.Module, config: EncodedToeplitzConfig, layer_idx: int) -> None:
    """Give the operator of a layer room for the modes that the configuration names, if any."""
    if config.decoder_modes is not None and config.decoder_taps is not None:
        operator.tail = DistilledTail(config.mixer_size, config.decoder_modes[layer_idx], config.decoder_taps)
