"""Configuration of the Toeplitz neural network."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from ..checks import check_per_axis
from ..toeplitz.configuration import EncodedToeplitzConfig

__all__ = ["TNNConfig"]


@strict
class TNNConfig(EncodedToeplitzConfig):
    """Configuration of a Toeplitz neural network (Qin et al. 2023, arXiv 2305.04749).

    `TNNConfig(vocab_size=50264, rpe_num_layers=6)` is the published causal language model with 48,666,624 parameters.

    Args:
        decay: lambda in (0, 1], the kernel at lag t is multiplied by lambda^|t|; 1 for none. With `mixing_dimensions`
            2 one number, or [along rows, along columns].
    """

    model_type: ClassVar[str] = "tnn"

    decay: float | int | list[float | int] = 0.99

    def check_architecture(self) -> None:
        """Check the shared fields and the decay."""
        super().check_architecture()
        check_per_axis("decay", self.decay, self.mixing_dimensions, above=0, high=1)
