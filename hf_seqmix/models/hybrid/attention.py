"""Softmax attention: the control that the other mixers are compared with, and a layer of hybrids."""

from typing import Any

import torch
from torch import Tensor, nn

from ...cache import past_length
from ...modules.sharding import split_heads
from ...ops.masking import TokenLayout, attention_bias, real_positions
from ..mixers import layout_of_call

__all__ = ["SoftmaxAttention", "rotate"]


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


class SoftmaxAttention(nn.Module):
    """Multi-head attention with rotary positions, softmax(q k^T / sqrt(head_dim)) v.

    Args:
        hidden_size: channels in and out.
        num_heads: number of heads, which must divide `hidden_size` into even parts.
        is_causal: whether a token sees the past and itself only.
        rope_theta: base of the rotary wavelengths.
        layer_idx: which layer of a cache is this mixer's.

    Raises:
        ValueError: if the heads do not divide the channels.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int = 8,
        is_causal: bool = True,
        rope_theta: float = 10000.0,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        if hidden_size % (2 * num_heads):
            raise ValueError(f"num_heads {num_heads} must divide hidden_size {hidden_size} into parts of even width.")
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.is_causal = is_causal
        self.rope_theta = rope_theta
        self.layer_idx = layer_idx
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | TokenLayout | None = None,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Mix positions and channels.

        Args:
            hidden_states: (batch, length, hidden_size).
            attention_mask: (batch, length) or (batch, past + length), nonzero at real tokens; or a `TokenLayout`; or
                (batch, 1, length, keys), True where a query may attend, as `generate` prepares it for compiled caches.
            past_key_values: cache of the library, for causal attention.
            position_ids: (batch or 1, length); counted over real tokens when left out.
            **kwargs: boundaries of packed sequences.

        Returns:
            (batch, length, hidden_size).

        Raises:
            ValueError: for a cache given to bidirectional attention, or together with packed sequences.
        """
        batch, length, _ = hidden_states.shape
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
        query, key, value = (
            split_heads(projection(hidden_states), self.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, position_ids, self.rope_theta), rotate(key, position_ids, self.rope_theta)
        if past_key_values is not None:
            if not self.is_causal:
                raise ValueError("past_key_values is given, but a bidirectional mixer has no cache: pass None.")
            if layout.sequence_ids is not None:
                # Later tokens would attend to all sequences of the row.
                raise ValueError("packed sequences cannot fill a cache: pass use_cache=False, or one sequence a row.")
            key, value = past_key_values.update(key, value, self.layer_idx)
        if bias is None:
            bias = attention_bias(layout, length, key.shape[2], past, self.is_causal, hidden_states.device)
        triangle = False
        if self.is_causal and bias is None and length > 1:
            triangle = True  # assigned in a branch, since a compiled graph takes no symbolic bool here
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=triangle)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))
