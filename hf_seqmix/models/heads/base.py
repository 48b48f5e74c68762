"""What all heads share; the files beside this one are named for the heads that they have."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING

from ..._labels import IGNORED_LABEL
from ...ops.packing import packed_sequence_ids
from ..backbone import SeqMixModel
from ..configuration import SeqMixConfig
from ..inputs import check_tensors
from ..pretrained import SeqMixPreTrainedModel
from .auxiliary_loss import add_auxiliary, sum_auxiliary

__all__ = ["SeqMixHead", "library_loss"]

# Not `super().loss_function`, which compiled graphs cannot follow.
library_loss = vars(PreTrainedModel)["loss_function"].fget


def explained(loss_function: Callable[..., Tensor], num_classes: int) -> Callable[..., Tensor]:
    """Return a loss that takes whole numbers of any dtype, and says which labels are allowed where torch refuses some.

    Labels on accelerators are not looked at: there torch ends the process.

    Args:
        loss_function: takes `labels` or `shift_labels`, of any shape, by name, as contiguous 64-bit integers where
            they are no floats; gives a loss, ().
        num_classes: how many classes there are.

    Raises:
        TypeError: by the function returned, for labels that are no tensor, and numbers where ids of classes belong.
        ValueError: by the function returned, for labels below 0, other than -100, or of `num_classes` and more, and
            for another number of labels than of predictions.
    """

    def compute(*args: Any, **kwargs: Any) -> Tensor:
        given = {name: kwargs[name] for name in ("labels", "shift_labels") if kwargs.get(name) is not None}
        for name, labels in given.items():
            check_tensors(**{name: labels})
            kwargs[name] = labels if labels.is_floating_point() else labels.long().contiguous()
        try:
            return loss_function(*args, **kwargs)
        except (IndexError, RuntimeError, ValueError) as error:
            if not given:
                raise
            name, labels = next(iter(given.items()))
            logits = kwargs.get("logits", kwargs.get("pooled_logits"))
            if isinstance(logits, Tensor) and labels.numel() != logits.numel() // logits.shape[-1]:
                several = "; or, for several classes at once, zeros and ones as floating-point numbers"
                raise ValueError(
                    f"{name} have shape {tuple(labels.shape)}, but the model returns {tuple(logits.shape)}: give one "
                    f"class id for each prediction, {tuple(logits.shape[:-1])}"
                    f"{several if labels.shape == logits.shape else ''}."
                ) from error
            if labels.is_floating_point():
                if not isinstance(logits, Tensor) or labels.shape == logits.shape:
                    raise
                raise TypeError(
                    f"{name} have {labels.dtype}, but ids of classes are integers: give {name}.long(), or, for "
                    "numbers that are to be met, set problem_type='regression'."
                ) from error
            if labels.device.type != "cpu":
                raise
            scored = labels[labels != IGNORED_LABEL]
            if not len(scored) or (scored.min() >= 0 and scored.max() < num_classes):
                raise
            raise ValueError(
                f"labels run from {int(scored.min())} to {int(scored.max())}; allowed are 0 to {num_classes - 1}, "
                f"and {IGNORED_LABEL} for what is not scored. Set num_labels, or look whether the tokenizer is the "
                "model's."
            ) from error

    return compute


def check_one_sequence_a_row(
    head: str, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor | None, given: Mapping[str, Any]
) -> None:
    """Refuse packed rows in a head that has one answer for a row; compiled graphs do not look.

    Args:
        head: its name.
        hidden_states: (batch, length, hidden_size).
        attention_mask: as for the backbone.
        position_ids: as for the backbone.
        given: further keyword arguments of the call, among which `cu_seq_lens_q` and `seq_idx` may be.

    Raises:
        ValueError: real tokens of a row belong to several sequences.
    """
    if torch.compiler.is_compiling():
        return
    batch, length, _ = hidden_states.shape
    mask = attention_mask[:, -length:] != 0 if isinstance(attention_mask, Tensor) else None
    boundaries = given.get("cu_seq_lens_q"), given.get("seq_idx")
    ids = packed_sequence_ids(mask, batch, length, position_ids, *boundaries)
    if ids is None or length == 0:
        return
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    lowest, highest = ids.masked_fill(~real, ids.max()).amin(dim=1), ids.masked_fill(~real, ids.min()).amax(dim=1)
    if bool((real.any(dim=1) & (lowest < highest)).any()):
        raise ValueError(
            f"a row holds several packed sequences (restarting position_ids, cu_seq_lens_q or seq_idx), and {head} "
            "has one answer for a row: give each sequence a row of its own, padded, with an attention_mask."
        )


def without_cache(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Heads that return no cache ask the backbone to build none."""
    return {**kwargs, "use_cache": False}


class SeqMixHead(SeqMixPreTrainedModel):
    """What all heads share: a backbone under the attribute `model`, of the class `base_model_class`."""

    base_model_class: type[SeqMixModel] = SeqMixModel
    shifts_labels = False

    def __init__(self, config: SeqMixConfig) -> None:
        super().__init__(config)
        if self.loss_type not in LOSS_MAPPING:
            # The library looks for a kind in the name of the class, and without one takes the causal loss.
            kinds = (base.__name__.removeprefix("SeqMix") for base in type(self).__mro__)
            self.loss_type = next((kind for kind in kinds if kind in LOSS_MAPPING), self.loss_type)
        self.model: SeqMixModel = self.base_model_class(config)

    def auxiliary_loss(self) -> Tensor | None:
        """Return what the mixers add to the loss in training; None for nothing."""
        return sum_auxiliary(layer.mixer for layer in self.model.layers)

    @property
    def num_classes(self) -> int:
        """How many classes labels may name."""
        return int(getattr(self, "num_labels", self.config.vocab_size))

    @property
    def loss_function(self) -> Callable[..., Tensor]:
        """The library's loss, and in training what the mixers add: losses of evaluation stay comparable."""
        return self._with_auxiliary(library_loss(self))

    @loss_function.setter
    def loss_function(self, value: Callable[..., Tensor]) -> None:
        self._loss_function = value

    def _with_auxiliary(self, loss_function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Add to a loss, in training, what the mixers add; say which labels there are where some are no class."""
        auxiliary = self.auxiliary_loss() if self.training else None
        if auxiliary is not None:
            loss_function = add_auxiliary(loss_function, auxiliary, self.shifts_labels)
        return loss_function if torch.compiler.is_compiling() else explained(loss_function, self.num_classes)

    def _check_config(self, config: SeqMixConfig) -> None:
        super()._check_config(config)
        if config.image_shape is not None:
            raise ValueError(
                f"image_size is set, but {type(self).__name__} reads text: leave it out, or use the head for image "
                "classification."
            )
