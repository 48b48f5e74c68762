"""The heads that classify sequences and tokens, and the one that finds answers."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    QuestionAnsweringModelOutput,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)

from ..._compat import can_return_tuple
from ..._labels import IGNORED_LABEL
from ..configuration import SeqMixConfig
from .base import SeqMixHead, check_labels
from .pooling import ClassificationHead, number_of_labels, pool

__all__ = [
    "SeqMixClassifier",
    "SeqMixForQuestionAnswering",
    "SeqMixForSequenceClassification",
    "SeqMixForTokenClassification",
]


class SeqMixClassifier(SeqMixHead):
    """What classifiers and regressors of whole inputs share: the head on the pooled vector, and the loss."""

    def __init__(self, config: SeqMixConfig) -> None:
        super().__init__(config)
        self.num_labels = number_of_labels(config)
        self.classifier = ClassificationHead(config)
        self.post_init()

    def _loss(
        self, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None, **kwargs: Any
    ) -> Tensor:
        check_labels(labels)
        problem = self.config.problem_type
        several = labels.is_floating_point() or (labels.dtype == torch.bool and labels.shape == logits.shape)
        if problem is None and (self.num_labels == 1 or several):
            problem = "regression" if self.num_labels == 1 else "multi_label_classification"
        if problem in ("regression", "multi_label_classification"):
            labels = _fitting(labels, logits)
            dtype = torch.promote_types(logits.dtype, torch.float32)  # half precision would round the labels
            loss = self.loss_function(labels=labels.to(dtype), pooled_logits=logits.to(dtype), config=self.config)
            if num_items_in_batch is None:
                return loss
            # The library's loss is a mean over this batch's numbers; accumulation wants the share of all of them.
            return loss * labels.numel() / torch.as_tensor(num_items_in_batch, device=loss.device)
        return self.loss_function(
            labels=labels,
            pooled_logits=logits,
            config=self.config,
            num_items_in_batch=num_items_in_batch,
            **kwargs,
        )


class SeqMixForSequenceClassification(SeqMixClassifier):
    """Classifier or regressor of whole sequences, or, with `num_segments` 2, of pairs of documents."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutputWithPast:
        """Classify sequences.

        Args:
            input_ids: (batch, length), as for the backbone; with `num_segments` 2, (batch, 2, length).
            attention_mask: as for the backbone, with `num_segments` 2 of the shape of `input_ids`. Without a mask
                `classifier_pooling` "last" takes the last token that is not `pad_token_id`, as decoders of the
                library do; everything else takes pads for tokens then.
            position_ids: the same.
            past_key_values: as for the backbone.
            inputs_embeds: instead of `input_ids`, with hidden_size as one more dimension.
            use_cache: whether to return a cache; not by default.
            labels: (batch,) class ids; (batch, num_labels) zeros and ones for several labels; numbers for a
                regression.
            **kwargs: passed on; `num_items_in_batch` reaches the loss.

        Returns:
            `loss`, `logits` (batch, num_labels), `past_key_values`, `hidden_states`.

        Raises:
            TypeError: for labels that are no tensor.
            ValueError: for labels that do not fit the logits or are no class.
        """
        segments = self.config.num_segments
        if segments > 1:
            input_ids, attention_mask, inputs_embeds, position_ids = (
                None if x is None else self._flatten_segments(x)
                for x in (input_ids, attention_mask, inputs_embeds, position_ids)
            )
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            inputs_embeds,
            use_cache=bool(use_cache),
            return_dict=True,
            **kwargs,
        )
        pooling, pad = self.config.classifier_pooling, self.config.pad_token_id
        if attention_mask is None and pooling == "last" and input_ids is not None and pad is not None:
            attention_mask = input_ids != pad
        logits = self.classifier(pool(outputs.last_hidden_state, attention_mask, pooling))
        loss = None if labels is None else self._loss(logits, labels, **kwargs)
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _flatten_segments(self, x: Tensor) -> Tensor:
        if x.ndim < 3 or x.shape[1] != self.config.num_segments:
            raise ValueError(
                f"num_segments is {self.config.num_segments}, so inputs must be (batch, {self.config.num_segments}, "
                f"length), got {tuple(x.shape)}."
            )
        return x.flatten(0, 1)


class SeqMixForTokenClassification(SeqMixHead):
    """Classifier of each token, or, with `problem_type` "regression", one vector of `num_labels` numbers a token.

    Continuous inputs are given as `inputs_embeds`.
    """

    def _check_config(self, config: SeqMixConfig) -> None:
        super()._check_config(config)
        if config.problem_type == "multi_label_classification":
            raise ValueError(
                f"problem_type is 'multi_label_classification', but {type(self).__name__} gives one class a token: "
                "leave it out, or use 'single_label_classification' or 'regression'."
            )

    def __init__(self, config: SeqMixConfig) -> None:
        super().__init__(config)
        assert config.classifier_dropout is not None
        self.num_labels = number_of_labels(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Classify tokens.

        Args:
            input_ids: (batch, length), as for the backbone.
            attention_mask: as for the backbone.
            position_ids: as for the backbone.
            inputs_embeds: (batch, length, hidden_size), as for the backbone.
            labels: (batch, length) class ids; -100 is ignored. For a regression, numbers, (batch, length, num_labels)
                or, for one label, (batch, length); pads and -100 are ignored. With the `Trainer` pads need -100, or
                the loss is divided by their number, too.
            **kwargs: passed on; `num_items_in_batch` reaches the loss.

        Returns:
            `loss`, `logits` (batch, length, num_labels), `hidden_states`. The loss of a regression is the mean square
            error over real tokens and labels, in float32 at least.

        Raises:
            TypeError: for labels that are no tensor.
            ValueError: for labels that do not fit the logits or are no class.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **_without_cache(kwargs),
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None and self.config.problem_type == "regression":
            loss = self._with_auxiliary(_square_error)(
                logits=logits, labels=_fitting(labels, logits), attention_mask=attention_mask, **kwargs
            )
        elif labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


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

        Args:
            input_ids: (batch, length), as for the backbone.
            attention_mask: as for the backbone.
            position_ids: as for the backbone.
            inputs_embeds: (batch, length, hidden_size), as for the backbone.
            start_positions: (batch,) positions; those outside the sequence and those of pads are ignored.
            end_positions: the same for the last token of the answer.
            **kwargs: passed on to the loss.

        Returns:
            `loss`, `start_logits` and `end_logits` (batch, length), `hidden_states`.

        Raises:
            TypeError: for positions that are no tensor.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **_without_cache(kwargs),
        )
        scores = self.qa_outputs(outputs.last_hidden_state)
        pads = None if attention_mask is None else attention_mask.to(scores.device) == 0  # (batch, length)
        lowest = torch.finfo(scores.dtype).min
        logits = scores if pads is None else scores.masked_fill(pads.unsqueeze(-1), lowest)
        start_logits, end_logits = logits.unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            check_labels(start_positions, "start_positions")
            check_labels(end_positions, "end_positions")
            length = start_logits.shape[1]
            positions = [_inside(p.long(), length, pads) for p in (start_positions, end_positions)]
            loss = self.loss_function(start_logits, end_logits, *positions, **kwargs)
            # A mean over nothing is no number.
            inside = [(p < length).any().to(loss.device) for p in positions]
            loss = torch.where(inside[0] & inside[1], loss, 0 * scores.sum())
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _inside(positions: Tensor, length: int, pads: Tensor | None) -> Tensor:
    """Return positions, with `length`, which the library ignores, for those of no real token; it takes -1 for 0."""
    positions = positions.masked_fill((positions < 0) | (positions > length), length)
    if pads is None:
        return positions
    is_pad = nn.functional.pad(pads, (0, 1)).to(positions.device).gather(1, positions.view(-1, 1))
    return positions.masked_fill(is_pad.view_as(positions), length)


def _fitting(labels: Tensor, logits: Tensor) -> Tensor:
    """Return labels in the shape of the logits, for one label a row or token in any shape of as many numbers."""
    check_labels(labels)
    if logits.shape[-1] == 1 and labels.numel() == logits.numel():
        labels = labels.reshape(logits.shape)
    if labels.shape != logits.shape:
        raise ValueError(f"labels have shape {tuple(labels.shape)}, but the model returns {tuple(logits.shape)}.")
    return labels


def _square_error(
    *,
    logits: Tensor,
    labels: Tensor,
    attention_mask: Tensor | None,
    num_items_in_batch: Tensor | int | None = None,
    **_: Any,
) -> Tensor:
    """Return the mean square error over real tokens, or, of a part of a larger batch, its share of the mean.

    Labels of -100 count nowhere. The `Trainer` counts all other labels for `num_items_in_batch`, those of pads, too,
    so pads must have the label -100 there.
    """
    dtype, device = torch.promote_types(logits.dtype, torch.float32), logits.device
    labels = labels.to(device, dtype)
    counted = labels != IGNORED_LABEL
    if attention_mask is not None:
        counted = counted & (attention_mask.to(device) != 0).unsqueeze(-1)
    errors, count = (logits.to(dtype) - labels).masked_fill(~counted, 0), counted.sum().clamp(min=1)
    if num_items_in_batch is not None:
        count = torch.as_tensor(num_items_in_batch, device=device)
    return errors.square().sum() / count


def _without_cache(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Heads that return no cache ask the backbone to build none."""
    return {**kwargs, "use_cache": False}
