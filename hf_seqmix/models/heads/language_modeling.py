"""The causal language model, with or without a copy head."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..._compat import CACHE_NAME, cache_given, can_return_tuple
from ..._labels import IGNORED_LABEL
from ...cache import past_length
from ...serving import RowBatchingMixin
from ..configuration import SeqMixConfig
from .base import SeqMixHead, library_loss
from .copy_head import CopyHead
from .generation import PromptHandling

__all__ = ["SeqMixForCausalLM"]


class SeqMixForCausalLM(PromptHandling, RowBatchingMixin, SeqMixHead):
    """Language model: the logits at each position are for the next token.

    With `copy_head` the logits are log p(w), p = (1 - g) p_vocab + g (copies), see `CopyHead`. The model then takes
    `input_ids` only: what is copied are tokens.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}
    shifts_labels = True

    def __init__(self, config: SeqMixConfig) -> None:
        super().__init__(config)
        self.vocab_size = config.vocab_size
        self.lm_head: nn.Linear = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.copy_head: CopyHead | None = None
        if config.copy_head:
            assert config.copy_head_rank is not None
            self.copy_head = CopyHead(
                config.hidden_size, config.copy_head_rank, config.copy_head_tokens, config.copy_head_state
            )
        self.post_init()

    def _check_config(self, config: SeqMixConfig) -> None:
        super()._check_config(config)
        if not config.is_causal:
            raise ValueError(
                f"is_causal is False, but {type(self).__name__} needs a causal model: set is_causal=True, or use the "
                "masked language model."
            )
        if "batch" in {config.norm_type, *(config.mixer_config(name).norm_type for name in config.layer_mixers)}:
            raise ValueError(
                "norm_type is 'batch', but batch statistics let a causal language model see the future: use "
                "'simple_rms' or 'layer' (polynomial mixers: normalization 'rms' or 'static')."
            )

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
        skip_logits: bool = False,
        cache: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Predict the next token at each position.

        Args:
            input_ids: (batch, length), as for the backbone.
            attention_mask: as for the backbone.
            position_ids: as for the backbone.
            past_key_values: as for the backbone.
            inputs_embeds: (batch, length, hidden_size), as for the backbone.
            labels: (batch, length) token ids, shifted inside; -100 is ignored. The first real token after left pads
                is not predicted, since nothing stands before it (a departure from the library, whose models predict it
                from the pad); `num_items_in_batch` of a `Trainer` counts it. With packed sequences the first token of
                each should be -100, since the token before it belongs to another sequence.
            use_cache: as for the backbone.
            logits_to_keep: keep only the last so many positions (0 for all), or those a 1D tensor names.
            skip_logits: with labels and the library's loss, return no logits beside the loss. With a copy head, the
                loss then takes the probabilities of the labels alone, at all positions: `logits_to_keep` has no
                effect, and `shift_labels` must be (batch, length).
            cache: as for the backbone.
            **kwargs: passed on; `num_items_in_batch` and `shift_labels` reach the loss.

        Returns:
            `loss`, `logits` (batch, kept, vocab_size) or None, `past_key_values`, `hidden_states`.
        """
        past_key_values = cache_given(past_key_values, cache)
        past = past_length(past_key_values)  # before the backbone fills the cache
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        kept_cache = getattr(outputs, CACHE_NAME)
        call = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "past_key_values": kept_cache if past_key_values is None else past_key_values,
            **kwargs,
        }
        if labels is not None:
            labels = _without_first_after_pads(labels, attention_mask)
        labeled = labels is not None or kwargs.get("shift_labels") is not None
        skip_logits = skip_logits and labeled and self._has_library_loss()
        logits, loss = None, None
        if not (skip_logits and self.copy_head is not None):
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.compute_logits(outputs.last_hidden_state, kept, past, **call)
        if labeled:
            if logits is None:
                loss_function = self._with_auxiliary(
                    partial(self._copying_loss, outputs.last_hidden_state, past, call)
                )
                loss = loss_function(labels=labels, **kwargs)
            else:
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs)
        if skip_logits:
            logits = None
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE_NAME: kept_cache},
        )

    def compute_logits(self, hidden_states: Tensor, kept: slice | Tensor, past: int | Tensor, **call: Any) -> Tensor:
        """Compute the logits of the positions that are kept; the copy head's, where there is one.

        Args:
            hidden_states: (batch, length, hidden_size), what the backbone returned.
            kept: which positions, an index of the second dimension.
            past: how many positions the cache held before this call.
            **call: the arguments of the forward pass. `past_key_values` is the cache that the backbone filled, or
                None.

        Returns:
            (batch, kept, vocab_size).
        """
        if self.copy_head is None:
            return self.lm_head(hidden_states[:, kept])
        modules = self.get_input_embeddings(), self.lm_head
        return self.copy_head.predict(hidden_states, kept, past, *modules, self.config.vocab_size, **call)

    def _has_library_loss(self) -> bool:
        """Return whether neither the user nor a subclass has another loss, or other logits."""
        own = type(self)
        return (
            library_loss(self) is ForCausalLMLoss
            and own.loss_function is SeqMixHead.loss_function
            and own.compute_logits is SeqMixForCausalLM.compute_logits
        )

    def _copying_loss(
        self,
        hidden_states: Tensor,
        past: int | Tensor,
        call: dict[str, Any],
        *,
        labels: Tensor | None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = IGNORED_LABEL,
        **_: Any,
    ) -> Tensor:
        """Compute what the library's loss is of the logits, without the logits.

        loss = - sum over counted positions of log p(label) / their number, or `num_items_in_batch`; p of `CopyHead`.

        Args:
            hidden_states: (batch, length, hidden_size), what the backbone returned.
            past: how many positions the cache held before this call.
            call: arguments of `CopyHead.predict`.
            labels: (batch, length), shifted here.
            shift_labels: (batch, length), shifted already.
            num_items_in_batch: what the sum is divided by, where a batch is accumulated from several.
            ignore_index: the label that is not counted.

        Raises:
            ValueError: `shift_labels` has another shape.
        """
        assert self.copy_head is not None
        if shift_labels is None:
            assert labels is not None
            shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[:, 1:]
        if shift_labels.shape != hidden_states.shape[:2]:
            raise ValueError(
                f"shift_labels has shape {tuple(shift_labels.shape)}; with skip_logits it must be that of the input, "
                f"{tuple(hidden_states.shape[:2])}. Give a label for each position, -100 where none counts."
            )
        shift_labels = shift_labels.to(hidden_states.device)
        counted = shift_labels != ignore_index
        log_p = self.copy_head.predict(
            hidden_states,
            slice(None),
            past,
            self.get_input_embeddings(),
            self.lm_head,
            self.config.vocab_size,
            targets=torch.where(counted, shift_labels, 0),
            **call,
        )
        number = counted.sum() if num_items_in_batch is None else num_items_in_batch
        if isinstance(number, Tensor):
            number = number.to(log_p.device)
        return -torch.where(counted, log_p, 0).sum() / number


def _without_first_after_pads(labels: Any, attention_mask: Any) -> Any:
    """Ignore the label of a token before which there are pads alone: the outputs at these say nothing.

    A pad after real tokens has the output of the last of them, by which the next token is predicted as it should be.
    """
    if not (isinstance(labels, Tensor) and isinstance(attention_mask, Tensor)) or attention_mask.dim() != 2:
        return labels
    length = labels.shape[-1]
    if labels.dim() != 2 or not 1 < length <= attention_mask.shape[1]:
        return labels
    seen = (attention_mask != 0).cumsum(dim=1)[:, -length:] > 0  # (batch, length): a real token here or before
    is_first = nn.functional.pad(~seen[:, :-1], (1, 0))
    return labels.masked_fill(is_first.to(labels.device), IGNORED_LABEL)
