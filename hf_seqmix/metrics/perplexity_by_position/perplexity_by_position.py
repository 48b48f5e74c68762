"""Perplexity of a language model by position in the context: does it use what came long before?"""

from typing import Any

import numpy as np

from hf_seqmix.metrics import base


class PerplexityByPosition(base.BaseMetric):
    """Perplexity in buckets of position: exp((sum of negative log-likelihoods in nats) / (number of tokens)).

    The first token of a block has position 0. Buckets are [edge_i, edge_{i+1}), by default [0, 1), [1, 2), [2, 4), [4,
    8) ... up to the largest position. A model that uses long contexts keeps improving to the right.

    Args:
        nll (list of float): negative log-likelihood in nats of each token, or the sum over several tokens at one
            position.
        positions (list of int): their positions, from 0.
        num_tokens (list of int): tokens that each entry of `nll` sums over; 1 each by default.
        edges (list of int): increasing bucket edges that begin at 0 and end above the largest position.

    Returns:
        start (list of int): first position of each bucket that holds a token.
        end (list of int): the position after its last one.
        num_tokens (list of int): its tokens.
        nll (list of float): its sum in nats.
        perplexity (list of float): infinite where the exponential overflows.

    Raises:
        ValueError: no tokens, lists of different lengths, numbers that are not finite, a negative position, numbers of
            tokens that are not whole or none for an nll, or edges that do not increase from 0 to beyond the largest
            position.
    """

    columns = {"nll": "number", "positions": "number"}

    def _compute(self, nll: Any, positions: Any, num_tokens: Any = None, edges: Any = None) -> dict[str, list[Any]]:
        nats = base.not_negative(nll, "nll")
        places = base.not_negative(positions, "positions")
        if np.any(places != np.floor(places)):
            raise ValueError("positions must be whole numbers.")
        counts = np.ones_like(nats) if num_tokens is None else base.not_negative(num_tokens, "num_tokens")
        if len(counts) != len(nats):
            raise ValueError(f"num_tokens has {len(counts)} entries for {len(nats)} of nll; give one each.")
        if np.any(counts != np.floor(counts)) or np.any((counts == 0) & (nats > 0)):
            raise ValueError("num_tokens must be whole numbers, above 0 where there is an nll.")
        base.counted(counts, "num_tokens", "token")
        last = int(places.max())
        if edges is None:
            edges = [0, *(2**power for power in range(last.bit_length() + 1))]
        limits = base.integers(edges, "edges", "positions")
        if len(limits) < 2 or limits[0] != 0 or limits[-1] <= last or np.any(np.diff(limits) <= 0):
            raise ValueError(
                f"edges must increase from 0 to beyond the largest position, {last}; given {list(edges)}."
            )
        bucket = np.searchsorted(limits, places, side="right") - 1
        sums = np.bincount(bucket, weights=nats, minlength=len(limits) - 1)
        tokens = np.bincount(bucket, weights=counts, minlength=len(limits) - 1)
        used = np.flatnonzero(tokens)
        return {
            "start": limits[used].tolist(),
            "end": limits[used + 1].tolist(),
            "num_tokens": tokens[used].astype(int).tolist(),
            "nll": sums[used].tolist(),
            "perplexity": [base.exponential(value) for value in sums[used] / tokens[used]],
        }
