"""The head that finds answers in a text."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from ..._compat import can_return_tuple
from ..configuration import SeqMixConfig
from ..inputs import check_tensors
from .base import SeqMixHead, check_one_sequence_a_row, without_cache

__all__ = ["SeqMixForQuestionAnswering"]


class SeqMixForQuestionAnswering(SeqMixHead):
    """Extractive question answering: scores for the first and the last token of the answer."""

    def __init__(self, config: SeqMixConfig) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Score each token as the beginning and as the end of the answer; a pad has the lowest score there is.

        With hidden states $h_t$ the scores are $s_t = w_s h_t + b_s$ and $e_t = w_e h_t + b_e$. The loss is the mean
        of two cross entropies, of the softmax of $s$ at the first token of the answer and of $e$ at the last, both
        over the real tokens of a row. The library's heads let pads into the softmax.

        Args:
            input_ids: (batch, length), as for the backbone.
            attention_mask: as for the backbone.
            position_ids: as for the backbone.
            inputs_embeds: (batch, length, hidden_size), as for the backbone.
            start_positions: (batch,) positions; those outside the sequence and those of pads are ignored. A
                term of the loss for which none is left is 0.
            end_positions: the same for the last token of the answer.
            **kwargs: passed on to the loss.

        Returns:
            `loss`, `start_logits` and `end_logits` (batch, length), `hidden_states`.

        Raises:
            TypeError: for positions that are no tensor.
            ValueError: for packed rows, and for another number of positions than of rows.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **without_cache(kwargs),
        )
        check_one_sequence_a_row(type(self).__name__, outputs.last_hidden_state, attention_mask, position_ids, kwargs)
        scores = self.qa_outputs(outputs.last_hidden_state)
        pads = None if attention_mask is None else attention_mask.to(scores.device) == 0  # (batch, length)
        lowest = torch.finfo(scores.dtype).min
        logits = scores if pads is None else scores.masked_fill(pads.unsqueeze(-1), lowest)
        start_logits, end_logits = logits.unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            _check_positions(len(scores), start_positions=start_positions, end_positions=end_positions)
            length = start_logits.shape[1]
            positions = [_inside(p.long(), length, pads) for p in (start_positions, end_positions)]
            # A mean over nothing is no number: each term by itself, the mean of itself and itself.
            none = 0 * scores.sum()
            terms = [
                torch.where((p < length).any().to(none.device), self.loss_function(x, x, p, p, **kwargs), none)
                for x, p in zip((start_logits, end_logits), positions, strict=True)
            ]
            loss = (terms[0] + terms[1]) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _check_positions(batch: int, **given: Tensor) -> None:
    """Refuse, by the names that are given, what is not one position for each row; graphs do not look."""
    check_tensors(**given)
    for name, positions in given.items():
        if not torch.compiler.is_compiling() and positions.shape not in ((batch,), (batch, 1)):
            raise ValueError(
                f"{name} have shape {tuple(positions.shape)}, but there are {batch} rows: give one position for each, "
                f"({batch},)."
            )


def _inside(positions: Tensor, length: int, pads: Tensor | None) -> Tensor:
    """Return positions, with `length`, which the library ignores, for those of no real token; it takes -1 for 0."""
    positions = positions.masked_fill((positions < 0) | (positions > length), length)
    if pads is None:
        return positions
    is_pad = nn.functional.pad(pads, (0, 1)).to(positions.device).gather(1, positions.view(-1, 1))
    return positions.masked_fill(is_pad.view_as(positions), length)
