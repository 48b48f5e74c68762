"""Configuration of the mixer that is a short convolution alone."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from ..configuration import TAPS_INITS, SeqMixConfig, check_choice, check_range

__all__ = ["ShortConvConfig"]


@strict
class ShortConvConfig(SeqMixConfig):
    """Fields of the mixer "short_conv" of hybrids: the gated unit of the Toeplitz families without a long kernel.

    `SeqMixHybridConfig(mixer_types=["short_conv"] * 6, mixer_configs={"short_conv": {"taps": 5}})`

    Args:
        expand_ratio: width of the mixer in units of `hidden_size`.
        taps: of the convolution; odd for a bidirectional model.
        taps_init: "identity" or "uniform", as `short_conv_init`; PyTorch's own by default.
    """

    model_type: ClassVar[str] = "short_conv"
    cache_layer_type: ClassVar[str] = "seqmix_inputs"

    expand_ratio: float | int = 3.0
    taps: int = 5
    taps_init: str = "uniform"

    @property
    def mixer_size(self) -> int:
        """Channels of the mixer, expand_ratio x hidden_size rounded down."""
        return int(self.expand_ratio * self.hidden_size)

    @property
    def mixer_tp_plan(self) -> dict[str, str]:
        """Split the channels, which are convolved each alone: a device has some channels and their taps."""
        taps = "operator.convolution.weight"
        return {"u_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise", taps: "colwise"}

    def check_architecture(self) -> None:
        """Check the shared fields and those of the convolution."""
        super().check_architecture()
        check_range("expand_ratio", self.expand_ratio, above=0)
        check_range("expand_ratio x hidden_size", self.mixer_size, low=1)
        check_range("taps", self.taps, low=1)
        check_choice("taps_init", self.taps_init, TAPS_INITS)
        if self.taps % 2 == 0 and not self.is_causal:
            raise ValueError(
                f"taps is {self.taps}, but is_causal is False: a convolution that is centered on its token needs an "
                "odd number of taps."
            )
