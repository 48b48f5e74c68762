"""Lists of words with a label for each word."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from ..._labels import IGNORED_LABEL
from ..versioned import of_this_version
from .labels import id_of, label_fields, label_names, require_columns, require_training, require_values
from .sequence_classification import WAS_CUT
from .special_tokens import Ids, SpecialTokens, to_columns, tokenize

__all__ = ["TokenClassification"]


@dataclass(frozen=True)
class TokenClassification:
    """One label for each word of a list of words, such as a part of speech; words of the label -100 have none.

    The label of a word is on its last token, because a causal model has seen the whole word only there. Where the last
    word is what the tokenizer itself adds to the end of a text, its label is that of the added token: a label of the
    whole text.
    """

    words_column: str
    label_column: str
    label_names: tuple[str, ...]

    @classmethod
    def from_data(cls, train: datasets.Dataset, words_column: str, label_column: str) -> Self:
        """Return the task that the training split poses.

        Raises:
            ValueError: a column is missing or holds no lists, or a row has more words than labels or fewer.
        """
        require_training(train, [words_column, label_column])
        require_values(train, [words_column, label_column], "training", "list")
        for column in (words_column, label_column):
            if not isinstance(train[column][0], list):
                raise ValueError(
                    f"the column {column!r} must hold lists, an entry a word; it holds {train[column][0]!r}."
                )
        flat = [label for row in train[label_column] for label in row if label != IGNORED_LABEL]
        inner = getattr(train.features[label_column], "feature", None)
        task = cls(words_column, label_column, label_names(inner, flat, "single_label_classification"))
        task.references(train, "training")
        return task

    def config_fields(self) -> dict[str, Any]:
        """Return the fields that the configuration of the model needs."""
        return {"problem_type": "single_label_classification", **label_fields(self.label_names)}

    def has_labels(self, split: datasets.Dataset) -> bool:
        """Return whether the split can be scored: hidden labels are no column, or all None, -1 or -100."""
        if self.label_column not in split.column_names:
            return False
        hidden = (None, IGNORED_LABEL) if "-1" in self.label_names else (None, IGNORED_LABEL, -1)
        return any(label not in hidden for row in split[self.label_column] for label in row or ())

    def texts(self, split: datasets.Dataset) -> Iterator[str]:
        """Yield all texts of the split, to learn a vocabulary from."""
        for words in split[self.words_column]:
            yield " ".join(words)

    def encode(
        self, split: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int, name: str
    ) -> datasets.Dataset:
        """Return the inputs, `labels`, `kept` and `WAS_CUT`.

        `labels` are -100 except on the last token of each word, and 0 there if the split has no labels. `kept` has the
        numbers of the words that have such a label, for which the length leaves room.
        """
        require_columns(split, [self.words_column], name)
        require_values(split, [self.words_column], name, "words")
        for index, words in enumerate(split[self.words_column]):
            if odd := [word for word in words if not isinstance(word, str)]:
                raise ValueError(f"row {index} of the {name} data has the word {odd[0]!r}, which is no text.")
        labels: list[Ids] | None = self._ids(split, name) if self.has_labels(split) else None
        special = SpecialTokens.of(tokenizer)
        return split.map(
            of_this_version(
                _encode_words,
                tokenizer=tokenizer,
                special=special,
                column=self.words_column,
                labels=labels,
                max_length=max_length,
            ),
            batched=True,
            with_indices=True,
            remove_columns=split.column_names,
            desc=f"Tokenizing the {name} data",
        )

    def references(self, split: datasets.Dataset, name: str) -> list[Ids]:
        """Return the true labels of each word of each example, -100 where it has none."""
        return self._ids(split, name)

    def predictions(self, output: Any, labels: np.ndarray, kept: Sequence[Ids], num_words: Sequence[int]) -> list[Ids]:
        """Return the predicted labels of each word, from label ids (examples, length).

        Words that were cut off, or have no label, get the label 0.
        """
        result = []
        for row, targets, words, count in zip(np.asarray(output), labels, kept, num_words, strict=True):
            tags = [0] * count
            for word, tag in zip(words, row[targets != IGNORED_LABEL], strict=True):
                tags[word] = int(tag)
            result.append(tags)
        return result

    def readable(self, predictions: list[Ids]) -> list[Any]:
        """Return predictions or references as names of labels, None for words without one."""
        return [[None if tag == IGNORED_LABEL else self.label_names[tag] for tag in row] for row in predictions]

    def _ids(self, split: datasets.Dataset, name: str) -> list[Ids]:
        require_columns(split, [self.words_column, self.label_column], name)
        require_values(split, [self.words_column, self.label_column], name, "list")
        inner = getattr(split.features[self.label_column], "feature", None)
        ids = {label: index for index, label in enumerate(self.label_names)}
        result = []
        for index, (words, labels) in enumerate(zip(split[self.words_column], split[self.label_column], strict=True)):
            if len(words) != len(labels):
                raise ValueError(f"row {index} of the {name} data has {len(words)} words and {len(labels)} labels.")
            tags = []
            for label in labels:
                if label != IGNORED_LABEL:
                    known = inner.int2str(label) if isinstance(inner, datasets.ClassLabel) else label
                    tags.append(id_of(known, ids, name))
                else:
                    tags.append(IGNORED_LABEL)
            result.append(tags)
        return result


def _encode_words(
    batch: dict[str, list[Any]],
    indices: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    special: SpecialTokens,
    column: str,
    labels: list[Ids] | None,
    max_length: int,
) -> dict[str, list[Any]]:
    rows = []
    room = max_length - len(special.single_before) - len(special.single_after)
    for index, words in zip(indices, batch[column], strict=True):
        # spaces belong to the words for tokenizers of bytes; others ignore them
        spaced = [word if i == 0 else f" {word}" for i, word in enumerate(words)]
        pieces = tokenize(tokenizer, spaced) if words else []
        if words and words[-1] in tokenizer.all_special_tokens:
            pieces[-1:] = tokenize(tokenizer, spaced[-1:], as_text=False)
        ids: Ids = []
        targets: Ids = []
        kept: Ids = []
        ends = bool(pieces and pieces[-1]) and pieces[-1] == list(special.single_after)
        for word, piece in enumerate(pieces[:-1] if ends else pieces):
            if not piece and tokenizer.unk_token_id is not None:
                piece = [tokenizer.unk_token_id]
            if len(ids) + len(piece) > room:
                break
            if not piece:
                continue
            ids += piece
            targets += [IGNORED_LABEL] * (len(piece) - 1) + [labels[index][word] if labels else 0]
            kept.append(word)
        row: dict[str, Any] = special.join(ids, None, max_length)
        before = [IGNORED_LABEL] * len(special.single_before)
        after = [IGNORED_LABEL] * (len(row["input_ids"]) - len(before) - len(targets))
        row["labels"] = before + targets + after
        if ends and kept == list(range(len(words) - 1)):
            row["labels"][-1] = labels[index][-1] if labels else 0
            kept.append(len(words) - 1)
        was_cut = max(kept, default=-1) + 1 < len(words)
        if labels:
            kept = [word for word in kept if labels[index][word] != IGNORED_LABEL]
        rows.append({**row, "kept": kept, WAS_CUT: was_cut})
    return to_columns(rows)
