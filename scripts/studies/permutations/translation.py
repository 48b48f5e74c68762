"""The task `translation` of permutation.py: models that translate."""

import tempfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import datasets
import evaluate
import torch
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
)
from vision.training import training_arguments

from hf_seqmix._labels import IGNORED_LABEL
from hf_seqmix.data.labeled import load_labeled

from .task import Task, first_line

__all__ = ["TranslationTask"]

_ROWS_AT_ONCE = 16


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
            raise ValueError(f"the tokenizer of {self.name!r} could not be loaded: {first_line(error)}") from error

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
                f"the metric {self.arguments.metric!r} could not be loaded: {first_line(error)} `evaluate` has "
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
