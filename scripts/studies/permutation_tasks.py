"""What permutation.py trains on and scores: classifiers of images, and models that translate."""

import argparse
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import datasets
import evaluate
import torch
import vision_training
from torch import Tensor
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
)
from vision_training import Images, Training, processor_of, read_images, score, training_arguments

from hf_seqmix._labels import IGNORED_LABEL
from hf_seqmix.analysis.token_order import first_to_end, permuted_tokens
from hf_seqmix.data.labeled import load_labeled
from hf_seqmix.training.environment import file_digest, portable_path

__all__ = ["ImageTask", "Task", "TranslationTask"]

_ROWS_AT_ONCE = 16


def _short(error: Exception) -> str:
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
                f"the model {self.name!r} could not be loaded: {_short(error)} Where there is no network, give a "
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
        with torch.no_grad(), permuted_tokens(model, self.order):  # before anything is scored
            model(pixel_values=splits["test"].pixel_values[:1])
        return splits

    def train(self, model: PreTrainedModel, seed: int) -> None:
        """Train a model on."""
        vision_training.train(model, self._splits["train"], self.training, seed)

    def score(self, model: PreTrainedModel) -> dict[str, float]:
        """Return accuracy and mean cross-entropy (nats)."""
        found = score(model, self._splits["test"])
        return {"accuracy": 1 - found["error"], "loss": found["loss"]}


class TranslationTask(Task):
    """BLEU and the loss of a model that translates, by a metric of `evaluate` ("none" for the loss alone)."""

    auto = AutoModelForSeq2SeqLM

    @property
    def data(self) -> dict[str, Any]:
        """What the scores depend on, beside the model and its training, for the key of a run."""
        names = ("languages", "prefix", "max_tokens", "num_beams", "metric")
        return super().data | {name: getattr(self.arguments, name) for name in names}

    @property
    def source(self) -> str:
        """What the data is, in words."""
        files = self.arguments.test_file
        return f"{' to '.join(self.arguments.languages)}, {self.arguments.dataset if files is None else files.name}"

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        try:
            return AutoTokenizer.from_pretrained(self.name)
        except (OSError, ValueError, ImportError) as error:
            raise ValueError(f"the tokenizer of {self.name!r} could not be loaded: {_short(error)}") from error

    @cached_property
    def _pairs(self) -> dict[str, list[tuple[str, str]]]:
        """Texts and translations of each split."""
        files: dict[str, Any] = {split: getattr(self.arguments, f"{split}_file") for split in ("train", "test")}
        if any(files.values()) and not all(files.values()):
            raise ValueError("give both --train-file and --test-file, or neither for the data set of the Hub.")
        try:
            tables = load_labeled(files if all(files.values()) else self.arguments.dataset)
        except ValueError as error:
            raise ValueError(f"{error} Where there is no network, give --train-file and --test-file.") from error
        pairs = {}
        first, second = self.arguments.languages
        for split in files:
            table = tables[split].take(min(getattr(self.arguments, f"{split}_rows"), len(tables[split])))
            rows: list[Mapping[str, str]] = (
                table["translation"] if "translation" in table.column_names else list(table)
            )
            if not {first, second} <= rows[0].keys():
                raise ValueError(
                    f"the {split} data has the columns {', '.join(rows[0])}, but --languages are {first} and {second}."
                )
            pairs[split] = [(self.arguments.prefix + row[first], row[second]) for row in rows]
        return pairs

    @cached_property
    def _metric(self) -> Any:
        if self.arguments.metric == "none":
            return None
        try:
            return evaluate.load(self.arguments.metric)
        except (OSError, ImportError, ValueError) as error:
            raise ValueError(
                f"the metric {self.arguments.metric!r} could not be loaded: {_short(error)} `evaluate` has "
                "sacrebleu of the Hub, which needs the package of that name (pip install sacrebleu). Where there is "
                "no network, give the folder of a metric, or --metric none for the loss alone."
            ) from error

    def _rows(self, split: str) -> list[dict[str, Any]]:
        cut: dict[str, Any] = {"truncation": True, "max_length": self.arguments.max_tokens}
        texts, targets = zip(*self._pairs[split], strict=True)
        inputs, labels = self._tokenizer(list(texts), **cut), self._tokenizer(text_target=list(targets), **cut)
        columns = (inputs["input_ids"], inputs["attention_mask"], labels["input_ids"])
        names = ("input_ids", "attention_mask", "labels")
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def train(self, model: PreTrainedModel, seed: int) -> None:
        """Train a model on."""
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                model=model,
                args=training_arguments(folder, self.training, seed),
                train_dataset=datasets.Dataset.from_list(self._rows("train")),
                data_collator=DataCollatorForSeq2Seq(self._tokenizer, model),
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()

    @torch.no_grad()
    def score(self, model: PreTrainedModel) -> dict[str, float]:
        """Return BLEU, unless the metric is none, and the mean loss of a target token (nats)."""
        metric = self._metric  # before anything is computed
        generate: Any = model.generate
        model.eval()
        loss, tokens, translations = 0.0, 0, []
        for batch in self._batches(model):
            count = int((batch["labels"] != IGNORED_LABEL).sum())
            loss, tokens = loss + model(**batch).loss.item() * count, tokens + count
            if metric is not None:
                inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
                limits: dict[str, Any] = {
                    "max_new_tokens": self.arguments.max_tokens,
                    "num_beams": self.arguments.num_beams,
                }
                written = generate(**inputs, **limits)
                translations += self._tokenizer.batch_decode(written, skip_special_tokens=True)
        figures = {"loss": loss / tokens}
        if metric is not None:
            references = [[target] for _, target in self._pairs["test"]]
            figures["bleu"] = float(metric.compute(predictions=translations, references=references)["score"])
        return figures

    def _batches(self, model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
        rows, collate = self._rows("test"), DataCollatorForSeq2Seq(self._tokenizer, model)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            batch = collate(rows[start : start + _ROWS_AT_ONCE])
            yield {name: values.to(model.device) for name, values in batch.items()}
