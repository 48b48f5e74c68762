"""Recall accuracy: how many of the tokens that a sequence asks for a model names, by query and by distance."""

from typing import Any

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
References are rows of token ids in which -100 marks the places where nothing is asked, as in the labels of language
models; the other places are the queries. Recall accuracy is (number of predictions equal to their reference) / (number
of queries), over the queries of all rows; row accuracy is the share of rows whose queries are all answered right. Rows
without a query are left out. The accuracy by order is that of the first query of every row, of the second, and so on;
by distance that of the queries whose distance is in a bucket [edge_i, edge_{i+1}), by default [0, 1), [1, 2), [2, 4),
[4, 8) ... up to the largest. Buckets without a query are left out.
"""

_INPUTS = """
Args:
    predictions (list of list of int): a token id for each place of each row; what stands at -100 places does not
        matter.
    references (list of list of int): the tokens asked for, -100 elsewhere; rows as long as those of `predictions`.
    shift (bool): a prediction stands one place before its reference, as the argmax of a causal language model's logits
        does; by default it stands at the same place.
    distances (list of int, or list of list of int): how far before each query its answer stands: a number for each
        row, or one for each place, of which those at -100 places do not matter.
    edges (list of int): increasing bucket edges, the first at most the smallest distance, the last above the largest.
Returns:
    accuracy (float): over all queries.
    row_accuracy (float): share of rows with all answers right.
    num_queries (int), num_rows (int): what these are shares of.
    accuracy_by_order (list of float): of the first query of each row, the second ...
    num_queries_by_order (list of int): rows that have as many.
    start, end, num_queries_by_distance (lists of int), accuracy_by_distance (list of float): the buckets that hold a
        query; only with `distances`.
Raises:
    ValueError: no rows, no queries, rows of different lengths, ids or distances that are not integers, distances that
        are negative or not as many, edges without distances, or edges that do not increase or leave a distance out.
"""

IGNORED_LABEL = -100


class RecallAccuracy(evaluate.Metric):
    """Accuracy over the tokens asked for, from rows of token ids."""

    def _info(self) -> evaluate.MetricInfo:
        row = datasets.Sequence(datasets.Value("float64"))  # an integer type would silently truncate probabilities
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": row, "references": row}),
        )

    def _compute(
        self, predictions: Any, references: Any, shift: bool = False, distances: Any = None, edges: Any = None
    ) -> dict[str, Any]:
        sizes = np.array([len(row) for row in references], dtype=np.int64)
        if len(sizes) == 0:
            raise ValueError("references is empty; give at least one row.")
        guesses, answers = _flat(predictions, sizes, "predictions"), _flat(references, sizes, "references")
        row = np.repeat(np.arange(len(sizes)), sizes)
        asked = answers != IGNORED_LABEL
        if shift:
            guesses = np.roll(guesses, 1)
            starts = np.cumsum(sizes[sizes > 0]) - sizes[sizes > 0]
            asked[starts] = False  # nothing stands before the first place of a row
        if not asked.any():
            raise ValueError(f"references has no query: every place{' after the first' if shift else ''} is -100.")
        right = _integers(guesses[asked], "predictions") == _integers(answers[asked], "references")
        row_of = row[asked]
        per_row = np.bincount(row_of, minlength=len(sizes))
        order = np.arange(len(right)) - (np.cumsum(per_row) - per_row)[row_of]
        num_by_order = np.bincount(order)
        wrong_per_row = np.bincount(row_of, weights=~right, minlength=len(sizes))
        result: dict[str, Any] = {
            "accuracy": float(right.mean()),
            "row_accuracy": float((wrong_per_row[per_row > 0] == 0).mean()),
            "num_queries": len(right),
            "num_rows": int((per_row > 0).sum()),
            "accuracy_by_order": (np.bincount(order, weights=right) / num_by_order).tolist(),
            "num_queries_by_order": num_by_order.tolist(),
        }
        if distances is None:
            if edges is not None:
                raise ValueError("edges are of distances, and there are none; give `distances`, too.")
            return result
        if len(distances) != len(sizes):
            raise ValueError(f"distances has {len(distances)} entries for {len(sizes)} rows; give one each.")
        if np.ndim(distances[0]) == 0:
            far = np.asarray(distances, dtype=np.float64)[row_of]
        else:
            far = _flat(distances, sizes, "distances")[asked]
        return result | _by_distance(right, _integers(far, "distances"), edges)


def _by_distance(right: np.ndarray, distances: np.ndarray, edges: Any) -> dict[str, Any]:
    """Return accuracy in buckets of distance, both given for each query."""
    low, high = int(distances.min()), int(distances.max())
    if low < 0:
        raise ValueError(f"distances has a negative number, {low}; an answer stands before its query.")
    if edges is None:
        edges = [0, *(2**power for power in range(high.bit_length() + 1))]
    limits = _integers(edges, "edges")
    if len(limits) < 2 or np.any(np.diff(limits) <= 0) or limits[0] > low or limits[-1] <= high:
        raise ValueError(
            f"edges must increase from at most the smallest distance, {low}, to beyond the largest, {high};"
            f" given {list(edges)}."
        )
    bucket = np.searchsorted(limits, distances, side="right") - 1
    queries = np.bincount(bucket, minlength=len(limits) - 1)
    hits = np.bincount(bucket, weights=right, minlength=len(limits) - 1)
    used = np.flatnonzero(queries)
    return {
        "start": limits[used].tolist(),
        "end": limits[used + 1].tolist(),
        "num_queries_by_distance": queries[used].tolist(),
        "accuracy_by_distance": (hits[used] / queries[used]).tolist(),
    }


def _flat(rows: Any, sizes: np.ndarray, name: str) -> np.ndarray:
    """Return all rows after each other, which must be of these sizes."""
    for index, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        if np.shape(row) != (size,):
            raise ValueError(
                f"row {index} of {name} has shape {np.shape(row)}; its references are {size} tokens, give as many."
            )
    return np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])


def _integers(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(f"{name} must be integers, without missing values; apply an argmax to scores first.")
    return array.astype(np.int64)
