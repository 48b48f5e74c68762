r"""Recall on text: how well a language model predicts what followed the same token earlier in its context.

A token $x_i$ is *repeated* where the pair $(x_{i-1}, x_i)$ stood in the context before. A model may know such a pair
from training, or recall the pair from the context. So tokens are told apart by how often their pair stood in the
training text, and by the distance to its last occurrence in the context. The idea is that of Arora et al. 2023
(Zoology, arXiv 2312.04927), who count a token as recalled where a pair is repeated and not frequent in training. Here
every class is kept, and `FREQUENT` is our limit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ...modules.evaluation import in_evaluation
from .blocks import TOKENS_PER_BATCH, batch_nll, text_blocks
from .documents import refuse_other_tokenizer
from .language_modeling import refuse_future

__all__ = [
    "COMMON",
    "COUNT_EDGES",
    "DISTANCE_EDGES",
    "FREQUENT",
    "PairCounts",
    "PairScore",
    "RecallGap",
    "pair_distances",
    "recall_gap",
    "score_pairs",
]

COUNT_EDGES = (0, 1, 10, 100, 1000, None)
"""Bounds of the classes of pairs, by occurrences in the training text; the last is open."""
DISTANCE_EDGES = (0, 1, 16, 64, 256, 1024, None)
"""Bounds of the classes of distances in tokens, 0 where the pair is new in the context; the last is open."""
FREQUENT = 100
"""Occurrences in the training text from which on a pair counts as known from there."""
COMMON = 1000
"""Occurrences from which on a pair is among the most common ones: the last of `COUNT_EDGES`."""

Bounds = tuple[int, int | None]
"""The least value of a class, and the least above the class; None: open."""


@dataclass(frozen=True)
class PairCounts:
    """How often each pair of neighboring tokens stands in a text.

    Attributes:
        keys: (pairs,), int64, in order; first token * 2^32 + second token.
        counts: (pairs,), occurrences.
    """

    keys: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, documents: Iterable[np.ndarray]) -> "PairCounts":
        """Return the counts of documents of token ids, (tokens,) each; pairs do not span documents.

        Raises:
            ValueError: no document has two tokens.
        """
        keys = [_keys(np.asarray(ids, dtype=np.int64)) for ids in documents if len(ids) > 1]
        if not keys:
            raise ValueError("there is no pair to count: no document has two tokens.")
        return cls(*np.unique(np.concatenate(keys), return_counts=True))

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Return how often the pair that ends at each token but the first was counted: (tokens - 1,)."""
        wanted = _keys(np.asarray(ids, dtype=np.int64))
        place = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, self.counts[place], 0)


@dataclass(frozen=True)
class PairScore:
    """The loss of a class of tokens.

    Attributes:
        train_count: bounds of the occurrences of the token's pair in the training text.
        distance: bounds of the distance to the pair's last occurrence in the context; (0, 1): there was none.
        nll: negative log-likelihood of all tokens of the class, in nats.
        num_tokens: of the class.
    """

    train_count: Bounds
    distance: Bounds
    nll: float
    num_tokens: int

    @property
    def is_recall(self) -> bool:
        """Whether the pair is repeated and not frequent in training."""
        return self.distance[0] > 0 and self.train_count[1] is not None and self.train_count[1] <= FREQUENT


@dataclass(frozen=True)
class RecallGap:
    """By how much a model is behind another one, and how much of that is recall; all in nats a token.

    Attributes:
        total: of all tokens, the model's mean loss minus the other's.
        recall: of the repeated pairs that are not frequent in training, alike.
        others: of all other tokens, alike.
        common: of pairs that stood `COMMON` times and more in training, repeated or not; None where there are none.
        share_of_tokens: that are such pairs.
        share_of_total: of `total` that they make up; above 1 where the model is ahead at other tokens.
    """

    total: float
    recall: float
    others: float
    common: float | None
    share_of_tokens: float
    share_of_total: float


def pair_distances(ids: np.ndarray) -> np.ndarray:
    r"""Return the distance $i - j$ from each pair of neighbors to the last pair equal to it, or 0 where there is none.

    Args:
        ids: (tokens,), what a model has in its context, and the token after it.

    Returns:
        (tokens - 1,), for the pairs that end at each token but the first. Pairs may overlap.
    """
    keys = _keys(np.asarray(ids, dtype=np.int64))
    order = np.argsort(keys, kind="stable")
    same = keys[order][1:] == keys[order][:-1]
    distances = np.zeros(len(keys), dtype=np.int64)
    distances[order[1:][same]] = (order[1:] - order[:-1])[same]
    return distances


def score_pairs(
    model: PreTrainedModel,
    documents: Sequence[np.ndarray],
    counts: PairCounts,
    *,
    context_length: int,
    batch_size: int | None = None,
    check_causality: bool = True,
    progress: bool = True,
) -> list[PairScore]:
    r"""Return the losses of a causal language model by class of token.

    Tokens are predicted as in [`evaluate_language_model`]: in blocks of `context_length` inputs that do not overlap,
    and only a pair that stands in the block before the token counts as repeated.

    Args:
        model: any causal language model; scored in evaluation mode and left in the mode it was in.
        documents: (tokens,) each, ids; the first token of each is read, and not predicted.
        counts: of the training text, by the same tokenizer.
        context_length: number of input tokens of a block.
        batch_size: blocks per forward; by default about 8192 tokens' worth.
        check_causality: refuse a model whose predictions depend on later tokens first.
        progress: show a progress bar.

    Returns:
        The classes that hold a token, in the order of `COUNT_EDGES` and then of `DISTANCE_EDGES`. Losses and numbers
        of tokens sum to those of the whole text.

    Raises:
        ValueError: the context length or the batch size is not positive, no document has two tokens, an id is beyond
            the vocabulary, the model looks at later tokens or cannot take that many, or a loss is not finite.
    """
    if context_length < 1:
        raise ValueError(f"context_length must be positive; given {context_length}.")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be positive; given {batch_size}.")
    blocks = [block for block in text_blocks(documents, context_length, context_length) if block.end > block.start]
    if not blocks:
        raise ValueError("there is no token to predict: no document has two tokens.")
    blocks = sorted(blocks, key=lambda block: block.start - block.end)
    longest = blocks[0].end - blocks[0].start
    vocabulary = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if vocabulary is not None:
        refuse_other_tokenizer(max(int(ids.max()) for ids in documents if len(ids)), vocabulary)
    if check_causality:
        refuse_future(model, max(documents, key=len), max(1, min(8, longest // 2)))
    batch_size = batch_size or max(1, TOKENS_PER_BATCH // longest)
    size = len(COUNT_EDGES) - 1, len(DISTANCE_EDGES) - 1
    nll, num_tokens = np.zeros(size), np.zeros(size, dtype=np.int64)
    with (
        in_evaluation(model),
        tqdm(total=sum(len(ids) - 1 for ids in documents), desc="pairs", unit="tok", disable=not progress) as bar,
    ):
        for first in range(0, len(blocks), batch_size):
            batch = blocks[first : first + batch_size]
            losses = batch_nll(model, documents, batch)[1]
            read = [documents[block.document][block.start : block.end + 1] for block in batch]
            place = (
                np.digitize(np.concatenate([counts(ids) for ids in read]), COUNT_EDGES[1:-1]),
                np.digitize(np.concatenate([pair_distances(ids) for ids in read]), DISTANCE_EDGES[1:-1]),
            )
            np.add.at(nll, place, losses)
            np.add.at(num_tokens, place, 1)
            bar.update(len(losses))
    return [
        PairScore(_bounds(COUNT_EDGES, i), _bounds(DISTANCE_EDGES, j), float(nll[i, j]), int(number))
        for (i, j), number in np.ndenumerate(num_tokens)
        if number
    ]


def recall_gap(scores: Sequence[PairScore], others: Sequence[PairScore]) -> RecallGap:
    r"""Return by how much a model is behind another one, and what repeated pairs that are rare in training make of it.

    With $n_c$ tokens of class $c$ and mean losses $L_c$ and $L'_c$ the total is $\sum n_c (L_c - L'_c) / \sum n_c$.
    The parts are the same sums over the classes that are recall (`PairScore.is_recall`), and over the others; over
    pairs that are common in training, besides.

    Args:
        scores: of the model, as `score_pairs` returns them.
        others: of the model that it is compared with, on the same tokens.

    Raises:
        ValueError: the scores are of different tokens, or no token is a repeated pair.
    """
    if [(s.train_count, s.distance, s.num_tokens) for s in scores] != [
        (s.train_count, s.distance, s.num_tokens) for s in others
    ]:
        raise ValueError("the scores are of different tokens: score both models on the same documents and context.")
    gaps = np.asarray([score.nll - other.nll for score, other in zip(scores, others, strict=True)])
    sizes = np.asarray([score.num_tokens for score in scores])
    recalled = np.asarray([score.is_recall for score in scores], dtype=bool)
    if not sizes[recalled].sum():
        raise ValueError("no token is a repeated pair that is rare in training: give longer contexts or more text.")
    rest = sizes[~recalled].sum()
    common = np.asarray([score.train_count[0] >= COMMON for score in scores], dtype=bool)
    found = sizes[common].sum()
    return RecallGap(
        total=float(gaps.sum() / sizes.sum()),
        recall=float(gaps[recalled].sum() / sizes[recalled].sum()),
        others=float(gaps[~recalled].sum() / rest) if rest else 0.0,
        common=float(gaps[common].sum() / found) if found else None,
        share_of_tokens=float(sizes[recalled].sum() / sizes.sum()),
        share_of_total=float(gaps[recalled].sum() / gaps.sum()) if gaps.sum() else 0.0,
    )


def _keys(ids: np.ndarray) -> np.ndarray:
    return (ids[:-1] << 32) + ids[1:]


def _bounds(edges: Sequence[int | None], place: int) -> Bounds:
    low = edges[place]
    assert low is not None
    return low, edges[place + 1]
