"""Questions whose answer is a part of a context."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from ..versioned import of_this_version
from .labels import require_columns, require_training, require_values
from .special_tokens import Ids, SpecialTokens, to_columns, tokenize

__all__ = ["QuestionAnswering"]


@dataclass(frozen=True)
class QuestionAnswering:
    """The part of a context that answers a question, in the columns of SQuAD: question, context, answers.

    Contexts longer than the input of the model are read in windows that overlap by `stride` tokens. The best answer of
    all windows counts. "No answer" is the span of the first token alone.
    """

    stride: int = 128
    max_answer_length: int = 30
    columns: tuple[str, ...] = field(default=("question", "context", "answers"), init=False)

    @classmethod
    def from_data(cls, train: datasets.Dataset, stride: int = 128, max_answer_length: int = 30) -> Self:
        """Return the task on this training data.

        Raises:
            ValueError: a column is missing, or a number is not positive.
        """
        if stride < 0 or max_answer_length < 1:
            raise ValueError(
                f"stride must not be negative and max_answer_length at least 1; given {stride} and"
                f" {max_answer_length}."
            )
        task = cls(stride, max_answer_length)
        require_training(train, task.columns)
        answers = train[0]["answers"]
        parts = answers if isinstance(answers, Mapping) else {}
        kinds = {"text": str, "answer_start": int}
        if not all(
            isinstance(parts.get(part), list) and all(isinstance(each, kind) for each in parts[part])
            for part, kind in kinds.items()
        ):
            raise ValueError(
                "the column 'answers' must hold, in each row, lists of text and of answer_start, whole numbers; it "
                f"holds {answers!r}."
            )
        return task

    def config_fields(self) -> dict[str, Any]:
        """Return the fields that the configuration of the model needs: none."""
        return {}

    def has_labels(self, split: datasets.Dataset) -> bool:
        """Return whether the split can be scored: hidden answers are a missing column, or None in all rows."""
        return "answers" in split.column_names and any(answers is not None for answers in split["answers"])

    def texts(self, split: datasets.Dataset) -> Iterator[str]:
        """Yield all texts of the split, to learn a vocabulary from."""
        for column in self.columns[:2]:
            yield from split[column]

    def encode(
        self, split: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int, name: str
    ) -> datasets.Dataset:
        """Tokenize questions and contexts, and cut them into windows.

        Returns:
            A row a window: inputs, `start_positions` and `end_positions`, `example` (the row of the split),
            `first_token` (position of the first token of context) and `offsets` (characters of each token of context).

        Raises:
            ValueError: a column is missing, an answer is not where its row says, the stride leaves windows no way to
                advance, or the tokenizer pads on the left or does not say which characters its tokens stand for.
        """
        columns = self.columns[: 2 + self.has_labels(split)]
        if tokenizer.padding_side != "right":
            raise ValueError(
                f"the tokenizer pads on the {tokenizer.padding_side}, and positions of answers count from the first "
                "token of a row: set tokenizer.padding_side = 'right'."
            )
        require_columns(split, columns, name)
        require_values(split, columns, name, "value")
        return split.map(
            of_this_version(
                _encode_questions,
                tokenizer=tokenizer,
                special=SpecialTokens.of(tokenizer),
                max_length=max_length,
                stride=self.stride,
                labeled=self.has_labels(split),
                name=name,
            ),
            batched=True,
            batch_size=100,
            with_indices=True,
            remove_columns=split.column_names,
            desc=f"Tokenizing the {name} data",
        )

    def references(self, split: datasets.Dataset, name: str) -> list[list[str]]:
        """Return the accepted answers of each question; none where there is no answer."""
        require_columns(split, self.columns, name)
        require_values(split, self.columns[2:], name, "answers")
        return [list(answers["text"]) for answers in split["answers"]]

    def predictions(
        self, output: Any, encoded: datasets.Dataset, split: datasets.Dataset, can_be_empty: bool
    ) -> list[str]:
        """Return the best span of each question.

        Args:
            output: logits of starts and of ends, (windows, length) each.
            encoded: the windows from which the model predicted.
            split: the examples from which the windows were made.
            can_be_empty: "" is an answer too, if no span scores more than the first token.
        """
        starts, ends = (np.asarray(logits, dtype=np.float32) for logits in output)
        contexts = split["context"]
        best = [(-np.inf, "")] * len(split)
        empty = [np.inf] * len(split)
        for row, start, end in zip(encoded, starts, ends, strict=True):
            example, first, offsets = row["example"], row["first_token"], row["offsets"]
            # no window may call a question unanswerable that another one answers
            empty[example] = min(empty[example], float(start[0] + end[0]))
            count = len(offsets)
            if not count:
                continue
            sums = start[first : first + count, None] + end[None, first : first + count]  # (count, count)
            length = np.arange(count)[None, :] - np.arange(count)[:, None]
            sums = np.where((length >= 0) & (length < self.max_answer_length), sums, -np.inf)
            i, j = np.unravel_index(int(sums.argmax()), sums.shape)
            if sums[i, j] > best[example][0]:
                best[example] = (float(sums[i, j]), contexts[example][offsets[i][0] : offsets[j][1]].strip())
        return ["" if can_be_empty and empty[i] >= score else text for i, (score, text) in enumerate(best)]


def _encode_questions(
    batch: dict[str, list[Any]],
    indices: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    special: SpecialTokens,
    max_length: int,
    stride: int,
    labeled: bool,
    name: str,
) -> dict[str, list[Any]]:
    rows = []
    questions = tokenize(tokenizer, [question.strip() for question in batch["question"]])
    around = len(special.before + special.between + special.after)
    for row, (index, question, context) in enumerate(zip(indices, questions, batch["context"], strict=True)):
        ids, offsets = _with_offsets(tokenizer, context)
        question = question[: (max_length - around) // 2]
        first_token = len(special.before) + len(question) + len(special.between)
        window = max_length - around - len(question)
        if window <= stride:
            raise ValueError(
                f"max_length {max_length} leaves {window} tokens of context beside a question, and windows overlap by "
                f"{stride}; give a larger max_length or a smaller stride."
            )
        answer = None
        if labeled:
            _check_answer(
                batch["answers"][row], context, f"row {index} of the {name} data ({batch['question'][row]!r})"
            )
            answer = _answer_tokens(batch["answers"][row], offsets)
        for begin in range(0, max(1, len(ids) - stride), window - stride):
            end = min(begin + window, len(ids))
            inside = answer is not None and begin <= answer[0] and answer[1] < end
            rows.append(
                {
                    **special.join(question, ids[begin:end]),
                    "start_positions": first_token + answer[0] - begin if inside and answer else 0,
                    "end_positions": first_token + answer[1] - begin if inside and answer else 0,
                    "example": index,
                    "first_token": first_token,
                    "offsets": offsets[begin:end],
                }
            )
    return to_columns(rows)


def _check_answer(answers: dict[str, list[Any]], context: str, place: str) -> None:
    """Raise a `ValueError` if the first answer is not where it is said to be, case and kinds of spaces aside."""
    texts, starts = (answers.get(part) for part in ("text", "answer_start"))
    if texts is None or starts is None or len(texts) != len(starts):
        raise ValueError(f"{place}: answers {answers!r} must have as many answer_start as text.")
    if not answers["text"]:
        return
    text, start = answers["text"][0], answers["answer_start"][0]
    found = context[max(start, 0) : max(start, 0) + len(text)]
    if start < 0 or found.casefold().split() != text.casefold().split():
        raise ValueError(
            f"{place}: the answer {text!r} does not stand at answer_start {start} of the context, where {found!r} "
            "stands. Count characters, not bytes, in the context as it is given."
        )


def _answer_tokens(answers: dict[str, list[Any]], offsets: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the first and the last token of the first answer, or None if there is no answer."""
    if not answers["text"]:
        return None
    start = answers["answer_start"][0]
    end = start + len(answers["text"][0])
    inside = [index for index, (first, after) in enumerate(offsets) if first < end and after > start]
    return (inside[0], inside[-1]) if inside else None


def _with_offsets(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[Ids, list[tuple[int, int]]]:
    """Return the token ids of a text and the characters of each token.

    Where the tokenizer does not give offsets, a token has the characters of its whole word.
    """
    if tokenizer.is_fast:
        encoding = tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
        )
        return encoding["input_ids"], [tuple(pair) for pair in encoding["offset_mapping"]]
    [ids] = tokenize(tokenizer, [text])
    pieces = list(re.finditer(r"\w+|\W", text))
    tokens = tokenize(tokenizer, [piece.group() for piece in pieces]) if pieces else []
    if [token for piece in tokens for token in piece] != ids:
        raise ValueError(
            f"{type(tokenizer).__name__} does not say which characters its tokens stand for: use a fast tokenizer or "
            "a tokenizer of bytes for question answering."
        )
    return ids, [piece.span() for piece, own in zip(pieces, tokens, strict=True) for _ in own]
