"""Configuration of iterated piecewise affine (IPA) models."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from ..configuration import SeqMixConfig, check_choice, check_range
from .options import COUPLINGS, KERNEL_NORMS, KERNEL_TYPES

__all__ = ["IPAConfig"]


@strict
class IPAConfig(SeqMixConfig):
    """Configuration of an iterated piecewise affine model (Shamsi, Hua, Williams 2023, arXiv 2306.12317).

    The paper leaves open sizes, kernels, what Jacobians share, norms and residuals; the defaults have the parameters
    of attention with a feed-forward four times as wide. With `use_residual=False, norm_type="none", output_norm=False`
    only the paper's two operations are left, but for their departures: the mean over tokens and shared maps (see
    `IPAMixer`).

    Args:
        num_centers: P, centers of the column operation.
        rank: of its affine maps; `hidden_size` / `num_centers` by default, which must then divide.
        kernel_rank: width of the kernels' projections; `rank` by default.
        coupling: what the maps of different pairs of positions share: "shared" (all), or "toeplitz" (all but a learned
            factor of the offset). The paper's expansion has a map for each pair, too many numbers for any use.
        kernel_type: "bilinear", the one type there is; the paper publishes none.
        kernel_norm: what kernels are normalized over: "p" (centers, the paper's), "j" (tokens: multi-head attention),
            "prod", "mix" (both), or "none".
        num_row_centers: centers of the row operation; `num_centers` by default; must divide `intermediate_size`.
        max_relative_distance: offsets that the kernels' bias tells apart; `max_position_embeddings` by default.
        output_norm: whether the result of the centers is normalized before the output projection.
        token_shift: taps of a convolution of the keys' inputs over the last tokens, 0 for none; an extension.
        copy_head_rank: `rank` by default.
        tie_iterations: whether all layers are the same block.
        intermediate_size: units of the row operation, 4 `hidden_size` by default.
    """

    model_type: ClassVar[str] = "ipa"
    # For hybrids: this layer suits all options. `layer_types` names those of a model of IPA alone.
    cache_layer_type: ClassVar[str] = "seqmix_key_inputs"
    intermediate_ratio: ClassVar[int] = 4
    whole_model_fields: ClassVar[tuple[str, ...]] = ("num_row_centers", "tie_iterations")

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
    tie_iterations: bool = False

    def derive_fields(self) -> None:
        """Set ranks, centers and offsets, beside what every model derives."""
        if self.rank is None:
            check_range("num_centers", self.num_centers, low=1)
            if self.hidden_size % self.num_centers:
                raise ValueError(
                    f"num_centers is {self.num_centers}, which does not divide hidden_size {self.hidden_size}: choose "
                    "one that does, or set rank."
                )
            self.rank = self.hidden_size // self.num_centers
        if self.kernel_rank is None:
            self.kernel_rank = self.rank
        if self.copy_head and self.copy_head_rank is None:
            self.copy_head_rank = self.rank
        if self.num_row_centers is None:
            self.num_row_centers = self.num_centers
        if self.max_relative_distance is None:
            self.max_relative_distance = self.max_position_embeddings
        super().derive_fields()

    @property
    def num_blocks(self) -> int:
        """Blocks with parameters of their own: one where iterations are tied."""
        return 1 if self.tie_iterations else self.num_hidden_layers

    @property
    def num_attention_heads(self) -> int:
        """Centers, the heads of keys and values that a cache keeps."""
        return self.num_centers

    @property
    def head_dim(self) -> int:
        """Channels of a center's value."""
        assert self.rank is not None
        return self.rank

    @property
    def layer_types(self) -> list[str]:
        """Name what the cache keeps: keys and values, or, for other widths or with their inputs, our own layer."""
        plain = self.token_shift == 0 and self.kernel_rank == self.rank
        return self.own_layer_types(["full_attention" if plain else self.cache_layer_type] * self.num_hidden_layers)

    @property
    def mixer_tp_plan(self) -> dict[str, str]:
        """Split only the projections: kernels are normalized over all centers, so that each device needs all."""
        projections = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "colwise_gather_output")
        return {**projections, "o_proj": "rowwise_split_input"}

    @property
    def feed_forward_tp_plan(self) -> dict[str, str]:
        """Split the units; each device takes the gates of its units."""
        return {"up_proj": "colwise", "down_proj": "rowwise"}

    def check_architecture(self) -> None:
        """Check the shared fields and those of IPA."""
        super().check_architecture()
        for field in ("num_centers", "rank", "kernel_rank", "num_row_centers", "max_relative_distance"):
            check_range(field, getattr(self, field), low=1)
        check_range("token_shift", self.token_shift, low=0)
        check_choice("coupling", self.coupling, COUPLINGS)
        check_choice("kernel_type", self.kernel_type, KERNEL_TYPES)
        check_choice("kernel_norm", self.kernel_norm, KERNEL_NORMS)
        assert self.num_row_centers is not None and self.intermediate_size is not None
        if self.intermediate_size % self.num_row_centers:
            raise ValueError(
                f"num_row_centers is {self.num_row_centers}, which does not divide intermediate_size "
                f"{self.intermediate_size}: choose one that does."
            )
