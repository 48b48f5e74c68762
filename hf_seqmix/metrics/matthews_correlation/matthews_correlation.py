"""Matthews correlation coefficient of two labellings."""

from typing import Any

import datasets
import evaluate
import numpy as np
from sklearn.metrics import matthews_corrcoef

_DESCRIPTION = """
Matthews correlation: the correlation coefficient of predicted and true labels, from -1 to 1; 0 is chance and also the
value where either side is constant. Defined for any number of labels.
"""

_INPUTS = """
Args:
    predictions (list of int): predicted labels.
    references (list of int): true labels.
    sample_weight (list of float): a weight for each prediction.
Returns:
    matthews_correlation (float): between -1 and 1.
Raises:
    ValueError: no predictions, lists of different lengths, or labels that are not integers.
"""

_CITATION = """
@article{matthews1975comparison,
  title = {Comparison of the predicted and observed secondary structure of {T4} phage lysozyme},
  author = {Matthews, Brian W.},
  journal = {Biochimica et Biophysica Acta (BBA) - Protein Structure},
  volume = {405}, number = {2}, pages = {442--451}, year = {1975}
}
"""


class MatthewsCorrelation(evaluate.Metric):
    """Matthews correlation by scikit-learn's `matthews_corrcoef`."""

    def _info(self) -> evaluate.MetricInfo:
        label = datasets.Value("float64")  # an integer type would silently truncate probabilities
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": label, "references": label}),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.matthews_corrcoef.html"
            ],
        )

    def _compute(self, predictions: Any, references: Any, sample_weight: Any = None) -> dict[str, Any]:
        value = matthews_corrcoef(
            _labels(references, "references"), _labels(predictions, "predictions"), sample_weight=sample_weight
        )
        return {"matthews_correlation": float(value)}


def _labels(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty: give at least one label.")
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(f"{name} must be integer labels, without missing values; apply an argmax to scores first.")
    return array.astype(np.int64)
