"""A head that may copy: it points at an earlier token and predicts the one that followed it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init

from ...cache import check_all_read, copy_keys_of
from ...ops.common.copies import add_copies
from ...ops.common.dispatch import ORDINARY, dispatch
from ...ops.common.pointer import pointer_sums
from ...ops.layout import TokenLayout, token_layout
from ...ops.masking import padding_mask
from ..configuration import check_integer
from ..recent_tokens import RecentTokens, last_tokens, recent_tokens, sum_of_parts

__all__ = ["CopyHead"]

# Bytes of scores over the vocabulary that are in memory beside the result.
_BYTES = 64 * 2**20


class CopyHead(nn.Module):
    """Mix the model's distribution with a copy of what followed similar tokens earlier.

    p(w) = (1 - g) p_model(w) + g sum_{j < l} alpha_{l,j} 1[w_{j+1} = w]
    alpha_l = softmax_j(s_{l,j}), s_{l,j} = q_l . k_j / sqrt(r), g = sigmoid(u . h_l - 2)
    q_l = sum_{m < n} A_m e(w_{l-m}), k_j = sum_{m < n} A'_m e(w_{j-m})

    This is a pointer over tokens, whose scores need no learned induction. g is 0 where there is no earlier token. e is
    0 for tokens before the start of a sequence. With `with_state`, the model asks for what it expects, and copies more
    where more matches:

    q_l = sum_{m < n} A_m e(w_{l-m}) + B h_l, k_j = sum_{m < n} A'_m e(w_{j-m}) + B' e(w_{j+1})
    g = sigmoid(u . h_l - 2 + c log sum_j exp(s_{l,j})), c = 0 at first

    Sources: pointers into the input, Vinyals, Fortunato, Jaitly 2015 (arXiv 1506.03134); the gated mixture with a
    vocabulary, See, Liu, Manning 2017 (arXiv 1704.04368); scores that decide how much is copied, Merity et al. 2016
    (arXiv 1609.07843), where c is 1. Departures: keys are made of embeddings of tokens instead of hidden states, and
    what is copied is the token after the one pointed at. None of the papers of the mixers has such a head.

    A cache keeps, for each token, the key of the place before the token and two ids (see `keys`). So j < l is "tokens
    up to l".

    Args:
        channels: of embeddings and hidden states.
        rank: r of the scores.
        tokens: n, how many of the last tokens are compared.
        with_state: whether queries read the hidden state, too, keys the token that would be copied, and the gate the
            scores.

    Raises:
        TypeError: for a rank or a number of tokens that is no integer.
        ValueError: for one below 1.
    """

    def __init__(self, channels: int, rank: int, tokens: int = 1, with_state: bool = False) -> None:
        super().__init__()
        check_integer("rank", rank, low=1)
        check_integer("tokens", tokens, low=1)
        self.tokens = tokens
        # A_0, A_1, ... one below the other; of the keys B' last.
        self.q_proj = nn.Linear(channels, tokens * rank, bias=False)
        self.k_proj = nn.Linear(channels, (tokens + int(with_state)) * rank, bias=False)
        self.gate_proj = nn.Linear(channels, 1, bias=False)
        self.state_proj = nn.Linear(channels, rank, bias=False) if with_state else None
        self.score_gate = nn.Parameter(torch.zeros(1)) if with_state else None

    def init_weights(self, config: Any) -> None:
        """Begin with a gate that does not see the scores; the model draws the layers."""
        if self.score_gate is not None:
            init.zeros_(self.score_gate)

    def predict(
        self,
        hidden_states: Tensor,
        kept: slice | Tensor,
        past: int | Tensor,
        embed: nn.Module,
        lm_head: nn.Module,
        vocabulary: int,
        *,
        input_ids: Tensor | None,
        attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        cu_seq_lens_q: Tensor | None = None,
        seq_idx: Tensor | None = None,
        targets: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Compute log p of the next token for one call of the model.

        Args:
            hidden_states: (batch, length, channels).
            kept: positions to predict at, a slice or (kept,) long.
            past: how many positions the cache held before this call.
            embed: maps ids to embeddings.
            lm_head: maps hidden states to logits.
            vocabulary: how many logits.
            input_ids: (batch, length).
            attention_mask: as for the backbone.
            position_ids: as for the backbone.
            past_key_values: the cache that the backbone filled, or None.
            cu_seq_lens_q: boundaries of packed sequences, as for the backbone.
            seq_idx: the same as numbers of the sequences.
            targets: (batch, kept), the tokens whose log p is asked for; None for all of the vocabulary.

        Returns:
            (batch, kept, vocabulary) log-probabilities, or (batch, kept) of the targets.

        Raises:
            ValueError: without `input_ids`, and for a cache with tokens that the head has not read.
        """
        if input_ids is None:
            raise ValueError(
                "copy_head is True, and what can be copied are tokens: give input_ids instead of inputs_embeds, or "
                "use a model without copy_head."
            )
        batch, length = input_ids.shape
        prepared = isinstance(attention_mask, dict)
        layout = token_layout(
            padding_mask(attention_mask, batch, length, past),
            batch,
            length,
            past_length=past,
            position_ids=None if prepared else position_ids,
            cu_seq_lens_q=cu_seq_lens_q,
            seq_idx=seq_idx,
            has_cache=past_key_values is not None,
        )
        copy_keys = None if past_key_values is None else copy_keys_of(past_key_values)
        if copy_keys is not None and not torch.compiler.is_compiling():
            check_all_read(copy_keys, past)
        recent = self.recent(input_ids, layout, copy_keys)
        embeddings = _embed(recent.ids, embed)
        keys, ids = self.keys(recent, embeddings, layout, copy_keys)
        places = torch.arange(length, device=input_ids.device) + past
        packed = None if layout.sequence_ids is None else (layout.sequence_ids[:, kept], layout.sequence_ids)
        # Like the backbone's state, the tokens at a pad are the last real ones before the pad.
        queries = sum_of_parts(self.q_proj(embeddings), recent.slots[:, kept, : self.tokens])
        # As a function: hooks that move the arguments of a call between devices would move the weights of a module.
        return self(
            hidden_states[:, kept],
            queries,
            places[kept],
            keys,
            ids,
            lm_head.__call__,
            vocabulary,
            packed,
            targets,
        )

    def recent(self, input_ids: Tensor, layout: TokenLayout, copy_keys: Any) -> RecentTokens:
        """Return the last tokens at each place of this call, one more than are compared.

        Args:
            input_ids: (batch, length).
            layout: where the real tokens lie.
            copy_keys: what a cache holds for the head, see `copy_keys_of`, before this call is added; or None.
        """
        held = None if copy_keys is None or not copy_keys.is_initialized else copy_keys.values
        earlier = None
        if held is not None and held.shape[2] > 0:
            earlier = last_tokens(held[:, 0, :, 1], copy_keys.get_seq_length(), self.tokens)
        return recent_tokens(input_ids, layout, self.tokens + 1, earlier)

    def keys(
        self, recent: RecentTokens, embeddings: Tensor, layout: TokenLayout, copy_keys: Any
    ) -> tuple[Tensor, Tensor]:
        """Pair this call's tokens with the keys of the places before them, and add them to the cache.

        The cache keeps two ids a token: the token where it and one before it are real, else -1; and the token if real,
        else -1.

        Args:
            recent: the last tokens at each place, one more than are compared.
            embeddings: (batch, slots, channels), of `recent.ids`.
            layout: where the real tokens lie.
            copy_keys: what a cache holds for the head, see `copy_keys_of`, or None.

        Returns:
            keys: (batch, total, rank); ids: (batch, total), -1 where there is nothing to copy.
        """
        itself, before = recent.tokens()[..., :2].unbind(-1)
        itself = itself if layout.mask is None else torch.where(layout.mask, itself, -1)
        new = torch.stack([torch.where(before >= 0, itself, -1), itself], dim=-1)
        compared = recent.slots[..., 1:]
        if self.state_proj is not None:
            compared = torch.cat([compared, recent.slots[..., :1]], dim=-1)
        keys = sum_of_parts(self.k_proj(embeddings), compared)
        if copy_keys is None:
            return keys, new[..., 0]
        all_keys, ids = copy_keys.update(keys.unsqueeze(1), new.unsqueeze(1))
        return all_keys[:, 0], ids[:, 0, :, 0]

    def forward(
        self,
        hidden_states: Tensor,
        queries: Tensor,
        places: Tensor,
        keys: Tensor,
        ids: Tensor,
        lm_head: Callable[[Tensor], Tensor],
        vocabulary: int,
        sequence_ids: tuple[Tensor, Tensor] | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Compute log p of the next token.

        Args:
            hidden_states: (batch, queries, channels).
            queries: (batch, queries, rank), what the last tokens up to each query say of it.
            places: (queries,) where the queries stand among the keys.
            keys: (batch, total, rank).
            ids: (batch, total) long, -1 where there is nothing to copy.
            lm_head: maps hidden states to logits.
            vocabulary: how many logits.
            sequence_ids: of the queries (batch, queries) and of the keys (batch, total), in packed rows.
            targets: (batch, queries) ids, or None for all of the vocabulary.

        Returns:
            (batch, queries, vocabulary) log-probabilities, or (batch, queries) of the targets, in float32 at least.
            They are computed in blocks of queries, of which only the result stays in memory; a backward pass computes
            the rest again. A compiled graph takes all queries at once: scores (batch, queries, total) and several
            tensors (batch, queries, vocabulary) are in memory together.
        """
        if self.state_proj is not None:
            queries = queries + self.state_proj(hidden_states)
        if targets is not None:
            sums = pointer_sums(queries, keys, ids, targets, places, sequence_ids)
            return self._of_targets(hidden_states, *sums, lm_head, vocabulary, targets)
        query_ids, key_ids = (None, None) if sequence_ids is None else sequence_ids

        def some(s: slice) -> Tensor:
            of_queries = None if query_ids is None else query_ids[:, s]
            return self._block(hidden_states[:, s], queries[:, s], places[s], keys, ids, of_queries, key_ids, lm_head)

        return _in_blocks(some, hidden_states, max(vocabulary, keys.shape[1]))

    def _of_targets(
        self,
        hidden_states: Tensor,
        log_all: Tensor,
        log_found: Tensor,
        lm_head: Callable[[Tensor], Tensor],
        vocabulary: int,
        targets: Tensor,
    ) -> Tensor:
        """Compute log p of one token for each query, of the sums of scores over all places and those that hold it."""
        some, found = log_all > float("-inf"), log_found > float("-inf")

        def nll(s: slice) -> Tensor:
            logits = lm_head(hidden_states[:, s])
            wanted = targets[:, s]
            # Classes last: a transposed tensor would be several times as slow.
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
            return nn.functional.cross_entropy(logits, wanted.flatten(), reduction="none").view(wanted.shape)

        log_model = -_in_blocks(nll, hidden_states, vocabulary)
        log_stay, log_copy = self._gate(hidden_states, torch.where(some, log_all, 0)[..., None])[..., 0]
        log_model = torch.where(some, log_stay, 0) + log_model
        log_copied = log_copy + torch.where(found, log_found - log_all, 0)
        return torch.where(found, torch.logaddexp(log_model, log_copied), log_model)

    def _gate(self, hidden_states: Tensor, log_all: Tensor) -> Tensor:
        """Return log(1 - g) and log g, (2, batch, queries, 1); `log_all` is what the scores add up to."""
        gate = self.gate_proj(hidden_states).to(log_all.dtype) - 2
        if self.score_gate is not None:
            gate = gate + self.score_gate * log_all
        # By a softmax of two: other runtimes take the logarithm of a rounded sigmoid, which is wrong where 1 - g is
        # small.
        return torch.log_softmax(torch.stack([torch.zeros_like(gate), gate]), dim=0)

    def _block(
        self,
        hidden_states: Tensor,
        queries: Tensor,
        places: Tensor,
        keys: Tensor,
        ids: Tensor,
        query_sequences: Tensor | None,
        key_sequences: Tensor | None,
        lm_head: Callable[[Tensor], Tensor],
    ) -> Tensor:
        logits = lm_head(hidden_states)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        query = queries.to(dtype)
        # (batch, queries, total); autocast multiplies in half precision.
        scores = (query @ keys.to(dtype).transpose(1, 2) * query.shape[-1] ** -0.5).to(dtype)
        index = torch.arange(keys.shape[1], device=keys.device)
        seen = (index <= places.unsqueeze(1)) & (ids >= 0).unsqueeze(1)
        if query_sequences is not None and key_sequences is not None:
            seen = seen & (query_sequences.unsqueeze(2) == key_sequences.unsqueeze(1))
        some = seen.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~seen & some, float("-inf"))
        weights = torch.softmax(scores, dim=-1) * some
        log_all = scores[..., :1] if self.score_gate is None else scores.logsumexp(dim=-1, keepdim=True)
        log_stay, log_copy = self._gate(hidden_states, log_all)
        # g is shared out; no token is copied where there is none.
        log_model = torch.log_softmax(logits, dim=-1, dtype=dtype) + torch.where(some, log_stay, 0)
        return add_copies(log_model, log_copy.exp() * weights, ids.clamp(min=0))


def _in_blocks(some: Callable[[slice], Tensor], hidden_states: Tensor, numbers: int) -> Tensor:
    """Return what a function makes of some queries for all of them, in blocks that a backward pass computes again.

    Args:
        some: queries -> (batch, queries, ...).
        hidden_states: (batch, queries, channels).
        numbers: in memory for each query.
    """
    batch, number = hidden_states.shape[:2]
    if torch.compiler.is_compiling():
        return some(slice(None))
    block = max(1, _BYTES // (4 * max(batch, 1) * numbers))
    if block >= number:
        return some(slice(None))
    slices = [slice(start, start + block) for start in range(0, number, block)]
    # Transforms of torch.func take no checkpoints.
    if torch.is_grad_enabled() and dispatch(hidden_states)[0] not in ORDINARY:
        return torch.cat([checkpoint(some, s, use_reentrant=False) for s in slices], dim=1)
    return torch.cat([some(s) for s in slices], dim=1)


def _embed(ids: Tensor, embed: nn.Module) -> Tensor:
    """Return the embeddings of ids (batch, slots), (batch, slots, channels), 0 for -1."""
    embeddings: Tensor = embed(ids.clamp(min=0))
    return embeddings.masked_fill((ids < 0).unsqueeze(-1).to(embeddings.device), 0)
