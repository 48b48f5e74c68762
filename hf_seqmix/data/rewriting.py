"""A text beside a rewriting of it: unlabeled data from which a masked model learns to compare two texts."""

from collections.abc import Sequence

import torch

from .labelled.special_tokens import SpecialTokens

__all__ = ["pair_with_rewriting"]

MEAN_PART = 8
"""Tokens that stay together, on average."""
FOREIGN_PARTS = 0.25
"""Share of the parts that do not come from the text."""


def pair_with_rewriting(ids: Sequence[int], special: SpecialTokens, generator: torch.Generator) -> list[int]:
    """Return the first half of a block, and after a separator a rewriting of this half, as many tokens in all.

    The rewriting cuts the text into parts of eight tokens on average, puts the parts in another order, and replaces a
    quarter of the parts by as many tokens of the second half of the block. So the two texts share most words and
    phrases, at no fixed distance, as paraphrases do. Masked, they are what translation language modeling (Conneau and
    Lample 2019, arXiv:1901.07291, section 3.3) makes of a sentence and its translation, in one language.

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
    cuts = torch.nonzero(torch.rand(size - 1, generator=generator) < 1 / MEAN_PART).flatten().add(1).tolist()
    places = list(zip([0, *cuts], [*cuts, size], strict=True))
    foreign = (torch.rand(len(places), generator=generator) < FOREIGN_PARTS).tolist()
    rewriting: list[int] = []
    for place in torch.randperm(len(places), generator=generator).tolist():
        begin, end = places[place]
        source = rest if foreign[place] and end <= len(rest) else text
        rewriting += source[begin:end]
    return [*special.before, *text, *special.between, *rewriting[: room - size], *special.after]
