"""F1: the harmonic mean of precision and recall."""

from typing import Any

import numpy as np
from sklearn.metrics import f1_score

from hf_seqmix.metrics import base


class F1(base.BaseMetric):
    """F1 = 2 * precision * recall / (precision + recall), of a label or a mean over labels, by scikit-learn.

    Args:
        predictions (list of int): predicted labels; lists of 0 and 1, one per label, in the `multilabel`
            configuration.
        references (list of int): true labels, as the predictions.
        labels (list of int): labels to average over; all that occur by default.
        pos_label (int): the positive label if `average` is "binary".
        average (str or None): "binary" (default), "micro", "macro", "weighted", "samples"; None for a value per label.
        sample_weight (list of float): a weight for each prediction.

    Returns:
        f1 (float, or a list of them if `average` is None): between 0 and 1; 0 where neither side has a positive label.

    Raises:
        ValueError: no predictions, lists of different lengths, labels that are not integers, or more than two labels
            with `average="binary"`.
    """

    configurations = ("multilabel",)
    citation = base.SCIKIT_LEARN
    url = "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.f1_score.html"

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
        truth, guesses = base.integers(references, "references"), base.integers(predictions, "predictions")
        return {"f1": np.asarray(f1_score(truth, guesses, zero_division=0.0, **options)).tolist()}
