"""The mixer of IPA: its column operation over padded and packed rows, with a cache."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from ...cache import append_keys, past_length
from ...ops.attention_bias import attention_bias
from ...ops.layout import TokenLayout
from ...ops.piecewise.weights import relative_values
from ..mixers import QueryKey, WeighingMixer, layout_of_call
from ..short_convolution import convolve_call
from .column import IPAColumn

__all__ = ["IPAMixer"]

logger = logging.get_logger(__name__)


class IPAMixer(WeighingMixer, IPAColumn):
    """IPA's column operation: affine maps of the tokens that a token sees, weighted by kernels of P centers.

    y_l = N(merge_p 1/c_l sum_j K^p_{l,j} a^p_{l,j} (V^p x_j + b^p)) W_o + d, with kernels that are normalized over the
    centers, sum_p K^p_{l,j} = 1. c_l is the number of real tokens that l sees. Source: Shamsi, Hua, Williams 2023
    (arXiv 2306.12317): first-order expansions around P centers, combined by kernels that sum to one over the centers.

    Kernels: K = softmax over p of S, S = (Q^p x_l) . (K^p x_j) / sqrt(r) + t^p, with a relative bias t^p of the offset
    in real tokens, clamped at the outermost. The paper leaves the form of S open. The defaults have attention's
    parameters. Other norms of the kernels (`kernel_norm`) are those of `piecewise_column`.

    Departures from the paper's expansion:

    * 1/c_l: the expansion is a sum over tokens, here their mean is taken. Along equal tokens the results of the sum
      have norms 1, 2, 3, 4, those of the mean 1, 1, 1, 1.
    * Shared maps: the expansion has a map for each pair of positions and center, 2.6e11 numbers for 512 channels, 500
      tokens and 8 centers. Here all pairs share the map V^p of rank k; with the `coupling` "toeplitz" a learned factor
      a of the offset tells them apart, with "shared" a = 1.
    * N and W_o, and, where they are asked for, the token shift and kernels that compete over tokens.

    Args:
        hidden_size: channels in and out.
        num_centers: P.
        rank: k of each affine map; hidden_size / P by default, which must then divide.
        kernel_rank: r of the kernels' projections; `rank` by default.
        coupling: "shared" or "toeplitz", see above.
        kernel_norm: "p", "j", "prod", "mix" or "none", see `piecewise_column`.
        max_relative_distance: M, offsets that the bias and the toeplitz coupling tell apart, 0 to M - 1, and both ways
            when bidirectional.
        token_shift: taps of a convolution of the keys' inputs over the last tokens; 0 for none.
        output_norm: whether N is a root-mean-square norm with a learned scale, or nothing.
        norm_eps: its epsilon.
        is_causal: whether a token sees the past and itself only.
        layer_idx: which layer of a cache is this mixer's. Mixers that share a cache need a number each: where two have
            the same, outputs are wrong in silence.

    Raises:
        ValueError: for sizes below 1, widths that do not divide, and unknown options.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | TokenLayout | None = None,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        layer_idx: int | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Mix positions and channels.

        Args:
            hidden_states: (batch, length, hidden_size).
            attention_mask: (batch, length) or (batch, past + length), nonzero at real tokens; or a `TokenLayout`; or
                (batch or 1, 1, length, keys), True where a query sees a key, as `generate` prepares it for compiled
                caches.
            past_key_values: cache of the library, for the causal operation; with `token_shift`, one that was built for
                the model's configuration.
            position_ids: (batch or 1, length); only restarts matter, which mean packed sequences. Offsets are counted
                over real tokens.
            layer_idx: which layer of the cache this call is; the module's own by default.
            output_attentions: whether to return the weights of the values, too.
            **kwargs: boundaries of packed sequences.

        Returns:
            (batch, length, hidden_size); with `output_attentions`, a pair of that and the weights, (batch,
            num_centers, length, keys), in which the coupling and the division by the number of keys are contained.

        Raises:
            ValueError: for a cache given to a bidirectional mixer, and for packed sequences together with a cache.
        """
        layer_idx = self.layer_idx if layer_idx is None else layer_idx
        batch, length = hidden_states.shape[:2]
        past = past_length(past_key_values, layer_idx)
        visible = None
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
            visible = attention_mask[:, 0] if attention_mask.dtype == torch.bool else attention_mask[:, 0] >= 0
            layout = TokenLayout()
        else:
            layout = layout_of_call(
                attention_mask, hidden_states, past_key_values, layer_idx, position_ids=position_ids, **kwargs
            )
            # A kernel of zero still adds 0 times its value, and 0 times NaN is NaN.
            hidden_states = layout.zero_pads(hidden_states)
        self._check_cache(past_key_values, layout)
        real = layout.mask
        if visible is not None:
            real = visible[:, -1].index_select(1, _places(hidden_states, past)).expand(batch, -1)
        key_inputs = hidden_states
        if self.token_shift is not None:
            key_inputs = convolve_call(
                self.token_shift, "token_shift", hidden_states, layout, real, past_key_values, layer_idx
            )
        query, key, value = self._project(hidden_states, key_inputs)
        # (batch, length, centers, width) each, for the cache and the operation (batch, centers, length, width)
        key, value = key.transpose(1, 2), value.transpose(1, 2)
        fresh = (key, value)
        if past_key_values is not None:
            key, value = append_keys(past_key_values, layer_idx, key.contiguous(), value.contiguous())
        self._check_distance(past, layout.longest(length))

        # A graph takes the boundaries of sequences as a mask.
        traced = layout.scatter is None or torch.compiler.is_compiling()
        packed = traced and layout.sequence_ids is not None
        by_place = visible is None and isinstance(past, int) and not packed
        if by_place and past == 0:
            merged = self._mix_alone(layout, query, *fresh)
        elif by_place and key.shape[2] == past + length and layout.key_mask is None:
            merged = self._column(query.transpose(1, 2), key, value)
        else:
            places = _places(hidden_states, past)
            merged = self._mix_placed(layout, visible, places, query.transpose(1, 2), key, value, past)
        mixed = self.o_proj(merged if self.output_norm is None else self.output_norm(merged))
        if not output_attentions:
            return mixed
        seen = self._seen(layout, visible, _places(hidden_states, past), key.shape[2], past)
        return mixed, self._weights(query.transpose(1, 2), key, **seen)

    def query_key(self, hidden_states: Tensor, position_ids: Tensor | None = None) -> QueryKey:
        """Return queries and keys, each (batch, num_centers, length, kernel_rank), and the relative bias.

        Args:
            hidden_states: (batch, length, hidden_size).
            position_ids: not looked at: the mixer counts offsets itself.
        """
        key_inputs = hidden_states
        if self.token_shift is not None:
            key_inputs = self.token_shift(hidden_states, TokenLayout())
        query, key, _ = self._project(hidden_states, key_inputs)
        places = _places(hidden_states, 0).unsqueeze(0)
        bias = relative_values(self.relative_bias, places, places, self.is_causal)
        return QueryKey(query.transpose(1, 2), key.transpose(1, 2), self.kernel_rank**-0.5, bias)

    def _check_cache(self, past_key_values: Any, layout: TokenLayout) -> None:
        if past_key_values is None:
            return
        if not self.is_causal:
            raise ValueError("past_key_values is given, but a bidirectional mixer has no cache: pass None.")
        if layout.sequence_ids is not None:
            # Later tokens would see all sequences of the row.
            raise ValueError("packed sequences cannot fill a cache: pass use_cache=False, or one sequence a row.")

    def _check_distance(self, past: int | Tensor, length: int) -> None:
        if torch.compiler.is_compiling() or not isinstance(past, int):
            return
        if past + length > self.max_relative_distance:
            logger.warning_once(
                f"A sequence is longer than max_relative_distance = {self.max_relative_distance} tokens: all offsets "
                "beyond share the bias of the last."
            )

    def _mix_alone(self, layout: TokenLayout, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Mix tokens without a history; in rows with pads or packed sequences, real tokens are moved to the front."""
        if layout.mask is None and layout.scatter is None:
            return self._column(query.transpose(1, 2), key, value)
        parts = [query.flatten(2), key.transpose(1, 2).flatten(2), value.transpose(1, 2).flatten(2)]
        # Ones at real tokens, which stay behind when pads become zeros.
        parts.append(torch.ones_like(parts[0][..., :1]))
        sizes = [part.shape[-1] for part in parts]
        return layout.mix(partial(self._mix_stacked, sizes=sizes), torch.cat(parts, dim=-1), align=True)

    def _mix_stacked(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """Mix rows whose channels are queries, keys, values and a flag that is 0 at pads, which come last."""
        *stacked, ones = rows.split(sizes, dim=-1)
        query, key, value = (part.unflatten(-1, (self.num_centers, -1)).transpose(1, 2) for part in stacked)
        # A causal operation does not look at what follows.
        return self._column(query, key, value, key_mask=None if self.is_causal else ones.squeeze(-1) != 0)

    def _mix_placed(
        self,
        layout: TokenLayout,
        visible: Tensor | None,
        places: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        past: int | Tensor,
    ) -> Tensor:
        """Mix tokens by a mask: with a history that has pads, or whose end is not used yet, or packed in a graph."""
        return self._column(query, key, value, **self._seen(layout, visible, places, key.shape[2], past))

    def _seen(
        self, layout: TokenLayout, visible: Tensor | None, places: Tensor, total: int, past: int | Tensor
    ) -> dict[str, Tensor]:
        """Return the positions of queries and keys, counted over real tokens, and which keys each query sees."""
        if visible is None:
            bias = attention_bias(layout, places.shape[0], total, past, self.is_causal, places.device)
            keys = torch.arange(total, device=places.device)
            if bias is None:  # no pads, and no other sequences
                visible = (keys <= places.unsqueeze(1)) | (not self.is_causal)
                visible = visible.unsqueeze(0)
            else:
                visible = bias[:, 0]
            if layout.key_mask is None:
                key_positions = keys.unsqueeze(0)
            else:
                known = layout.key_mask.long().cumsum(dim=1) - 1
                key_positions = nn.functional.pad(known, (0, total - known.shape[1])).clamp(min=0)
        else:
            key_positions = _key_positions(visible)
        return {
            "query_positions": key_positions.index_select(1, places),
            "key_positions": key_positions,
            "visible": visible,
        }


def _places(hidden_states: Tensor, past: int | Tensor) -> Tensor:
    """Return where the tokens of a call, (batch, length, channels), stand in a cache that held `past`, (length,)."""
    return torch.arange(hidden_states.shape[1], device=hidden_states.device) + past


def _key_positions(visible: Tensor) -> Tensor:
    """Count real keys by what the last query sees, (batch or 1, queries, keys) -> (batch or 1, keys)."""
    return (visible[:, -1].long().cumsum(dim=-1) - 1).clamp(min=0)
