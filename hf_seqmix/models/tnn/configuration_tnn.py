"""Configuration of the Toeplitz neural network."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from ..configuration import check_per_axis
from ..toeplitz.channel_decays import check_channel_decays
from ..toeplitz.configuration import EncodedToeplitzConfig

__all__ = ["TNNConfig"]


@strict
class TNNConfig(EncodedToeplitzConfig):
    """Configuration of a Toeplitz neural network (Qin et al. 2023, arXiv 2305.04749).

    `TNNConfig(vocab_size=50264, rpe_num_layers=6)` is the published causal language model with 48,666,624 parameters.

    Args:
        decay: lambda in (0, 1], the kernel at lag t is multiplied by lambda^|t|; 1 for none. With `mixing_dimensions`
            2 one number, or [along rows, along columns].
        channel_decays: in place of `decay`, n numbers in (0, 1] for n equal blocks of channels: channel c of the
            mixer's m has lambda_(floor(c n / m)), along each axis. [0.9, 0.999]: half of the kernels are short, half
            are long; `decay` is then None or its default. None for one decay.
    """

    model_type: ClassVar[str] = "tnn"

    decay: float | int | list[float | int] | None = 0.99
    channel_decays: list[float | int] | None = None

    def check_architecture(self) -> None:
        """Check the shared fields and the decays."""
        super().check_architecture()
        check_per_axis("decay", self.decay, self.mixing_dimensions, above=0, high=1)
        if self.decay is None and self.channel_decays is None:
            raise ValueError("decay is None, and so is channel_decays: give a number in (0, 1], or channel_decays.")
        check_channel_decays(self.channel_decays, self.mixer_size, self.decay, type(self).decay, above=0, high=1)
