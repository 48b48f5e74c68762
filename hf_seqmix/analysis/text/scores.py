"""`LanguageModelScore`, the figures that an evaluation of a language model returns."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["LanguageModelScore", "position_edges"]


@dataclass(frozen=True, kw_only=True)
class LanguageModelScore:
    """How well a model predicts a text with at most `context_length` tokens of context.

    Attributes:
        context_length: number of input tokens of a block.
        stride: number of tokens scored per block; `context_length` for blocks that do not overlap.
        nll: negative log-likelihood of all tokens, in nats.
        num_tokens, num_bytes, num_words, num_documents: size of the text: tokens of the model's tokenizer, UTF-8
            bytes, words between white space, documents.
        num_unknown: tokens that stand for text the tokenizer does not know; where there are some, the figures flatter.
        position_start, position_tokens, position_nll: buckets of position in the block (the token at position p is
            predicted from p + 1 tokens, of which the first may be the prefix token): first position of each bucket
            that holds a token, its number of tokens, and their negative log-likelihood in nats.
        seconds: wall time of the evaluation.
    """

    context_length: int
    stride: int
    nll: float
    num_tokens: int
    num_bytes: int
    num_words: int
    num_documents: int
    num_unknown: int
    position_start: tuple[int, ...]
    position_tokens: tuple[int, ...]
    position_nll: tuple[float, ...]
    seconds: float

    @property
    def bits_per_byte(self) -> float:
        """Return nll / (ln 2 * bytes): comparable whatever the tokenizer."""
        return self.nll / (math.log(2) * self.num_bytes)

    @property
    def perplexity(self) -> float:
        """exp(nll / tokens): comparable between models with the same tokenizer."""
        return _exp(self.nll / self.num_tokens)

    @property
    def word_perplexity(self) -> float:
        """exp(nll / words), for text that separates words by white space; NaN where there are none."""
        return _exp(self.nll / self.num_words) if self.num_words else math.nan

    @property
    def position_perplexity(self) -> tuple[float, ...]:
        """Token perplexity of each bucket of positions."""
        return tuple(_exp(nll / n) for nll, n in zip(self.position_nll, self.position_tokens, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes and the figures derived from them, ready for JSON."""
        return {
            **asdict(self),
            "bits_per_byte": self.bits_per_byte,
            "perplexity": self.perplexity,
            "word_perplexity": self.word_perplexity,
            "position_perplexity": self.position_perplexity,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LanguageModelScore":
        """Return the score that `to_dict` wrote, also after a round trip through JSON; other keys are ignored."""
        own: dict[str, Any] = {field.name: values[field.name] for field in fields(cls)}
        for name in ("position_start", "position_tokens", "position_nll"):
            own[name] = tuple(own[name])
        return cls(**own)


def position_edges(context_length: int) -> list[int]:
    """Return edges 0, 1, 2, 4, 8 ... `context_length`: bucket i holds positions from edge i to before edge i + 1."""
    return [
        0,
        *itertools.takewhile(lambda edge: edge < context_length, (2**i for i in itertools.count())),
        context_length,
    ]


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
