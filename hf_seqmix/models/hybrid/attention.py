"""Softmax attention: the control that the other mixers are compared with, and a layer of hybrids."""

from typing import Any

import torch
from torch import Tensor, nn

from ...cache import append_keys, past_length
from ...modules.sharding import split_heads
from ...ops.attention_bias import attention_bias
from ...ops.layout import TokenLayout
from ...ops.masking import real_positions
from ..mixers import QueryKey, WeighingMixer, layout_of_call
from .heads import check_heads

__all__ = ["SoftmaxAttention", "attention_weights", "rotate"]


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate pairs of channels by angles that grow with the position (RoPE, Su et al. 2021, arXiv 2104.09864).

    Channels c and c + head_dim / 2 form a pair, turned by position x theta^(-2 c / head_dim); computed in float32.

    Args:
        x: (batch, heads, length, head_dim), head_dim even.
        positions: (batch or 1, length).
        theta: base of the wavelengths.
    """
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    angles = (positions.to(dtype).unsqueeze(-1) * frequencies).unsqueeze(1)  # (batch or 1, 1, length, half)
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half].to(dtype), x[..., half:].to(dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def attention_weights(logits: Tensor, visible: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Compute the softmax over the keys that a query sees; hidden keys have weight 0.

    Args:
        logits: (batch, heads, queries, keys).
        visible: (batch or 1, 1, queries, keys) bool, True where a query sees a key, or floats that are negative where
            it does not; None for all keys. A query that sees no key, as of a pad, has weights 0.
        is_causal: without `visible`, hides key j from query i where j > i.

    Returns:
        (batch, heads, queries, keys).
    """
    if visible is None and is_causal:
        visible = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if visible is None:
        return logits.softmax(dim=-1)
    hidden = ~visible if visible.dtype == torch.bool else visible < 0
    # Not minus infinity, whose softmax over hidden keys alone is not a number.
    return logits.masked_fill(hidden, torch.finfo(logits.dtype).min).softmax(dim=-1).masked_fill(hidden, 0)


class SoftmaxAttention(WeighingMixer):
    """Multi-head attention, softmax(q k^T / sqrt(head_dim)) v, with rotary positions.

    Args:
        hidden_size: channels in and out.
        num_heads: number of heads.
        is_causal: whether a token sees the past and itself only.
        rope_theta: base of the rotary wavelengths; None for no rotary positions.
        layer_idx: which layer of a cache is this mixer's. Mixers that share a cache need a number each: where two have
            the same, outputs are wrong in silence.
        head_dim: channels of a head, even where positions are rotary; hidden_size / num_heads by default, which must
            then divide.

    Raises:
        TypeError: for numbers that are no integers.
        ValueError: for numbers of heads or channels below 1, if the heads do not divide the channels, or rotary
            positions have an odd number of channels.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int = 8,
        is_causal: bool = True,
        rope_theta: float | None = 10000.0,
        layer_idx: int = 0,
        head_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = check_heads(hidden_size, num_heads, head_dim, rope_theta is not None)
        self.is_causal = is_causal
        self.rope_theta = rope_theta
        self.layer_idx = layer_idx
        width = num_heads * self.head_dim
        self.q_proj = nn.Linear(hidden_size, width)
        self.k_proj = nn.Linear(hidden_size, width)
        self.v_proj = nn.Linear(hidden_size, width)
        self.o_proj = nn.Linear(width, hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | TokenLayout | None = None,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Mix positions and channels.

        Args:
            hidden_states: (batch, length, hidden_size).
            attention_mask: (batch, length) or (batch, past + length), nonzero at real tokens; or a `TokenLayout`; or
                (batch, 1, length, keys), True where a query may attend, as `generate` prepares it for compiled caches.
            past_key_values: cache of the library, for causal attention.
            position_ids: (batch or 1, length); counted over real tokens when left out.
            output_attentions: whether to return the weights, too.
            **kwargs: boundaries of packed sequences.

        Returns:
            (batch, length, hidden_size); with `output_attentions`, a pair of that and the weights, (batch, num_heads,
            length, keys).

        Raises:
            ValueError: for a cache given to bidirectional attention, together with packed sequences, or
                of another number of rows.
        """
        batch, length = hidden_states.shape[:2]
        past = past_length(past_key_values, self.layer_idx)
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
            bias, layout = attention_mask, TokenLayout()
        else:
            layout = layout_of_call(
                attention_mask, hidden_states, past_key_values, self.layer_idx, position_ids=position_ids, **kwargs
            )
            bias = None
            # A key of weight zero still adds 0 times its value, and 0 times NaN is NaN.
            hidden_states = layout.zero_pads(hidden_states)
        if position_ids is None:
            position_ids = real_positions(layout.key_mask, batch, length, past, hidden_states.device)
        query, key, scale, _ = self.query_key(hidden_states, position_ids)
        value = self._split(self.v_proj(hidden_states))
        if past_key_values is not None:
            if not self.is_causal:
                raise ValueError("past_key_values is given, but a bidirectional mixer has no cache: pass None.")
            if layout.sequence_ids is not None:
                # Later tokens would attend to all sequences of the row.
                raise ValueError("packed sequences cannot fill a cache: pass use_cache=False, or one sequence a row.")
            key, value = append_keys(past_key_values, self.layer_idx, key, value)
        if bias is None:
            bias = attention_bias(layout, length, key.shape[2], past, self.is_causal, hidden_states.device)
        if output_attentions:
            logits = QueryKey(query, key, scale).logits()
            weights = attention_weights(logits, bias, self.is_causal and length > 1)
            mixed = weights.to(value.dtype) @ value
            return self.o_proj(mixed.transpose(1, 2).flatten(2)), weights
        triangle = False
        if self.is_causal and bias is None and length > 1:
            triangle = True  # assigned in a branch, since a compiled graph takes no symbolic bool here
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=triangle)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def query_key(self, hidden_states: Tensor, position_ids: Tensor | None = None) -> QueryKey:
        """Return queries and keys, rotated, each (batch, num_heads, length, head_dim).

        Args:
            hidden_states: (batch, length, hidden_size).
            position_ids: (batch or 1, length); 0, 1, ... when left out.
        """
        query, key = self._split(self.q_proj(hidden_states)), self._split(self.k_proj(hidden_states))
        if self.rope_theta is not None:
            if position_ids is None:
                position_ids = torch.arange(hidden_states.shape[1], device=hidden_states.device).unsqueeze(0)
            query, key = rotate(query, position_ids, self.rope_theta), rotate(key, position_ids, self.rope_theta)
        return QueryKey(query, key, self.head_dim**-0.5)

    def _split(self, x: Tensor) -> Tensor:
        """Map (batch, length, num_heads * head_dim) to (batch, num_heads, length, head_dim)."""
        return split_heads(x, self.head_dim).transpose(1, 2)
