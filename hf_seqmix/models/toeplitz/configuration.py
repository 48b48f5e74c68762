"""The configuration fields that the Toeplitz families share."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from ..configuration import SeqMixConfig, check_activation, check_choice, check_range

__all__ = ["RPE_NORM_TYPES", "EncodedToeplitzConfig", "ToeplitzConfig"]

RPE_NORM_TYPES = ("simple_rms", "layer", "none")
"""Norms of the relative-position encoder, see `RelativePositionEncoder`."""


@strict
class ToeplitzConfig(SeqMixConfig):
    """Fields that the Toeplitz families share.

    Args:
        expand_ratio: width of the mixer in units of `hidden_size`.
        mixing_dimensions: 1 mixes an image as one flattened sequence, 2 mixes its rows and then its columns. 2 is for
            models of images (`image_size`), but not within hybrids.
    """

    cache_layer_type: ClassVar[str] = "seqmix_convolution"

    expand_ratio: float | int = 3.0
    mixing_dimensions: int = 1

    @property
    def mixer_size(self) -> int:
        """Channels of the mixer, expand_ratio x hidden_size rounded down."""
        return int(self.expand_ratio * self.hidden_size)

    @property
    def head_dim(self) -> int:
        """Channels of the history that generation keeps."""
        return self.mixer_size

    @property
    def mixer_arguments(self) -> dict[str, Any]:
        """Arguments that the mixers of all Toeplitz families take by name."""
        return {"activation": self.hidden_act, "grid_size": self.mixing_grid}

    @property
    def mixer_tp_plan(self) -> dict[str, str]:
        """Split the channels, which are mixed each alone: a device has some channels and their kernels."""
        axes = ("operator",) if self.mixing_grid is None else ("operator.row_operator", "operator.column_operator")
        kernels = {f"{axis}.{name}": style for axis in axes for name, style in self.kernel_tp_plan.items()}
        return {"u_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise", **kernels}

    @property
    def kernel_tp_plan(self) -> dict[str, str]:
        """Split an operator, by names in it, so that a device has the kernels of its channels."""
        return {}

    @property
    def mixing_grid(self) -> tuple[int, int] | None:
        """(height, width) of the grid that a mixer of two dimensions mixes; None where it mixes sequences."""
        image = self.image_shape
        return None if image is None or self.mixing_dimensions == 1 else image.grid_size

    def check_architecture(self) -> None:
        """Check the shared fields and those of the Toeplitz families."""
        super().check_architecture()
        check_range("expand_ratio", self.expand_ratio, above=0)
        check_range("expand_ratio x hidden_size", self.mixer_size, low=1)
        check_choice("mixing_dimensions", self.mixing_dimensions, (1, 2))
        if self.mixing_dimensions == 2 and (self.is_causal or self.image_size is None):
            wrong = "is_causal is True" if self.is_causal else "image_size is None"
            raise ValueError(
                f"mixing_dimensions is 2, but {wrong}: mixing rows and columns needs an image_size and "
                "is_causal=False; hybrids mix an image as a sequence."
            )


@strict
class EncodedToeplitzConfig(ToeplitzConfig):
    """Fields of the Toeplitz families whose kernel comes from a relative-position encoder.

    Args:
        rpe_hidden_size: width of the encoder.
        rpe_num_layers: number of its hidden layers, 0 allowed.
        rpe_activation: its activation.
        rpe_norm_type: its norm, "simple_rms", "layer" or "none" (see `RelativePositionEncoder`).
        kernel_max_lag: taps at greater lags are zero; None for no limit.
        decoder_modes: for each layer of the model, how many modes stand for the tail of its kernel in decoding, 0 for
            layers of other mixers; `distill_decoder` sets it. None for a model that is not distilled.
        decoder_taps: number of taps before that tail; given with `decoder_modes`.
    """

    rpe_hidden_size: int = 64
    rpe_num_layers: int = 3
    rpe_activation: str = "relu"
    rpe_norm_type: str = "simple_rms"
    kernel_max_lag: int | None = None
    decoder_modes: list[int] | None = None
    decoder_taps: int | None = None

    @classmethod
    def cache_layer_type_of(cls, fields: dict[str, Any]) -> str:
        """Return what a layer keeps: a window and modes where the model is distilled."""
        return "seqmix_modes" if fields.get("decoder_modes") else cls.cache_layer_type

    @property
    def layer_types(self) -> list[str]:
        """What the cache keeps for each layer."""
        return [self.cache_layer_type_of(vars(self))] * self.num_hidden_layers

    @property
    def mixer_arguments(self) -> dict[str, Any]:
        """Arguments that the mixers with an encoder take by name."""
        return {
            **super().mixer_arguments,
            "is_causal": self.is_causal,
            "rpe_hidden_size": self.rpe_hidden_size,
            "rpe_num_layers": self.rpe_num_layers,
            "rpe_activation": self.rpe_activation,
            "rpe_norm_type": self.rpe_norm_type,
            "norm_eps": self.norm_eps,
            "kernel_max_lag": self.kernel_max_lag,
        }

    @property
    def kernel_tp_plan(self) -> dict[str, str]:
        """Split the last layer of the encoder, which has an output for each channel."""
        return {"kernel.encoder.out_proj": "colwise"}

    def check_architecture(self) -> None:
        """Check the shared fields and those of the encoder."""
        super().check_architecture()
        check_range("rpe_hidden_size", self.rpe_hidden_size, low=1)
        check_range("rpe_num_layers", self.rpe_num_layers, low=0)
        check_activation("rpe_activation", self.rpe_activation)
        check_choice("rpe_norm_type", self.rpe_norm_type, RPE_NORM_TYPES)
        check_range("kernel_max_lag", self.kernel_max_lag, low=0)
        check_range("decoder_taps", self.decoder_taps, low=1)
        if self.decoder_modes is not None:
            for modes in self.decoder_modes:
                check_range("decoder_modes", modes, low=0, high=64)
            if len(self.decoder_modes) != self.num_hidden_layers or not self.is_causal or self.decoder_taps is None:
                raise ValueError(
                    f"decoder_modes has {len(self.decoder_modes)} entries, but is_causal is {self.is_causal}, "
                    f"num_hidden_layers {self.num_hidden_layers} and decoder_taps {self.decoder_taps}: give a causal "
                    "model one entry a layer and decoder_taps, or None."
                )
