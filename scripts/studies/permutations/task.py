"""What a task of permutation.py is: a trained model, its data and its scores."""

import argparse
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from vision.training import Training

from hf_seqmix.analysis.token_order import first_to_end
from hf_seqmix.training.environment import file_digest, portable_path

__all__ = ["Task", "first_line"]


def first_line(error: Exception) -> str:
    """Return the first line of what a library says, as a sentence."""
    return f"{(str(error) or type(error).__name__).splitlines()[0].rstrip('.')}."


class Task(ABC):
    """A trained model, its data and its scores. Nothing is loaded before it is needed.

    Args:
        name: of the model on the Hub, or its folder.
        arguments: of permutation.py.
        training: of the model on the training split.
    """

    auto: Any
    """The class of the library that loads the model."""

    def __init__(self, name: str, arguments: argparse.Namespace, training: Training) -> None:
        self.name = name
        self.arguments = arguments
        self.training = training

    @property
    def data(self) -> dict[str, Any]:
        """What the scores depend on, beside the model and its training, for the key of a run."""
        data: dict[str, Any] = {split: getattr(self.arguments, f"{split}_rows") for split in ("train", "test")}
        files = {split: getattr(self.arguments, f"{split}_file") for split in ("train", "test")}
        if not any(files.values()):
            return data | {"dataset": self.arguments.dataset}
        found = {split: path for split, path in files.items() if path is not None and path.is_file()}
        return data | {
            f"{split}_file": {"path": portable_path(str(path)), "digest": file_digest(path)}
            for split, path in found.items()
        }

    @property
    @abstractmethod
    def source(self) -> str:
        """What the data is, in words."""

    def load(self) -> PreTrainedModel:
        """Return a fresh copy of the model.

        Raises:
            ValueError: it cannot be loaded.
        """
        try:
            return self.auto.from_pretrained(self.name, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"the model {self.name!r} could not be loaded: {first_line(error)} Where there is no network, give a "
                "folder."
            ) from error

    def order(self, length: int) -> Tensor:
        """Return the order of so many tokens; a text of at most as many as are moved stays as it is."""
        return first_to_end(length, self.arguments.moved)

    @abstractmethod
    def train(self, model: PreTrainedModel, seed: int) -> None:
        """Train a model on."""

    @abstractmethod
    def score(self, model: PreTrainedModel) -> dict[str, float]:
        """Return the scores of a model on held-out rows."""
