"""The masked language model, with the head of RoBERTa."""

from typing import Any

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import MaskedLMOutput

from ..._compat import can_return_tuple
from ..configuration import SeqMixConfig
from .base import SeqMixHead

__all__ = ["SeqMixForMaskedLM"]


class MaskedLMTransform(nn.Module):
    """What stands before the decoder of a masked language model: N(gelu(x W + b)), N a LayerNorm (RoBERTa's head)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.activation = ACT2FN["gelu"]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Map (batch, length, hidden_size) to the same shape."""
        return self.norm(self.activation(self.dense(hidden_states)))


class SeqMixForMaskedLM(SeqMixHead):
    """Masked language model: the logits at each position are for the token that was there."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"transform.dense": "colwise_gather_output", "lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: SeqMixConfig) -> None:
        super().__init__(config)
        self.transform = MaskedLMTransform(config.hidden_size)
        self.lm_head: nn.Linear = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _check_config(self, config: SeqMixConfig) -> None:
        super()._check_config(config)
        if config.is_causal:
            raise ValueError(
                f"is_causal is True, but {type(self).__name__} needs a bidirectional model: set is_causal=False, or "
                "use the causal language model."
            )

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Predict the tokens behind the masks.

        Args:
            input_ids: (batch, length), as for the backbone.
            attention_mask: as for the backbone.
            position_ids: as for the backbone.
            inputs_embeds: (batch, length, hidden_size), as for the backbone.
            labels: (batch, length) token ids; -100 is ignored.
            **kwargs: passed on; `num_items_in_batch` reaches the loss.

        Returns:
            `loss`, `logits` (batch, length, vocab_size), `hidden_states`.
        """
        outputs = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, return_dict=True, **kwargs
        )
        logits = self.lm_head(self.transform(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
