"""Accuracy of a classifier by the length of its input: does it hold on inputs longer than most?"""

from typing import Any

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
Examples are put in buckets by their length; the accuracy of a bucket is (number of its predictions equal to their
reference) / (number of its examples). Buckets are [edge_i, edge_{i+1}), by default [0, 1), [1, 2), [2, 4), [4, 8) ...
up to the largest length. A bucket without examples has no accuracy and is left out. Beside them stand the accuracy
over all examples and the macro average, the mean of the buckets' accuracies, in which a rare length counts as much as
a frequent one.
"""

_INPUTS = """
Args:
    predictions (list of int): predicted labels.
    references (list of int): true labels.
    lengths (list of int): length of each input, in any unit.
    edges (list of int): increasing bucket edges, the first at most the smallest length, the last above the largest.
Returns:
    accuracy (float): over all examples.
    macro_accuracy (float): mean over the buckets that hold an example.
    start (list of int): smallest length of each bucket that holds an example.
    end (list of int): the length after its largest one.
    num_examples (list of int): its examples.
    accuracy_by_length (list of float): its accuracy.
Raises:
    ValueError: no predictions, lists of different lengths, labels that are not integers, lengths that are negative or
        not whole, or edges that do not increase or leave a length out.
"""


class AccuracyByLength(evaluate.Metric):
    """Accuracy in buckets of length, from labels and lengths."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")  # an integer type would silently truncate probabilities
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": number, "references": number, "lengths": number}),
        )

    def _compute(self, predictions: Any, references: Any, lengths: Any, edges: Any = None) -> dict[str, Any]:
        right = _integers(predictions, "predictions", "labels") == _integers(references, "references", "labels")
        sizes = _integers(lengths, "lengths", "lengths")
        if sizes.min() < 0:
            raise ValueError(f"lengths has a negative number, {sizes.min()}; a length is never below zero.")
        if edges is None:
            edges = [0, *(2**power for power in range(int(sizes.max()).bit_length() + 1))]
        limits = _integers(edges, "edges", "lengths")
        if len(limits) < 2 or np.any(np.diff(limits) <= 0) or limits[0] > sizes.min() or limits[-1] <= sizes.max():
            raise ValueError(
                f"edges must increase from at most the smallest length, {sizes.min()}, to beyond the largest,"
                f" {sizes.max()}; given {list(edges)}."
            )

        bucket = np.searchsorted(limits, sizes, side="right") - 1
        examples = np.bincount(bucket, minlength=len(limits) - 1)
        hits = np.bincount(bucket, weights=right, minlength=len(limits) - 1)
        used = np.flatnonzero(examples)
        accuracies = hits[used] / examples[used]
        return {
            "accuracy": float(right.mean()),
            "macro_accuracy": float(accuracies.mean()),
            "start": limits[used].tolist(),
            "end": limits[used + 1].tolist(),
            "num_examples": examples[used].tolist(),
            "accuracy_by_length": accuracies.tolist(),
        }


def _integers(values: Any, name: str, kind: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty; give at least one number.")
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(f"{name} must be integer {kind}, without missing values.")
    return array.astype(np.int64)
