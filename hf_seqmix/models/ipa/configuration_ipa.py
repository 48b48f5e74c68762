"""Configuration of iterated piecewise affine (IPA) models."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from ..checks import check_choice, check_range
from ..configuration import SeqMixConfig

__all__ = ["IPAConfig"]

_COUPLINGS = ("shared", "toeplitz", "absolute_scalar", "separable", "full")
_KERNEL_TYPES = ("bilinear", "rbf", "static", "separable")
_KERNEL_NORMS = ("p", "j", "prod", "mix", "none")
_MAX_PAIR_POSITIONS = 32


@strict
class IPAConfig(SeqMixConfig):
    """Configuration of an iterated piecewise affine model (Shamsi, Hua, Williams 2023, arXiv 2306.12317).

    The paper leaves open sizes, kernels, what Jacobians share, norms and residuals; the defaults have the parameters of
    attention with a feed-forward four times as wide. The literal form is `use_residual=False, norm_type="none",
    output_norm=False`.

    Args:
        num_centers: P, centres of the column operation.
        rank: of its affine maps; `hidden_size` / `num_centers` by default, which must then divide.
        kernel_rank: width of the kernels' projections; `rank` by default.
        coupling: what the maps of different pairs of positions share: "shared" (all), "toeplitz" (all but a factor of the
            offset), "absolute_scalar" (all but a factor of the pair), "separable" (one map each for the two positions),
            "full" (nothing; for tests, up to 32 positions). The last three are limited to `max_position_embeddings` tokens.
        kernel_type: "bilinear", "rbf", "static" (of positions alone), or "separable" (linear time; an extension).
        kernel_norm: "p" (over centres, the paper's), "j" (over tokens: multi-head attention), "prod", "mix" (both), or
            "none".
        num_row_centers: centres of the row operation; `num_centers` by default. They must divide `intermediate_size`.
        max_relative_distance: offsets that the kernels' bias tells apart; `max_position_embeddings` by default.
        output_norm: whether the result of the centres is normalised before the output projection.
        token_shift: taps of a convolution of the keys' inputs over the last tokens, 0 for none; an extension.
        copy_head: whether the causal language model may copy the token that followed an earlier one; an extension.
        tie_iterations: whether all layers are the same block.
        intermediate_size: units of the row operation, 4 `hidden_size` by default.
    """

    model_type: ClassVar[str] = "ipa"
    # Of hybrids: it suits all options. A model of IPA alone says below which it needs.
    cache_layer_type: ClassVar[str] = "seqmix_key_inputs"
    intermediate_ratio: ClassVar[int] = 4
    whole_model_fields: ClassVar[tuple[str, ...]] = ("copy_head", "num_row_centers", "tie_iterations")

    norm_type: str = "layer"
    num_centers: int = 8
    rank: int | None = None
    kernel_rank: int | None = None
    coupling: str = "shared"
    kernel_type: str = "bilinear"
    kernel_norm: str = "p"
    num_row_centers: int | None = None
    max_relative_distance: int | None = None
    output_norm: bool = True
    token_shift: int = 0
    copy_head: bool = False
    tie_iterations: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if self.rank is None:
            check_range("num_centers", self.num_centers, low=1)
            if self.hidden_size % self.num_centers:
                raise ValueError(
                    f"num_centers is {self.num_centers}, which does not divide hidden_size {self.hidden_size}: choose one that "
                    "does, or set rank."
                )
            self.rank = self.hidden_size // self.num_centers
        if self.kernel_rank is None:
            self.kernel_rank = self.rank
        if self.num_row_centers is None:
            self.num_row_centers = self.num_centers
        if self.coupling == "full":
            self.use_cache = False
        super().__post_init__(**kwargs)
        if self.max_relative_distance is None:  # not before: images set the number of positions
            self.max_relative_distance = self.max_position_embeddings

    @property
    def num_blocks(self) -> int:
        """Blocks with parameters of their own: one where iterations are tied."""
        return 1 if self.tie_iterations else self.num_hidden_layers

    @property
    def num_attention_heads(self) -> int:
        """Centres, the heads of keys and values that a cache keeps."""
        return self.num_centers

    @property
    def head_dim(self) -> int:
        """Channels of a centre's value."""
        assert self.rank is not None
        return self.rank

    @property
    def key_width(self) -> int | None:
        """Channels of a centre's key in the cache."""
        return {"bilinear": self.kernel_rank, "rbf": 2}.get(self.kernel_type, 1)

    @property
    def layer_types(self) -> list[str]:
        """What the cache keeps: ordinary keys and values, or, of other widths or with their inputs, our own layer."""
        plain = self.token_shift == 0 and self.key_width == self.rank
        layers = ["full_attention" if plain else self.cache_layer_type] * self.num_hidden_layers
        # Pairs of tokens are kept beside those of the first mixer: a cache has no more layers than the model.
        return ["seqmix_pairs", *layers[1:]] if self.copy_head else layers

    @property
    def mixer_tp_plan(self) -> dict[str, str] | None:
        """Kernels are normalised over all centres, so that each device has them all: only the projections are split."""
        if self.coupling in ("separable", "full"):
            return None  # maps of their own for each position
        names = ["v_proj"] if self.kernel_type == "static" else ["q_proj", "k_proj", "v_proj"]
        return {**dict.fromkeys(names, "colwise_gather_output"), "o_proj": "rowwise_split_input"}

    @property
    def feed_forward_tp_plan(self) -> dict[str, str]:
        """Units are split, and each device takes the gates of its own."""
        return {"up_proj": "colwise", "down_proj": "rowwise"}

    def check_architecture(self) -> None:
        """Check the shared fields and those of IPA."""
        super().check_architecture()
        for field in ("num_centers", "rank", "kernel_rank", "num_row_centers", "max_relative_distance"):
            check_range(field, getattr(self, field), low=1)
        check_range("token_shift", self.token_shift, low=0)
        check_choice("coupling", self.coupling, _COUPLINGS)
        check_choice("kernel_type", self.kernel_type, _KERNEL_TYPES)
        check_choice("kernel_norm", self.kernel_norm, _KERNEL_NORMS)
        assert self.num_row_centers is not None and self.intermediate_size is not None
        if self.intermediate_size % self.num_row_centers:
            raise ValueError(
                f"num_row_centers is {self.num_row_centers}, which does not divide intermediate_size {self.intermediate_size}: "
                "choose one that does."
            )
        if self.kernel_type == "separable" and self.kernel_norm != "p":
            raise ValueError(
                f"kernel_norm is {self.kernel_norm!r}, but kernel_type 'separable' is normalised over centres: it must be 'p'."
            )
        if self.copy_head and not self.is_causal:
            raise ValueError("copy_head is True, but is_causal is False: only a causal language model can copy.")
        if self.coupling == "full" and (self.output_norm or self.max_position_embeddings > _MAX_PAIR_POSITIONS):
            wrong = (
                "output_norm is True"
                if self.output_norm
                else f"max_position_embeddings is {self.max_position_embeddings}"
            )
            raise ValueError(
                f"coupling is 'full', an oracle for tests, but {wrong}: it needs output_norm=False and at most "
                f"{_MAX_PAIR_POSITIONS} positions."
            )
