"""The heads that classify sequences and tokens."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)

from ..._compat import CACHE_NAME, cache_given, can_return_tuple
from ..._labels import IGNORED_LABEL
from ...ops.common.dispatch import can_be_read
from ..configuration import SeqMixConfig
from ..inputs import check_tensors
from .base import SeqMixHead, check_one_sequence_a_row, without_cache
from .pooling import ClassificationHead, number_of_labels, pool

__all__ = [
    "SeqMixClassifier",
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
        check_tensors(labels=labels)
        problem = self.config.problem_type
        several = labels.is_floating_point() or (labels.dtype == torch.bool and labels.shape == logits.shape)
        if problem is None and several and self.num_labels > 1 and labels.numel() == len(logits):
            raise TypeError(
                f"labels have {labels.dtype}, but ids of classes are integers: give labels.long(), or, for several "
                f"classes at once, zeros and ones of shape {tuple(logits.shape)}."
            )
        if problem is None and (self.num_labels == 1 or several):
            problem = "regression" if self.num_labels == 1 else "multi_label_classification"
        if problem in ("regression", "multi_label_classification"):
            labels = _fitting(labels, logits)
            if problem != "regression":
                _check_shares(labels)
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
        cache: Any = None,
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
            cache: as for the backbone.
            **kwargs: passed on; `num_items_in_batch` reaches the loss.

        Returns:
            `loss`, `logits` (batch, num_labels), `past_key_values`, `hidden_states`.

        Raises:
            TypeError: for labels that are no tensor, and numbers where ids of classes belong.
            ValueError: for labels that do not fit the logits or are no class, for several labels outside 0 to 1, and
                for packed rows.
        """
        segments = self.config.num_segments
        if segments > 1:
            input_ids = self._flatten_segments("input_ids", input_ids)
            attention_mask = self._flatten_segments("attention_mask", attention_mask)
            position_ids = self._flatten_segments("position_ids", position_ids)
            inputs_embeds = self._flatten_segments("inputs_embeds", inputs_embeds)
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            cache_given(past_key_values, cache),
            inputs_embeds,
            use_cache=bool(use_cache),
            return_dict=True,
            **kwargs,
        )
        check_one_sequence_a_row(type(self).__name__, outputs.last_hidden_state, attention_mask, position_ids, kwargs)
        pooling, pad = self.config.classifier_pooling, self.config.pad_token_id
        if attention_mask is None and pooling == "last" and input_ids is not None and pad is not None:
            attention_mask = input_ids != pad
        logits = self.classifier(pool(outputs.last_hidden_state, attention_mask, pooling))
        loss = None if labels is None else self._loss(logits, labels, **kwargs)
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE_NAME: getattr(outputs, CACHE_NAME)},
        )

    def _flatten_segments(self, name: str, x: Tensor | None) -> Tensor | None:
        """Map (batch, num_segments, length, ...) to (batch x num_segments, length, ...); None stays None."""
        check_tensors(**{name: x})
        if x is None:
            return None
        segments = self.config.num_segments
        if x.ndim < 3 or x.shape[1] != segments:
            raise ValueError(
                f"num_segments is {segments}, so {name} must be (batch, {segments}, length), got {tuple(x.shape)}."
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
            TypeError: for labels that are no tensor, and numbers where ids of classes belong.
            ValueError: for labels that do not fit the logits or are no class.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **without_cache(kwargs),
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


def _fitting(labels: Tensor, logits: Tensor) -> Tensor:
    """Return labels in the shape of the logits, for one label a row or token in any shape of as many numbers."""
    check_tensors(labels=labels)
    if logits.shape[-1] == 1 and labels.numel() == logits.numel():
        labels = labels.reshape(logits.shape)
    if labels.shape != logits.shape:
        raise ValueError(f"labels have shape {tuple(labels.shape)}, but the model returns {tuple(logits.shape)}.")
    return labels


def _check_shares(labels: Tensor) -> None:
    """Refuse labels of several classes outside 0 to 1, for which the loss has no least value; not on accelerators.

    Raises:
        ValueError: a label is below 0, above 1 or not a number.
    """
    if can_be_read(labels) and not bool(((labels >= 0) & (labels <= 1)).all()):
        raise ValueError(
            f"labels run from {labels.min().item():g} to {labels.max().item():g}; of several classes at once each is "
            "0 or 1, or a share between. For other numbers set problem_type='regression'."
        )


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
