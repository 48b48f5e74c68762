"""What all heads share; `language_modeling.py`, `classification.py` and `vision.py` have the heads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .auxiliary_loss import add_auxiliary, sum_auxiliary
from .backbone import SeqMixModel
from .configuration import SeqMixConfig
from .pretrained import SeqMixPreTrainedModel

__all__ = ["SeqMixHead", "library_loss"]

IGNORED = -100

# Not `super().loss_function`, which compiled graphs cannot follow.
library_loss = vars(PreTrainedModel)["loss_function"].fget


def explained(loss_function: Callable[..., Tensor], num_classes: int) -> Callable[..., Tensor]:
    """Return a loss that says which labels are allowed where torch says that an index is out of bounds.

    Labels on accelerators are not looked at: there torch ends the process.

    Args:
        loss_function: takes `labels` or `shift_labels`, of any shape, by name; gives a loss, ().
        num_classes: how many classes there are.

    Raises:
        ValueError: by the function returned, for labels below 0, other than -100, or of `num_classes` and more.
    """

    def compute(*args: Any, **kwargs: Any) -> Tensor:
        try:
            return loss_function(*args, **kwargs)
        except (IndexError, RuntimeError) as error:
            labels = kwargs.get("labels") if kwargs.get("labels") is not None else kwargs.get("shift_labels")
            if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.device.type != "cpu":
                raise
            scored = labels[labels != IGNORED]
            if not len(scored) or (scored.min() >= 0 and scored.max() < num_classes):
                raise
            raise ValueError(
                f"labels run from {int(scored.min())} to {int(scored.max())}; allowed are 0 to {num_classes - 1}, and "
                f"{IGNORED} for what is not scored. Set num_labels, or look whether the tokenizer is the model's."
            ) from error

    return compute


class SeqMixHead(SeqMixPreTrainedModel):
    """What all heads share: a backbone under the attribute `model`, of the class `base_model_class`."""

    base_model_class: type[SeqMixModel] = SeqMixModel
    shifts_labels = False

    def __init__(self, config: SeqMixConfig) -> None:
        super().__init__(config)
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
