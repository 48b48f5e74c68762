"""Accuracy: the share of predictions that equal their reference."""

from typing import Any

from sklearn.metrics import accuracy_score

from hf_seqmix.metrics import base


class Accuracy(base.BaseMetric):
    """Accuracy = (number of predictions equal to their reference) / (number of predictions), by scikit-learn.

    In the `multilabel` configuration a prediction counts only if all of its labels are right.

    Args:
        predictions (list of int): predicted labels; lists of 0 and 1, one per label, in the `multilabel`
            configuration.
        references (list of int): true labels, as the predictions.
        normalize (bool): return the share of right predictions (default) or their number.
        sample_weight (list of float): a weight for each prediction.

    Returns:
        accuracy (float): between 0 and 1 if `normalize`.

    Raises:
        ValueError: no predictions, lists of different lengths, or labels that are not integers.
    """

    configurations = ("multilabel",)
    citation = base.SCIKIT_LEARN
    url = "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.accuracy_score.html"

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
        truth, guesses = base.integers(references, "references"), base.integers(predictions, "predictions")
        return {"accuracy": float(accuracy_score(truth, guesses, **options))}
