"""What all heads share; `language_modeling.py`, `classification.py` and `vision.py` have the heads."""

from collections.abc import Callable

from torch import Tensor
from transformers import PreTrainedModel

from .auxiliary_loss import add_auxiliary, sum_auxiliary
from .backbone import SeqMixModel
from .configuration import SeqMixConfig
from .pretrained import SeqMixPreTrainedModel

__all__ = ["SeqMixHead", "library_loss"]

# Not `super().loss_function`, which compiled graphs cannot follow.
library_loss = vars(PreTrainedModel)["loss_function"].fget


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
    def loss_function(self) -> Callable[..., Tensor]:
        """The library's loss, and in training what the mixers add: losses of evaluation stay comparable."""
        return self._with_auxiliary(library_loss(self))

    @loss_function.setter
    def loss_function(self, value: Callable[..., Tensor]) -> None:
        self._loss_function = value

    def _with_auxiliary(self, loss_function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Add to a loss, in training, what the mixers add."""
        auxiliary = self.auxiliary_loss() if self.training else None
        return loss_function if auxiliary is None else add_auxiliary(loss_function, auxiliary, self.shifts_labels)

    def _check_config(self, config: SeqMixConfig) -> None:
        super()._check_config(config)
        if config.image_shape is not None:
            raise ValueError(
                f"image_size is set, but {type(self).__name__} reads text: leave it out, or use the head for image "
                "classification."
            )
