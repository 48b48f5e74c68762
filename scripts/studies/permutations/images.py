"""The task `images` of permutation.py: classifiers of images."""

import dataclasses
from functools import cached_property

import torch
from torch import Tensor
from transformers import AutoModelForImageClassification, PreTrainedModel
from vision.training import Images, processor_of, read_images, score, train

from hf_seqmix.analysis.token_order import permuted_tokens

from .task import Task

__all__ = ["ImageTask"]


class ImageTask(Task):
    """Accuracy of a classifier of images, of this package or of the library."""

    auto = AutoModelForImageClassification

    @property
    def source(self) -> str:
        """What the data is, in words."""
        return self._splits["test"].source

    def order(self, length: int) -> Tensor:
        """Return the order of so many patches.

        Raises:
            ValueError: all of them would be moved, which changes nothing.
        """
        if self.arguments.moved >= length:
            raise ValueError(
                f"--moved is {self.arguments.moved}, but {self.name} reads {length} patches, so their order would "
                f"stay as it is; give at most {length - 1}."
            )
        return super().order(length)

    @cached_property
    def _splits(self) -> dict[str, Images]:
        model = self.load()
        config = model.config
        splits = read_images(self.arguments, processor_of(self.name, config))
        if config.num_labels != len(splits["train"].names):
            raise ValueError(
                f"{self.name} tells {config.num_labels} classes apart, but the data has "
                f"{len(splits['train'].names)}: give a model that was trained on these classes."
            )
        known = tuple(str(name) for _, name in sorted((config.id2label or {}).items()))
        splits = {split: self._as_the_head_has_them(images, known) for split, images in splits.items()}
        with torch.no_grad(), permuted_tokens(model, self.order):  # before anything is scored
            model(pixel_values=splits["test"].pixel_values[:1])
        return splits

    def _as_the_head_has_them(self, images: Images, known: tuple[str, ...]) -> Images:
        """Return images with the class ids of the model, whose classes may stand in another order than the data's.

        Raises:
            ValueError: both name their classes, and the names differ.
        """
        numbers = tuple(map(str, range(len(known))))
        if images.names == known or images.names == numbers or known == tuple(f"LABEL_{each}" for each in numbers):
            return images
        if set(images.names) != set(known):
            raise ValueError(
                f"{self.name} tells {', '.join(known)} apart, but the data has {', '.join(images.names)}: give a "
                "model that was trained on these classes, or name them as the model does."
            )
        places = torch.tensor([known.index(name) for name in images.names])
        return dataclasses.replace(images, labels=places[images.labels], names=known)

    def train(self, model: PreTrainedModel, seed: int) -> None:
        """Train a model on."""
        train(model, self._splits["train"], self.training, seed)

    def score(self, model: PreTrainedModel) -> dict[str, float]:
        """Return accuracy and mean cross-entropy (nats)."""
        found = score(model, self._splits["test"])
        return {"accuracy": 1 - found["error"], "loss": found["loss"]}
