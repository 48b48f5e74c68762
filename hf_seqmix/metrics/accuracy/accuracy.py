"""Accuracy: the share of predictions that equal their reference."""

from typing import Any

import datasets
import evaluate
import numpy as np
from sklearn.metrics import accuracy_score

_DESCRIPTION = """
Accuracy = (number of predictions equal to their reference) / (number of predictions). In the `multilabel` configuration
a prediction counts only if all of its labels are right.
"""

_INPUTS = """
Args:
    predictions (list of int): predicted labels; lists of 0 and 1, one per label, in the `multilabel` configuration.
    references (list of int): true labels, as the predictions.
    normalize (bool): return the share of right predictions (default) or their number.
    sample_weight (list of float): a weight for each prediction.
Returns:
    accuracy (float): between 0 and 1 if `normalize`.
Raises:
    ValueError: no predictions, lists of different lengths, or labels that are not integers.
"""

_CITATION = """
@article{scikit-learn,
  title = {Scikit-learn: Machine Learning in {P}ython},
  author = {Pedregosa, F. and others},
  journal = {Journal of Machine Learning Research},
  volume = {12}, pages = {2825--2830}, year = {2011}
}
"""


class Accuracy(evaluate.Metric):
    """Accuracy by scikit-learn's `accuracy_score`."""

    def _info(self) -> evaluate.MetricInfo:
        label: Any = datasets.Value("float64")  # an integer type would silently truncate probabilities
        if self.config_name == "multilabel":
            label = datasets.Sequence(label)
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": label, "references": label}),
            reference_urls=["https://scikit-learn.org/stable/modules/generated/sklearn.metrics.accuracy_score.html"],
        )

    def _compute(
        self, predictions: Any, references: Any, normalize: bool = True, sample_weight: Any = None
    ) -> dict[str, Any]:
        value = accuracy_score(
            _labels(references, "references"),
            _labels(predictions, "predictions"),
            normalize=normalize,
            sample_weight=sample_weight,
        )
        return {"accuracy": float(value)}


def _labels(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty: give at least one label.")
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(f"{name} must be integer labels, without missing values; apply an argmax to scores first.")
    return array.astype(np.int64)
