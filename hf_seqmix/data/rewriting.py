"""A text beside a rewriting of it: unlabeled data from which a model learns to compare two texts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import datasets
import torch

from .labeled.special_tokens import SpecialTokens

__all__ = ["pair_with_rewriting", "rewritten_pairs"]

Piece = TypeVar("Piece")

TOKENS_TOGETHER = 8
"""Tokens of a block that stay together, on average."""
FOREIGN_PARTS = 0.25
"""Share of the parts of a block that do not come from the text."""
WORDS_TOGETHER = (1, 2, 4, 8)
"""Words of a sentence that stay together, on average: one of these for each pair."""
WORDS = range(5, 31)
"""Lengths of sentences that are paired."""


def pair_with_rewriting(ids: Sequence[int], special: SpecialTokens, generator: torch.Generator) -> list[int]:
    """Return the first half of a block, and after a separator a rewriting of this half, as many tokens in all.

    The rewriting cuts the text into parts of eight tokens on average, puts the parts in another order, and replaces a
    quarter of the parts by as many tokens of the second half of the block. So the two texts share most words and
    phrases, at no fixed distance, as paraphrases do. Masked, they are what translation language modeling (Conneau and
    Lample 2019, arXiv:1901.07291, section 3.4) makes of a sentence and its translation, in one language.

    Args:
        ids: tokens of a block; special tokens among them are left out where the rest suffices.
        special: the tokens around and between two texts, as fine-tuning on pairs puts them.
        generator: of the cuts, the order and the replacements.

    Returns:
        As many tokens as `ids`: `before`, text, `between`, rewriting, `after`.

    Raises:
        ValueError: the block is too short for two texts of a token each.
    """
    borders = {*special.before, *special.between, *special.after}
    room = len(ids) - len(special.before) - len(special.between) - len(special.after)
    if room < 2:
        raise ValueError(f"a block of {len(ids)} tokens has no room for two texts; give longer blocks.")
    plain = [token for token in ids if token not in borders]
    plain += [token for token in ids if token in borders]
    size = (room + 1) // 2
    text, rest = plain[:size], plain[size:]
    rewriting = _rewrite(text, rest, FOREIGN_PARTS, TOKENS_TOGETHER, generator)
    return [*special.before, *text, *special.between, *rewriting[: room - size], *special.after]


def rewritten_pairs(texts: Iterable[str], num_rows: int, *, seed: int = 0) -> datasets.Dataset:
    """Pair sentences with rewritings and say how many words the two share.

    A rewriting cuts its sentence into parts of 1, 2, 4 or 8 words on average and replaces some by as many words of
    another sentence; what share of them is drawn for each pair, evenly from 0 to 1. In half of the pairs the parts
    stand in another order, and in half of them parts are left out instead of replaced. Parts beyond the end of a
    shorter other sentence stay. The score is 5 * 2 |A and B| / (|A| + |B|) for the sets A and B of words in lower
    case, so it has the range of STS-B. A model fine-tuned on the pairs has learned to find what two texts have in
    common.

    Args:
        texts: split into sentences after ".", "!" and "?", and at ends of lines; those of 5 to 30 words are taken.
        num_rows: pairs. Where sentences are fewer, each is rewritten several times.
        seed: another seed draws other pairs.

    Returns:
        Rows of `sentence1`, `sentence2` and `score`, from 0 to 5; the rewriting comes first in half of the rows.

    Raises:
        ValueError: `num_rows` is below 1, or the texts have fewer than two such sentences.
    """
    if num_rows < 1:
        raise ValueError(f"num_rows is {num_rows}; it must be at least 1.")
    sentences = list(dict.fromkeys(_sentences(texts)))
    if len(sentences) < 2:
        raise ValueError(
            f"the texts have {len(sentences)} sentences of {WORDS[0]} to {WORDS[-1]} words; two are needed at least."
        )
    generator = torch.Generator().manual_seed(seed)

    def rows() -> Iterator[dict[str, Any]]:
        order: list[int] = []
        for _ in range(num_rows):
            order = order or torch.randperm(len(sentences), generator=generator).tolist()
            own = order.pop()
            step = int(torch.randint(1, len(sentences), (), generator=generator))
            words, others = (sentences[place % len(sentences)].split() for place in (own, own + step))
            together = WORDS_TOGETHER[int(torch.randint(len(WORDS_TOGETHER), (), generator=generator))]
            foreign, first, moved, omitted = torch.rand(4, generator=generator).tolist()
            rewriting = _rewrite(
                words, others if omitted < 0.5 else [], foreign, together, generator, moved=moved < 0.5
            )
            pair = [words, rewriting]
            if first < 0.5:
                pair.reverse()
            one, two = ({word.lower() for word in text} for text in pair)
            score = 10 * len(one & two) / (len(one) + len(two))
            yield {"sentence1": " ".join(pair[0]), "sentence2": " ".join(pair[1]), "score": score}

    return datasets.Dataset.from_list(list(rows()))


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for sentence in re.split(r"(?<=[.!?])\s+|\n", text):
            if len(sentence.split()) in WORDS:
                yield sentence


def _rewrite(
    text: Sequence[Piece],
    others: Sequence[Piece],
    foreign: float,
    together: int,
    generator: torch.Generator,
    moved: bool = True,
) -> list[Piece]:
    """Return a text whose parts are in another order if `moved`, a share `foreign` of them replaced.

    Args:
        text: is cut into parts of `together` pieces on average.
        others: what stands there in `others` takes the place of a part; parts beyond its end stay. Without any, parts
            are left out, but never all of them.
        foreign: share of the parts that are replaced.
        together: pieces of a part.
        generator: of all that is drawn.
        moved: whether the order changes.
    """
    cuts = torch.nonzero(torch.rand(len(text) - 1, generator=generator) < 1 / together).flatten().add(1).tolist()
    places = list(zip([0, *cuts], [*cuts, len(text)], strict=True))
    replaced = (torch.rand(len(places), generator=generator) < foreign).tolist()
    if not others and all(replaced):
        replaced[0] = False
    order = torch.randperm(len(places), generator=generator).tolist() if moved else range(len(places))
    rewriting: list[Piece] = []
    for part in order:
        begin, end = places[part]
        own = not replaced[part] or (others and end > len(others))
        rewriting += text[begin:end] if own else others[begin:end]
    return rewriting
