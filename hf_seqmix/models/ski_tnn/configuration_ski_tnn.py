"""Configuration of SKI-TNN."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers.utils import logging

from ..configuration import check_choice, check_per_axis, check_range
from ..toeplitz.channel_decays import check_channel_decays
from ..toeplitz.configuration import ToeplitzConfig

__all__ = ["DEGREES", "SKITNNConfig"]

DEGREES = {"linear": 1, "cubic": 3}
"""Degree of each kind of interpolation."""

logger = logging.get_logger(__name__)


@strict
class SKITNNConfig(ToeplitzConfig):
    """Configuration of a bidirectional Toeplitz neural network by sparse plus low-rank operators.

    Source: Moreno, Mei, Walters 2023 (arXiv 2305.09028). `SKITNNConfig(vocab_size=50265, hidden_size=768,
    num_hidden_layers=12, norm_position="post")` is the published masked language model with 126,513,753 parameters.

    Args:
        is_causal: must be False. The lower triangle of W A W^T costs less than a Fourier transform from 1,024 tokens
            on, but language models learn less with it than with the whole kernel of a TNN (`scripts/measured`).
        num_inducing_points: r, over `max_position_embeddings` tokens, and the knots on each side of the kernel.
            Shorter inputs meet fewer points at the same spacing; the paper lays r over the actual length. With
            `mixing_dimensions` 2 one number, or [along rows, along columns]. More points than half the positions save
            nothing, and are warned of.
        conv_kernel_size: taps of the short convolution, odd.
        interpolation: "linear" or "cubic", between the inducing points.
        decay: lambda of the inverse time warp, strictly between 0 and 1; by default exp(-5 / length), with the length
            `max_position_embeddings`, or, with `mixing_dimensions` 2, that of each axis. Pairs as above.
        channel_decays: in place of `decay`, n numbers strictly between 0 and 1 for n equal blocks of channels: channel
            c of the mixer's m has lambda_(floor(c n / m)), along each axis. None for one decay.
        scale_kernel: whether the smooth kernel is PL(x(t)) / sqrt(n) for n positions, or n along an axis, instead of
            PL(x(t)). A step of the optimizer then moves the sum over a sequence by sqrt(n) instead of n times as much
            (a departure; see `InverseTimeWarpKernel`). Files of versions up to 0.2 do not say so, and mean False.
    """

    model_type: ClassVar[str] = "ski_tnn"
    missing_fields: ClassVar[dict[str, Any]] = {"scale_kernel": False}

    is_causal: bool = False
    num_inducing_points: int | list[int] = 32
    conv_kernel_size: int = 17
    interpolation: str = "linear"
    decay: float | int | list[float | int] | None = None
    channel_decays: list[float | int] | None = None
    scale_kernel: bool = True

    @property
    def kernel_tp_plan(self) -> dict[str, str]:
        """Split the taps and the knots, which have a row for each channel."""
        return dict.fromkeys(("conv_weight", "kernel.past_knots", "kernel.future_knots"), "colwise")

    def check_architecture(self) -> None:
        """Check the shared fields, the direction, the points, the convolution and the decay."""
        if self.is_causal:
            raise ValueError(
                "is_causal is True, but a SKI-TNN is bidirectional: a causal one learns less than its "
                "alternatives. For a causal model use TNN (TNNConfig, model_type 'tnn'), or FD-TNN (FDTNNConfig)."
            )
        super().check_architecture()
        check_per_axis("num_inducing_points", self.num_inducing_points, self.mixing_dimensions, low=2)
        grid = self.mixing_grid
        lengths = [self.max_position_embeddings] if grid is None else list(grid[::-1])  # along rows, along columns
        points = self.num_inducing_points
        for length, count in zip(lengths, points if isinstance(points, list) else [points] * 2, strict=False):
            if count > length:
                where = "max_position_embeddings is" if grid is None else "an axis of the image has"
                raise ValueError(
                    f"num_inducing_points is {points}, but {where} {length}: there can be at most as many points as "
                    "positions."
                )
            if 2 * count > length:
                logger.warning_once(
                    f"num_inducing_points is {points}, more than half of {length} positions: the low-rank part has "
                    "nearly full rank and saves nothing. Take fewer, or another Toeplitz family."
                )
        check_range("conv_kernel_size", self.conv_kernel_size, low=1)
        if self.conv_kernel_size % 2 == 0:
            raise ValueError(f"conv_kernel_size is {self.conv_kernel_size}; it must be odd, so that it has a center.")
        check_choice("interpolation", self.interpolation, tuple(DEGREES))
        if self.decay is not None:
            check_per_axis("decay", self.decay, self.mixing_dimensions, above=0, below=1)
        check_channel_decays(self.channel_decays, self.mixer_size, self.decay, None, above=0, below=1)
