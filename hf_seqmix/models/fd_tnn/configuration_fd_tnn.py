"""Configuration of FD-TNN."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from ..configuration import EncodedToeplitzConfig, check_choice

__all__ = ["FDTNNConfig"]


@strict
class FDTNNConfig(EncodedToeplitzConfig):
    """Configuration of a Toeplitz neural network in the frequency domain (Moreno, Mei, Walters 2023, arXiv 2305.09028).

    `FDTNNConfig(vocab_size=50264)` is the published causal language model with 48,579,264 parameters. The response is
    sampled on a grid for `max_position_embeddings` tokens; `model.set_context_length` samples it on another.

    Args:
        frequency_input: what the encoder sees of a frequency: "omega" (the paper), or "cosine", with which kernels of smooth
            activations decay as the paper's theorems say.
    """

    model_type: ClassVar[str] = "fd_tnn"

    frequency_input: str = "omega"

    def check_architecture(self) -> None:
        """Check the shared fields and the input."""
        super().check_architecture()
        check_choice("frequency_input", self.frequency_input, ("omega", "cosine"))
