"""The causal language model of IPA, which may have a copy head."""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..._compat import can_return_tuple
from ...cache import pairs_of, past_length
from ...ops.masking import TokenLayout, token_layout
from ..heads import SeqMixForCausalLM
from .configuration_ipa import IPAConfig
from .copy_head import CopyHead

__all__ = ["ForCausalLM"]


class ForCausalLM(SeqMixForCausalLM):
    """Language model: the logits at each position are for the next token; with `copy_head`, log-probabilities."""

    def __init__(self, config: IPAConfig) -> None:
        super().__init__(config)
        self.copy_head: CopyHead | None = None
        if config.copy_head:
            assert config.rank is not None
            self.copy_head = CopyHead(config.hidden_size, config.rank)
            self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Predict the next token at each position.

        Args:
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache: as for the backbone;
                with `copy_head`, `input_ids` only.
            labels: (batch, length) token ids, shifted inside; -100 is ignored. With packed sequences the first token
                of each should be -100, since the token before it belongs to another sequence.
            logits_to_keep: keep only the last so many positions (0 for all), or those a 1D tensor names.
            **kwargs: passed on; `num_items_in_batch` and `shift_labels` reach the loss.

        Returns:
            `loss`, `logits` (batch, kept, vocab_size), `past_key_values`, `hidden_states`. With `copy_head` the logits are
            log p(w), p = (1 - g) p_vocab + g (copies), see `CopyHead`.

        Raises:
            ValueError: for embeddings given to a model with a copy head.
        """
        if self.copy_head is None:
            return super().forward(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                inputs_embeds=inputs_embeds,
                labels=labels,
                use_cache=use_cache,
                logits_to_keep=logits_to_keep,
                **kwargs,
            )
        if input_ids is None:
            raise ValueError(
                "copy_head is True, and what can be copied are tokens: give input_ids instead of inputs_embeds, or use a model "
                "without copy_head."
            )
        past = past_length(past_key_values)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )
        layout = self._layout(attention_mask, input_ids, past, position_ids, kwargs)
        # The backbone makes a cache where none is given; what it returns is what it filled.
        cache = outputs.past_key_values if past_key_values is None else past_key_values
        embed = self.get_input_embeddings()
        keys, ids = self.copy_head.keys(input_ids, embed, layout, None if cache is None else pairs_of(cache))

        length = input_ids.shape[1]
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        places = torch.arange(length, device=input_ids.device) + past
        packed = None if layout.sequence_ids is None else (layout.sequence_ids[:, kept], layout.sequence_ids)
        logits = self.copy_head(
            outputs.last_hidden_state[:, kept],
            embed(input_ids[:, kept]),
            places[kept],
            keys,
            ids,
            self.lm_head,
            packed,
        )
        loss = None
        if labels is not None or kwargs.get("shift_labels") is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.lm_head.out_features, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values, hidden_states=outputs.hidden_states
        )

    def _layout(
        self,
        attention_mask: Tensor | dict[str, Tensor | None] | None,
        input_ids: Tensor,
        past: int | Tensor,
        position_ids: Tensor | None,
        kwargs: dict[str, Any],
    ) -> TokenLayout:
        """Return where the real tokens of this call lie, as the backbone sees them."""
        batch, length = input_ids.shape
        prepared = isinstance(attention_mask, dict)
        mask = attention_mask.get("seqmix_pairs") if isinstance(attention_mask, dict) else attention_mask
        if mask is not None and mask.ndim == 4:
            # What the last query sees are the real tokens.
            seen = mask[:, 0, -1] if mask.dtype == torch.bool else mask[:, 0, -1] >= 0
            mask = seen.index_select(1, torch.arange(length, device=seen.device) + past).expand(batch, -1)
        return token_layout(
            mask,
            batch,
            length,
            past_length=past,
            position_ids=None if prepared else position_ids,
            cu_seq_lens_q=kwargs.get("cu_seq_lens_q"),
            seq_idx=kwargs.get("seq_idx"),
        )
