"""Byte n-gram language models: the baseline that a neural model of text has to beat."""

from collections.abc import Iterable

import numpy as np

__all__ = ["ByteNGram"]

MAX_ORDER = 7  # an n-gram is one 64-bit integer, eight bits a byte, the sign bit left alone


class ByteNGram:
    r"""Interpolated Witten-Bell model of the next byte, given the `order - 1` bytes before that byte.

    $$P_k(w \mid h) = \frac{c(hw) + T(h)\, P_{k-1}(w \mid h')}{c(h) + T(h)}, \qquad P_0(w) = \frac{1}{256}$$

    where h is the last k - 1 bytes and h' is h without its oldest byte. c counts occurrences in the training text, and
    T(h) is the number of distinct bytes seen after h (Witten and Bell, 1991). A context that was never seen has the
    probabilities of the shorter context. Each P_k sums to one over the 256 bytes. Zero bytes stand for the context
    that the first bytes of a text lack.

    Args:
        order (`int`, *optional*, defaults to 5): n of the n-gram, 1 (unigram) to 7.

    Raises:
        ValueError: `order` is outside 1 to 7, the training text is empty, or the model is used before `fit`.
    """

    def __init__(self, order: int = 5) -> None:
        if not 1 <= order <= MAX_ORDER:
            raise ValueError(f"order is {order}; an n-gram of bytes can have an order of 1 to {MAX_ORDER}.")
        self.order = order
        # For each k: the k-grams seen (sorted) and their counts; the contexts (sorted), their counts and successors.
        self._tables: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []

    def fit(self, texts: Iterable[str]) -> "ByteNGram":
        """Count the n-grams of the UTF-8 bytes of `texts`, joined without a separator, and return the model."""
        grams = _ngrams(_to_bytes(texts), self.order)
        if grams.size == 0:
            raise ValueError("the training text is empty; an n-gram model needs at least one byte.")
        grams, counts = np.unique(grams, return_counts=True)
        tables = []
        for k in range(self.order, 0, -1):
            contexts, first = np.unique(grams >> 8, return_index=True)
            totals = np.add.reduceat(counts, first)
            distinct = np.diff(np.append(first, grams.size))
            tables.append((grams, counts, contexts, totals, distinct))
            grams, counts = _merge(grams & _mask(k - 1), counts)
        self._tables = tables[::-1]
        return self

    def probability(self, ngrams: np.ndarray) -> np.ndarray:
        """Return the probability of the last byte of each n-gram, given the other bytes.

        Args:
            ngrams (`np.ndarray` of shape `(count,)`, int64): `order` bytes each, the oldest in the highest place.

        Returns:
            `np.ndarray` of shape `(count,)`, float64.
        """
        if not self._tables:
            raise ValueError("the n-gram model has counted nothing yet; call `fit(texts)` first.")
        probability = np.full(ngrams.shape, 1 / 256)
        for k, (grams, counts, contexts, totals, distinct) in enumerate(self._tables, start=1):
            gram = ngrams & _mask(k)
            count = _lookup(grams, counts, gram)
            total = _lookup(contexts, totals, gram >> 8)
            types = _lookup(contexts, distinct, gram >> 8)
            seen = total > 0
            probability[seen] = (count[seen] + types[seen] * probability[seen]) / (total[seen] + types[seen])
        return probability

    def bits_per_byte(self, texts: Iterable[str]) -> float:
        """Return the cross-entropy of the UTF-8 bytes of `texts`, joined without a separator, in bits per byte."""
        grams, counts = np.unique(_ngrams(_to_bytes(texts), self.order), return_counts=True)
        if grams.size == 0:
            raise ValueError("the text to score is empty; bits per byte need at least one byte.")
        return float(-(counts * np.log2(self.probability(grams))).sum() / counts.sum())

    def code_lengths(self, text: str) -> np.ndarray:
        """Return the bits that each UTF-8 byte of `text` takes given the bytes before, shape `(bytes,)`, float64."""
        return -np.log2(self.probability(_ngrams(_to_bytes([text]), self.order)))


def _to_bytes(texts: Iterable[str]) -> np.ndarray:
    return np.frombuffer("".join(texts).encode("utf-8"), dtype=np.uint8)


def _mask(k: int) -> int:
    return (1 << 8 * k) - 1


def _ngrams(text: np.ndarray, order: int) -> np.ndarray:
    """Return the n-gram that ends at each byte of `text` as one integer, shape `(length,)`."""
    padded = np.concatenate([np.zeros(order - 1, dtype=np.uint8), text]).astype(np.int64)
    grams = np.zeros(text.size, dtype=np.int64)
    for offset in range(order):
        grams = (grams << 8) | padded[offset : offset + text.size]
    return grams


def _merge(grams: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add up the counts of equal n-grams; return the distinct n-grams, sorted, with their sums."""
    order = np.argsort(grams, kind="stable")
    grams, first = np.unique(grams[order], return_index=True)
    return grams, np.add.reduceat(counts[order], first)


def _lookup(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the value of each wanted key in the sorted `keys`, zero where the key is absent."""
    place = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[place] == wanted, values[place], 0)
