"""A block: a mixer and a feed-forward, each a residual branch with a norm."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .._compat import PicklableCapture
from ..modules.glu import GatedLinearUnit
from ..modules.norms import build_norm
from ..ops.layout import TokenLayout
from .configuration import SeqMixConfig
from .mixers import FEED_FORWARDS, NumberedModule, WeighingMixer, build_mixer, layout_of_call
from .short_convolution import build_short_convolution, convolve_call

__all__ = ["SeqMixBlock", "build_feed_forward", "check_places"]


class SeqMixBlock(PicklableCapture, NumberedModule, GradientCheckpointingLayer):
    """A mixer and a feed-forward, each a residual branch with a norm.

    "pre": x <- x + drop(f(N(x))); "post": x <- N(x + drop(f(x))). Without `use_residual`, x <- drop(f(N(x))) and
    x <- N(drop(f(x))). A family may have no feed-forward.

    With `short_conv_taps`, the mixer reads C(N(x)), or C(x) with "post", C a `ShortConvolution`.
    """

    def __init__(self, config: SeqMixConfig, layer_idx: int) -> None:
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.use_residual = config.use_residual
        self.short_conv = build_short_convolution(config, layer_idx)
        self.mixer = build_mixer(config, layer_idx)
        self.layer_idx = layer_idx
        self.mlp = build_feed_forward(config)
        self.mixer_norm = build_norm(config.norm_type, config.hidden_size, config.norm_eps)
        self.mlp_norm = None
        if self.mlp is not None:
            self.mlp_norm = build_norm(config.norm_type, config.hidden_size, config.norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)
        if config.zero_init_outputs:
            self._end_in_zeros()

    def _end_in_zeros(self) -> None:
        """Mark the layers that end the branches: `_init_weights` of the model then draws zeros."""
        for branch, name in ((self.mixer, "o_proj"), (self.mlp, "down_proj")):
            if branch is None:
                continue
            end = getattr(branch, name, None)
            if not isinstance(end, nn.Linear):
                raise ValueError(
                    f"zero_init_outputs is True, but {type(branch).__name__} ends in no linear layer {name}, which "
                    "would begin as zeros: leave zero_init_outputs out, or give the last layer that name."
                )
            vars(end)["begins_as_zeros"] = True

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: TokenLayout | Tensor | None = None,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        real_mask: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Map (batch, length, hidden_size) to the same shape.

        Args:
            hidden_states: (batch, length, hidden_size).
            attention_mask: where the real tokens lie, as the mixer of this layer takes it.
            past_key_values: cache, or None.
            position_ids: (batch or 1, length), or None.
            real_mask: (batch, length), True at real tokens, for norms with batch statistics and, where masks are 4D,
                the short convolution.
            output_attentions: whether a mixer that weighs tokens is to return the weights, which a hook records.
            **kwargs: passed to the mixer.
        """
        branch = self.mixer_norm(hidden_states, real_mask) if self.pre_norm else hidden_states
        if self.short_conv is not None:
            branch = self._convolve(branch, attention_mask, past_key_values, position_ids, real_mask, **kwargs)
        wanted = {"output_attentions": True} if output_attentions and isinstance(self.mixer, WeighingMixer) else {}
        branch = self.mixer(
            branch,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
            **wanted,
            **kwargs,
        )
        if wanted:
            branch, _ = branch
        hidden_states = self._join(hidden_states, branch)
        if not self.pre_norm:
            hidden_states = self.mixer_norm(hidden_states, real_mask)
        if self.mlp is None or self.mlp_norm is None:
            return hidden_states
        branch = self.mlp_norm(hidden_states, real_mask) if self.pre_norm else hidden_states
        hidden_states = self._join(hidden_states, self.mlp(branch))
        return hidden_states if self.pre_norm else self.mlp_norm(hidden_states, real_mask)

    def _convolve(
        self,
        branch: Tensor,
        attention_mask: TokenLayout | Tensor | None,
        past_key_values: Any,
        position_ids: Tensor | None,
        real_mask: Tensor | None,
        layer_idx: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Convolve what the mixer reads, (batch, length, hidden_size)."""
        assert self.short_conv is not None
        layer_idx = self.layer_idx if layer_idx is None else layer_idx
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
            layout = TokenLayout(mask=real_mask)
        else:
            layout = layout_of_call(
                attention_mask,
                branch,
                past_key_values,
                layer_idx,
                "grid_size" in kwargs and hasattr(self.short_conv, "grid_size"),
                position_ids=position_ids,
                **kwargs,
            )
        return convolve_call(self.short_conv, "block", branch, layout, layout.mask, past_key_values, layer_idx)

    def _join(self, hidden_states: Tensor, branch: Tensor) -> Tensor:
        if self.dropout.training:  # a call that changes nothing costs as much as a small sum
            branch = self.dropout(branch)
        return hidden_states + branch if self.use_residual else branch


def build_feed_forward(config: SeqMixConfig) -> nn.Module | None:
    """Build the feed-forward of a block: the family's own, or a gated linear unit; None for none."""
    if config.family_type in FEED_FORWARDS:
        return FEED_FORWARDS[config.family_type](config)
    assert config.intermediate_size is not None
    return GatedLinearUnit(config.hidden_size, config.intermediate_size, config.hidden_act)


def check_places(layers: Sequence[tuple[Any, dict[str, int]]], layer_types: Sequence[str]) -> None:
    """Refuse layers that were put elsewhere in a model without telling them: they would use the caches of others.

    Args:
        layers: the blocks of a model, in order, each with what it is told.
        layer_types: what each layer of a cache keeps.

    Raises:
        ValueError: a layer, its mixer or its operator has the number of another place, or there are more layers than
            a cache has.
    """
    if len(layers) > len(layer_types):
        raise ValueError(
            f"the model has {len(layers)} layers, but config.mixer_types names {len(layer_types)}, as many as a cache "
            "has: name the mixer of each layer."
        )
    for place, (layer, told) in enumerate(layers):
        if told:
            continue  # one block in turn, which is told its place
        mixer = getattr(layer, "mixer", None)
        for part in (layer, mixer, getattr(mixer, "operator", None)):
            if (number := getattr(part, "layer_idx", place)) != place:
                raise ValueError(
                    f"layers[{place}] has layer_idx {number}, and would use the cache of that layer: set "
                    f"layers[{place}].layer_idx = {place}, or pass use_cache=False."
                )
