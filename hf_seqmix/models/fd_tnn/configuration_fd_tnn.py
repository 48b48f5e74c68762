"""Configuration of FD-TNN."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from ..configuration import check_choice
from ..toeplitz.configuration import EncodedToeplitzConfig

__all__ = ["FREQUENCY_INPUTS", "FDTNNConfig"]

FREQUENCY_INPUTS = ("omega", "cosine")


@strict
class FDTNNConfig(EncodedToeplitzConfig):
    """Configuration of a Toeplitz neural network in the frequency domain.

    Source: Moreno, Mei, Walters 2023 (arXiv 2305.09028).
    `FDTNNConfig(vocab_size=50264, frequency_input="omega", rpe_activation="relu")` is the published causal language
    model with 48,579,264 parameters. The response is sampled on a grid for `max_position_embeddings` tokens;
    `model.set_context_length` samples it on another.

    The defaults depart from the paper: with them small language models reached the lowest validation loss of six
    combinations (`scripts/measured/quality`). Kernels then fall faster than any power of the lag, as the paper's
    theorem 3 says; `FrequencyKernel` says what holds with other options. Such kernels cannot pick out one distant lag:
    for copying over a fixed distance use "omega", or TNN.

    Args:
        frequency_input: what the encoder sees of a frequency: "cosine", or "omega" (the paper), see `FrequencyKernel`.
        rpe_activation: activation of the encoder; "relu" in the paper's experiments.
    """

    model_type: ClassVar[str] = "fd_tnn"

    frequency_input: str = "cosine"
    rpe_activation: str = "silu"

    @property
    def kernel_tp_plan(self) -> dict[str, str]:
        """Split the last layer of the encoder; a complex response, two outputs for each channel, is split later."""
        return {"kernel.encoder.out_proj": "colwise" if self.is_causal else "colwise_gather_output"}

    def check_architecture(self) -> None:
        """Check the shared fields and the input."""
        super().check_architecture()
        check_choice("frequency_input", self.frequency_input, FREQUENCY_INPUTS)
