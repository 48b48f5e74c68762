"""Texts, or pairs of texts, with one label, several labels or a number each."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import datasets
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..tokenization import covered_text
from ..versioned import of_this_version
from .classification import Classification
from .labels import require_columns, require_texts, require_training
from .special_tokens import SpecialTokens, places, to_columns, tokenize

__all__ = ["TEXTS_READ", "WAS_CUT", "SequenceClassification"]

TEXTS_READ = "texts_read"
"""Column of the texts as far as inputs cover them, one or two texts a row."""

WAS_CUT = "was_cut"
"""Column of whether the inputs leave out the end of a text."""


@dataclass(frozen=True, kw_only=True)
class SequenceClassification(Classification):
    """One label, several labels or a number for each text or pair of texts.

    Attributes:
        text_columns: one column, or two for pairs.
        num_segments: 1 where the model reads a pair as one sequence. 2 where the model reads each text of a pair
            alone, as Qin et al. 2023 (arXiv 2305.04749) do on Retrieval of the Long Range Arena.
    """

    text_columns: tuple[str, ...]
    num_segments: int = 1

    @classmethod
    def from_data(
        cls,
        train: datasets.Dataset,
        text_columns: Sequence[str],
        label_columns: Sequence[str],
        problem_type: str | None = None,
    ) -> Self:
        """Return the task that the training split poses; `Classification.read_labels` says which kind.

        Raises:
            ValueError: a column is missing, or the labels make no such task.
        """
        if len(text_columns) not in (1, 2):
            raise ValueError(f"give one text column, or two for pairs; given are {list(text_columns)}.")
        require_training(train, [*text_columns, *label_columns])
        require_texts(train, text_columns, "training")
        return cls(text_columns=tuple(text_columns), **cls.read_labels(train, label_columns, problem_type))

    def read_by(self, config: PreTrainedConfig) -> Self:
        """Return the task as a model of this configuration reads it: pairs as two segments if its `num_segments` is 2.

        Raises:
            ValueError: the model reads pairs, and the task has no pairs.
        """
        segments = getattr(config, "num_segments", 1)
        if segments > 1 and len(self.text_columns) != segments:
            raise ValueError(
                f"num_segments is {segments}: the model reads pairs, so give two text columns; given are "
                f"{', '.join(self.text_columns)}."
            )
        return dataclasses.replace(self, num_segments=segments)

    def texts(self, split: datasets.Dataset) -> Iterator[str]:
        """Yield all texts of the split, to learn a vocabulary from."""
        for column in self.text_columns:
            yield from split[column]

    def encode(
        self,
        split: datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        name: str,
        keep_texts: bool = False,
        mark_cut: bool = False,
    ) -> datasets.Dataset:
        """Return the inputs, and `labels` if the split has labels.

        With two segments, `input_ids` and `attention_mask` hold two lists a row, and `max_length` bounds each list.

        Args:
            split: the examples.
            tokenizer: of the model.
            max_length: of the inputs, in tokens.
            name: of the split.
            keep_texts: whether a column `TEXTS_READ` holds the part of each text that the inputs cover, too.
            mark_cut: whether a column `WAS_CUT` says which rows were too long, too.
        """
        require_columns(split, self.text_columns, name)
        require_texts(split, self.text_columns, name)
        encoded = split.map(
            of_this_version(
                _encode_texts,
                tokenizer=tokenizer,
                special=SpecialTokens.of(tokenizer),
                columns=self.text_columns,
                max_length=max_length,
                apart=self.num_segments > 1,
                keep_texts=keep_texts,
                mark_cut=mark_cut,
            ),
            batched=True,
            remove_columns=split.column_names,
            desc=f"Tokenizing the {name} data",
        )
        return self.add_labels(encoded, split, name)


def _encode_texts(
    batch: dict[str, list[Any]],
    tokenizer: PreTrainedTokenizerBase,
    special: SpecialTokens,
    columns: Sequence[str],
    max_length: int,
    apart: bool,
    keep_texts: bool,
    mark_cut: bool,
) -> dict[str, list[Any]]:
    parts = [tokenize(tokenizer, batch[column]) for column in columns]
    read: dict[str, list[Any]] = {}
    if keep_texts or mark_cut:
        sizes = [[len(ids) for ids in row] for row in zip(*parts, strict=True)]
        kept = [_kept(special, of_row, max_length, apart) for of_row in sizes]
    if mark_cut:
        read[WAS_CUT] = [before != after for before, after in zip(sizes, kept, strict=True)]
    if keep_texts:
        texts = zip(*(batch[column] for column in columns), strict=True)
        offsets = zip(*(places(tokenizer, batch[column]) for column in columns), strict=True)
        rows = zip(texts, sizes, kept, offsets, strict=True)
        read[TEXTS_READ] = [list(map(covered_text, *row)) for row in rows]
    if apart:
        segments = [
            to_columns([special.join(ids, None, max_length) for ids in row]) for row in zip(*parts, strict=True)
        ]
        return to_columns(segments) | read
    seconds = parts[1] if len(parts) == 2 else [None] * len(parts[0])
    return to_columns([special.join(a, b, max_length) for a, b in zip(parts[0], seconds, strict=True)]) | read


def _kept(special: SpecialTokens, sizes: list[int], max_length: int, apart: bool) -> list[int]:
    """Return how many tokens of each text of a row the inputs hold."""
    if apart:
        return [special.kept(size, max_length=max_length)[0] for size in sizes]
    return list(special.kept(*sizes, max_length=max_length))[: len(sizes)]
