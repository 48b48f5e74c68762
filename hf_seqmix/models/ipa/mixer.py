"""The mixer of IPA: its column operation with projections, kernels, couplings and a cache."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from ...cache import past_length, previous_inputs
from ...ops.masking import TokenLayout, attention_bias, real_positions, token_layout
from ...ops.piecewise.separable import separable_column
from .column import IPAColumn
from .position_maps import PositionLinear

__all__ = ["IPAMixer"]

logger = logging.get_logger(__name__)


class IPAMixer(IPAColumn):
    """IPA's column operation: each token is a sum of affine maps of the tokens it sees, weighted by kernels of P centres.

    y_l = N(merge_p 1/c_l sum_j K^p_{l,j} a^p_{l,j} (V^p x_j + b^p)) W_o + d, where sum_p K^p_{l,j} = 1 and c_l is the number
    of real tokens that l sees. Source: Shamsi, Hua, Williams 2023 (arXiv 2306.12317): first-order expansions around P centres,
    combined by kernels that sum to one over the centres. The paper gives neither the kernels nor what the Jacobians of pairs
    of positions share; both are options here, and the defaults are those whose parameters are attention's.

    Kernels (`kernel_type`), with a relative bias t^p of the offset in real tokens, clamped at the outermost, in all but the last:

    * "bilinear": S = (Q^p x_l) . (K^p x_j) / sqrt(r) + t.
    * "rbf": S = -(|Q^p x_l - c^p|^2 + |K^p x_j - e^p|^2) / (2 r h_p^2) + t, with learned centres c, e and widths h.
      Both distances are summed in float32 and rounded to the model's dtype, in which a cache holds them. With random weights,
      128 channels and 8 centres, logits in bfloat16 were off by 0.15 % (root mean square), without that rounding by 0.09 %;
      bilinear ones, whose projections are rounded, too, by 0.23 %.
    * "static": S = t, a kernel of positions alone.
    * "separable": K = g^p(x_l) h^p(x_j), each a softmax over centres, so that sum_p K is at most 1; its time is linear where
      there is neither a cache nor a coupling of pairs.

    Kernel norms (`kernel_norm`) are those of `piecewise_column`; couplings (`coupling`): "shared" a = 1; "toeplitz" a learned
    factor of the offset; "absolute_scalar" one of each pair of positions; "separable" a V_j for each position and an output
    map U_l for each; "full" maps of each pair, an oracle for tests.

    Args:
        hidden_size: channels in and out.
        num_centers: P.
        rank: k of each affine map; hidden_size / P by default, which must then divide.
        kernel_rank: r of the kernels' projections; `rank` by default.
        coupling, kernel_type, kernel_norm: see above. The kernel type "separable" has the norm "p".
        max_positions: positions that absolute couplings ("absolute_scalar", "separable", "full") have.
        max_relative_distance: M, offsets that the bias and the toeplitz coupling tell apart, 0 to M - 1, and both ways
            when bidirectional; `max_positions` by default.
        token_shift: taps of a convolution of the keys' inputs over the last tokens; 0 for none.
        output_norm: whether N is a root-mean-square norm with a learned scale, or nothing.
        norm_eps: its epsilon.
        is_causal: whether a token sees the past and itself only.
        layer_idx: which layer of a cache is this mixer's.

    Raises:
        ValueError: for sizes below 1, widths that do not divide, unknown options, and options that exclude each other.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | TokenLayout | None = None,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        layer_idx: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Mix positions and channels.

        Args:
            hidden_states: (batch, length, hidden_size).
            attention_mask: (batch, length) or (batch, past + length), nonzero at real tokens; or a `TokenLayout`; or
                (batch or 1, 1, length, keys), True where a query sees a key, as `generate` prepares it for compiled caches.
            past_key_values: cache of the library, for the causal operation; with `token_shift`, one that was built for the
                model's configuration.
            position_ids: (batch or 1, length); only restarts matter, which mean packed sequences. Offsets and positions are
                counted over real tokens.
            layer_idx: which layer of the cache this call is; the module's own by default.
            **kwargs: boundaries of packed sequences.

        Returns:
            (batch, length, hidden_size).

        Raises:
            ValueError: for more positions than an absolute coupling has, a cache that the operation cannot have, and packed
                sequences together with a cache.
        """
        layer_idx = self.layer_idx if layer_idx is None else layer_idx
        batch, length, _ = hidden_states.shape
        past = past_length(past_key_values, layer_idx)
        visible = None
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
            visible = attention_mask[:, 0] if attention_mask.dtype == torch.bool else attention_mask[:, 0] >= 0
            layout = TokenLayout()
        else:
            layout = token_layout(attention_mask, batch, length, past_length=past, position_ids=position_ids, **kwargs)
            # A kernel of zero still adds 0 times its value, which is NaN if that is.
            hidden_states = layout.zero_pads(hidden_states)
        self._check_cache(past_key_values, layout)
        places = torch.arange(length, device=hidden_states.device) + past  # of this call's tokens in the cache
        real = layout.mask if visible is None else visible[:, -1].index_select(1, places).expand(batch, -1)
        key_inputs = self._shift(hidden_states, layout, real, past_key_values, layer_idx)
        positions = self._positions(layout, visible, places, batch, length, past)
        query, key, value = self._project(hidden_states, key_inputs, positions)
        # (batch, length, centres, width) each, for the cache and the operation (batch, centres, length, width)
        key, value = key.transpose(1, 2), value.transpose(1, 2)
        fresh = (key, value)
        if past_key_values is not None:
            key, value = past_key_values.update(key.contiguous(), value.contiguous(), layer_idx)
        self._check_distance(past, length)

        if visible is None and isinstance(past, int) and past == 0:
            merged = self._mix_alone(layout, query, *fresh)
        elif visible is None and isinstance(past, int) and key.shape[2] == past + length and layout.key_mask is None:
            merged = self._column(query.transpose(1, 2), key, value)
        else:
            merged = self._mix_placed(layout, visible, places, query.transpose(1, 2), key, value, past)
        if self.pair_maps is not None:
            return merged
        if self.output_norm is not None:
            merged = self.output_norm(merged)
        assert self.o_proj is not None
        return self.o_proj(merged, positions) if isinstance(self.o_proj, PositionLinear) else self.o_proj(merged)

    def _check_cache(self, past_key_values: Any, layout: TokenLayout) -> None:
        if past_key_values is None:
            return
        if not self.is_causal:
            raise ValueError("past_key_values is given, but a bidirectional mixer has no cache: pass None.")
        if self.pair_maps is not None:
            raise ValueError("coupling 'full' is an oracle for tests and has no cache: set use_cache=False.")
        if layout.sequence_ids is not None:
            # What follows would see all of them.
            raise ValueError("packed sequences cannot fill a cache: pass use_cache=False, or one sequence a row.")

    def _check_distance(self, past: int | Tensor, length: int) -> None:
        if torch.compiler.is_compiling() or self.relative_bias is None or not isinstance(past, int):
            return
        if past + length > self.max_relative_distance and not self.is_absolute:
            logger.warning_once(
                f"A sequence is longer than max_relative_distance = {self.max_relative_distance} tokens: all offsets beyond it share "
                "the bias of the last."
            )

    def _shift(
        self, hidden_states: Tensor, layout: TokenLayout, real: Tensor | None, past_key_values: Any, layer_idx: int
    ) -> Tensor:
        """Return what the keys are projections of."""
        if self.token_shift is None:
            return hidden_states
        if past_key_values is None:
            return layout.mix(self.token_shift, hidden_states)
        count = self.token_shift.width - 1
        before = previous_inputs(past_key_values, layer_idx, hidden_states, real, count)
        return self.token_shift.continued(hidden_states, before, real)

    def _positions(
        self,
        layout: TokenLayout,
        visible: Tensor | None,
        places: Tensor,
        batch: int,
        length: int,
        past: int | Tensor,
    ) -> Tensor:
        """Return the position of each token among the real ones of its sequence, (batch or 1, length)."""
        if visible is not None:
            positions = _key_positions(visible).index_select(1, places)
        elif layout.sequence_ids is not None:
            ones = torch.ones((batch, length, 1), dtype=torch.long, device=places.device)
            positions = layout.mix(lambda rows: rows.cumsum(dim=1) - 1, ones).squeeze(-1)
        else:
            positions = real_positions(layout.key_mask, batch, length, past, places.device)
        if self.is_absolute and not torch.compiler.is_compiling() and positions.numel():
            highest = int(positions.max()) + 1
            if highest > self.max_positions:
                raise ValueError(self._too_long(highest))
        return positions

    def _mix_alone(self, layout: TokenLayout, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Mix tokens without a history; rows with pads are laid out so that real tokens come first, and so is each of
        several packed sequences."""
        if layout.mask is None and layout.scatter is None:
            return self._mix_rows(query.transpose(1, 2), key, value, None)
        parts = [query.flatten(2), key.transpose(1, 2).flatten(2), value.transpose(1, 2).flatten(2)]
        # Ones at real tokens, which stay behind when pads become zeros.
        parts.append(torch.ones_like(parts[0][..., :1]))
        sizes = [part.shape[-1] for part in parts]
        return layout.mix(partial(self._mix_stacked, sizes=sizes), torch.cat(parts, dim=-1), align=True)

    def _mix_stacked(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """Mix rows whose channels are those of queries, keys and values, and one that is 0 at pads, which come last."""
        beyond = 0
        if self.is_absolute and not torch.compiler.is_compiling():
            # Only pads stand where there are no parameters.
            beyond = max(rows.shape[1] - self.max_positions, 0)
            rows = rows[:, : rows.shape[1] - beyond]
        query, key, value, ones = rows.split(sizes, dim=-1)
        query = query.unflatten(-1, (self.num_centers, -1)).transpose(1, 2)
        key = key.unflatten(-1, (self.num_centers, -1)).transpose(1, 2)
        value = value.unflatten(-1, (1 if self.pair_maps is not None else self.num_centers, -1)).transpose(1, 2)
        # A causal operation does not look at what follows.
        real = None if self.is_causal else ones.squeeze(-1) != 0
        mixed = self._mix_rows(query, key, value, real)
        return nn.functional.pad(mixed, (0, 0, 0, beyond)) if beyond else mixed

    def _mix_rows(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor | None) -> Tensor:
        """Mix sequences that begin at the first place of their rows, (rows, centres, positions, width).

        `real` (rows, positions) is given where keys must be hidden.
        """
        if self.pair_maps is not None:
            length = key.shape[2]
            eye = torch.eye(length, dtype=value.dtype, device=value.device)
            kernels = self._column(
                query, key, eye.expand(key.shape[0], self.num_centers, length, length), key_mask=real
            )
            kernels = kernels.unflatten(-1, (self.num_centers, length)).transpose(1, 2)
            return self.pair_maps(kernels, value[:, 0])
        if self.kernel_type == "separable" and self.coupling_table is None:
            return separable_column(query, key, value, real, self.is_causal)
        return self._column(query, key, value, key_mask=real)

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
        """Mix tokens with a history that has pads, or whose end is not used yet."""
        total = key.shape[2]
        if visible is None:
            bias = attention_bias(layout, places.shape[0], total, past, self.is_causal, places.device)
            if bias is None:  # a single token after a history without pads
                visible = torch.ones((1, 1, total), dtype=torch.bool, device=places.device)
            else:
                visible = bias[:, 0]
            if layout.key_mask is None:
                key_positions = torch.arange(total, device=places.device).unsqueeze(0)
            else:
                known = layout.key_mask.long().cumsum(dim=1) - 1
                key_positions = nn.functional.pad(known, (0, total - known.shape[1])).clamp(min=0)
        else:
            key_positions = _key_positions(visible)
        return self._column(
            query,
            key,
            value,
            query_positions=key_positions.index_select(1, places),
            key_positions=key_positions,
            visible=visible,
        )

    def _too_long(self, length: int) -> str:
        return (
            f"{length} tokens, but coupling {self.coupling!r} has parameters for max_position_embeddings = "
            f"{self.max_positions} positions: shorten the input, or use coupling 'shared' or 'toeplitz'."
        )


def _key_positions(visible: Tensor) -> Tensor:
    """Count real keys by what the last query sees, (batch or 1, queries, keys) -> (batch or 1, keys)."""
    return (visible[:, -1].long().cumsum(dim=-1) - 1).clamp(min=0)
