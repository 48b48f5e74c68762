"""Token ids of texts and the special tokens around the texts, in one way for every tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from transformers import PreTrainedTokenizerBase

__all__ = ["Ids", "SpecialTokens", "places", "to_columns", "tokenize"]

Ids = list[int]


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens that a tokenizer puts before, between and after one text or two texts.

    All tokenizers are treated alike, fast or not. Where a tokenizer puts nothing between two texts, the token that
    ends a text stands there: the model must see where the second text begins.
    """

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    single_before: tuple[int, ...] = ()
    single_after: tuple[int, ...] = ()
    type_ids: bool = False

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Read the special tokens off what the tokenizer makes of short texts."""
        single, pair = _runs(tokenizer, "a"), _runs(tokenizer, "a", "b")
        between = pair[1]
        if not between:
            for name in ("sep_token_id", "eos_token_id", "bos_token_id"):
                if getattr(tokenizer, name) is not None:
                    between = (getattr(tokenizer, name),)
                    break
        return cls(
            before=pair[0],
            between=between,
            after=pair[2],
            single_before=single[0],
            single_after=single[1],
            type_ids="token_type_ids" in tokenizer.model_input_names,
        )

    def kept(self, first: int, second: int | None = None, *, max_length: int | None) -> tuple[int, int]:
        """Return how many tokens of one text (and 0) or of two texts fit: the longer text is cut at its end.

        Args:
            first: tokens of the first text.
            second: tokens of the second text, if there is one.
            max_length: of the inputs, special tokens included; None for no limit.

        Raises:
            ValueError: `max_length` leaves no room for text.
        """
        if max_length is None:
            return first, second or 0
        if second is None:
            return min(first, self._room(max_length, len(self.single_before + self.single_after), 1)), 0
        room = self._room(max_length, len(self.before + self.between + self.after), 2)
        # the shorter text keeps up to half of the room, the longer text has the rest
        of_first = min(first, max(room - second, (room + 1) // 2))
        return of_first, min(second, room - of_first)

    def join(self, first: Ids, second: Ids | None, max_length: int | None = None) -> dict[str, Ids]:
        """Return the inputs of one example; where they are too long, the longer text is cut at its end.

        Raises:
            ValueError: `max_length` leaves no room for text.
        """
        of_first, of_second = self.kept(len(first), None if second is None else len(second), max_length=max_length)
        if second is None:
            ids = [*self.single_before, *first[:of_first], *self.single_after]
            # a model cannot read a row of no tokens
            ids = ids or [*self.between[:1]] or [0]
            types = [0] * len(ids)
        else:
            start = [*self.before, *first[:of_first], *self.between]
            ids = [*start, *second[:of_second], *self.after]
            types = [0] * len(start) + [1] * (len(ids) - len(start))
        inputs = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        return {**inputs, "token_type_ids": types} if self.type_ids else inputs

    @staticmethod
    def _room(max_length: int, special: int, least: int) -> int:
        if max_length - special < least:
            raise ValueError(
                f"max_length is {max_length}, of which {special} are special tokens; give at least {special + least}."
            )
        return max_length - special


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, as_text: bool = True) -> list[Ids]:
    """Return the token ids of each text, without special tokens.

    A special token that a text spells out is read as text, unless not `as_text`.
    """
    options = {"add_special_tokens": False, "return_attention_mask": False, "split_special_tokens": as_text}
    return tokenizer(list(texts), verbose=False, **options)["input_ids"]


def places(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[Any]:
    """Return where each token of each text starts and ends, in characters; None for texts of a slow tokenizer."""
    if not tokenizer.is_fast:
        return [None] * len(texts)
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "split_special_tokens": True}
    return tokenizer(list(texts), verbose=False, **options)["offset_mapping"]


def to_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows in the form that `Dataset.map` expects of a batch: a list a column."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _runs(tokenizer: PreTrainedTokenizerBase, *texts: str) -> list[tuple[int, ...]]:
    """Return the special tokens before, between and after one or two short texts."""
    parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    ids = tokenizer(*texts)["input_ids"]
    runs, rest = [], list(ids)
    for part in parts:
        place = next((i for i in range(len(rest)) if rest[i : i + len(part)] == part), None)
        if place is None or not part:  # the texts are treated differently together: no known tokenizer does that
            raise ValueError(f"{type(tokenizer).__name__} gives {texts} the ids {ids}, in which {part} do not occur.")
        runs.append(tuple(rest[:place]))
        rest = rest[place + len(part) :]
    return [*runs, tuple(rest)]
