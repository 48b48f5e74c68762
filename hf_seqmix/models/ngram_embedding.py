"""Embeddings of the last few tokens together: n-grams, hashed into tables."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..cache import previous_inputs
from ..ops.layout import TokenLayout
from .recent_tokens import recent_tokens

__all__ = ["NGramEmbedding", "NGramTable", "hash_ngrams"]

_PRIME = 2**31 - 1
_BASE, _FACTOR = 48271, 1103515245  # products with numbers below the prime stay below 2^63


def hash_ngrams(ngrams: Tensor, buckets: int) -> Tensor:
    """Return the bucket of each n-gram, the same in every process.

    h = (c sum_{m < n} (w_m + 2) a^m mod p) mod B, p = 2^31 - 1, a = 48271, c = 1103515245

    Args:
        ngrams: (..., n) integers, tokens w_0, w_1, ..., the newest first; -1 for no token.
        buckets: B, at most 2^31 - 2.

    Returns:
        (...) long, from 0 to B - 1.
    """
    ngrams = ngrams.long()  # products overflow int32
    total = torch.zeros_like(ngrams[..., 0])
    for token in reversed(ngrams.unbind(-1)):
        total = (total * _BASE + token + 2) % _PRIME
    return total * _FACTOR % _PRIME % buckets


class NGramTable(nn.Embedding):
    """A table of the n-grams of one size."""

    begins_as_zeros = True


class NGramEmbedding(nn.Module):
    """What the n-grams that end at each token add to the embedding of the token.

    y_l = sum_{n in sizes} E_n[h(w_l, w_{l-1}, ..., w_{l-n+1})], h of `hash_ngrams`

    E_n begin as zeros. Different n-grams may share a row. An n-gram that begins before the sequence has "no token" in
    its first places, and a row like others. N-grams end at their token in bidirectional models, too.

    Source: hashed embeddings of character n-grams are those of Bojanowski et al. 2017 (arXiv 1607.04606), there summed
    over a word; at each byte of a language model those of Pagnoni et al. 2024 (arXiv 2412.09871, section 3.2.1).
    Departures: the polynomial of the hash is taken modulo a prime, and sums are not divided by the number of sizes.
    None of the papers of the mixers has such an embedding.

    Args:
        channels: of the embedding.
        sizes: n of the n-grams, each at least 2; a table each.
        buckets: rows of each table.
    """

    def __init__(self, channels: int, sizes: Sequence[int], buckets: int) -> None:
        super().__init__()
        self.longest, self.buckets = max(sizes), buckets
        self.tables = nn.ModuleDict({str(size): NGramTable(buckets, channels) for size in sizes})

    def forward(self, input_ids: Tensor, layout: TokenLayout, past_key_values: Any = None) -> Tensor:
        """Embed the n-grams of a call, which go on after the tokens that a cache holds.

        Args:
            input_ids: (batch, length).
            layout: where the real tokens of each sequence lie.
            past_key_values: cache of the library, built for the model's configuration, or None. The first layer keeps
                the last `max(sizes) - 1` tokens.

        Returns:
            (batch, length, channels); at a pad, of the last real tokens before the pad.

        Raises:
            ValueError: for a cache that keeps no tokens.
        """
        earlier = None
        if past_key_values is not None:
            # Ids from 1 on, since a cache has zeros where there is nothing; as integers, which are exact.
            new = input_ids + 1 if layout.mask is None else torch.where(layout.mask, input_ids + 1, 0)
            held = previous_inputs(past_key_values, 0, "ngrams", new.unsqueeze(-1), layout.mask, self.longest - 1)
            earlier = held[..., 0].flip(1) - 1
        tokens = recent_tokens(input_ids, layout, self.longest, earlier).tokens()
        embedded = [table(hash_ngrams(tokens[..., : int(n)], self.buckets)) for n, table in self.tables.items()]
        return torch.stack(embedded).sum(dim=0)
