"""The head for images."""

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import ImageClassifierOutput

from ..._compat import can_return_tuple
from ..configuration import SeqMixConfig
from .classification import SeqMixClassifier
from .pooling import pool

__all__ = ["SeqMixForImageClassification"]


class SeqMixForImageClassification(SeqMixClassifier):
    """Classifier or regressor of images: patches, blocks, the mean over the patches, a linear layer.

    The mean is that of a bidirectional model; `classifier_pooling` has others.
    """

    main_input_name = "pixel_values"

    def _check_config(self, config: SeqMixConfig) -> None:
        if config.image_shape is None:
            raise ValueError(
                f"image_size is None, but {type(self).__name__} reads images: set image_size, patch_size and "
                "num_channels."
            )

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput:
        """Classify images.

        Args:
            pixel_values: (batch, num_channels, height, width), as the image processor makes them.
            labels: (batch,) class ids; (batch, num_labels) zeros and ones for several labels; numbers for a
                regression.
            **kwargs: passed on; `num_items_in_batch` reaches the loss.

        Returns:
            `loss`, `logits` (batch, num_labels), `hidden_states`, each (batch, patches, hidden_size).

        Raises:
            TypeError: for labels that are no tensor, and numbers where ids of classes belong.
            ValueError: for labels that do not fit the logits or are no class.
        """
        outputs = self.model(pixel_values=pixel_values, return_dict=True, **kwargs)
        logits = self.classifier(pool(outputs.last_hidden_state, None, self.config.classifier_pooling))
        loss = None if labels is None else self._loss(logits, labels, **kwargs)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
