"""F1: the harmonic mean of precision and recall."""

from typing import Any

import datasets
import evaluate
import numpy as np
from sklearn.metrics import f1_score

_DESCRIPTION = """
F1 = 2 * precision * recall / (precision + recall), of the positive label or averaged over labels.
"""

_INPUTS = """
Args:
    predictions (list of int): predicted labels; lists of 0 and 1, one per label, in the `multilabel` configuration.
    references (list of int): true labels, as the predictions.
    labels (list of int): labels to average over; all that occur by default.
    pos_label (int): the positive label if `average` is "binary".
    average (str or None): "binary" (default), "micro", "macro", "weighted", "samples", or None for one value per label.
    sample_weight (list of float): a weight for each prediction.
Returns:
    f1 (float, or a list of them if `average` is None): between 0 and 1; 0 where neither side has a positive label.
Raises:
    ValueError: no predictions, lists of different lengths, labels that are not integers, or more than
        two labels with `average="binary"`.
"""

_CITATION = """
@article{scikit-learn,
  title = {Scikit-learn: Machine Learning in {P}ython},
  author = {Pedregosa, F. and others},
  journal = {Journal of Machine Learning Research},
  volume = {12}, pages = {2825--2830}, year = {2011}
}
"""


class F1(evaluate.Metric):
    """F1 by scikit-learn's `f1_score`."""

    def _info(self) -> evaluate.MetricInfo:
        label: Any = datasets.Value("float64")  # an integer type would silently truncate probabilities
        if self.config_name == "multilabel":
            label = datasets.Sequence(label)
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": label, "references": label}),
            reference_urls=["https://scikit-learn.org/stable/modules/generated/sklearn.metrics.f1_score.html"],
        )

    def _compute(
        self,
        predictions: Any,
        references: Any,
        labels: list[int] | None = None,
        pos_label: int = 1,
        average: str | None = "binary",
        sample_weight: Any = None,
    ) -> dict[str, Any]:
        value = f1_score(
            _labels(references, "references"),
            _labels(predictions, "predictions"),
            labels=labels,
            pos_label=pos_label,
            average=average,
            sample_weight=sample_weight,
            zero_division=0.0,
        )
        return {"f1": np.asarray(value).tolist()}


def _labels(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty: give at least one label.")
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(f"{name} must be integer labels, without missing values; apply an argmax to scores first.")
    return array.astype(np.int64)
