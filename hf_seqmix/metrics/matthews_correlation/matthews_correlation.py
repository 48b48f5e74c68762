"""Matthews correlation coefficient of predicted and true labels."""

from typing import Any

from sklearn.metrics import matthews_corrcoef

from hf_seqmix.metrics import base


class MatthewsCorrelation(base.BaseMetric):
    """Matthews correlation: the correlation coefficient of predicted and true labels, by scikit-learn.

    The value lies between -1 and 1. Chance gives 0, and so does a side that is constant. Any number of labels is
    allowed.

    Args:
        predictions (list of int): predicted labels.
        references (list of int): true labels.
        sample_weight (list of float): a weight for each prediction.

    Returns:
        matthews_correlation (float): between -1 and 1.

    Raises:
        ValueError: no predictions, lists of different lengths, or labels that are not integers.
    """

    citation = """
@article{matthews1975comparison,
  title = {Comparison of the predicted and observed secondary structure of {T4} phage lysozyme},
  author = {Matthews, Brian W.},
  journal = {Biochimica et Biophysica Acta (BBA) - Protein Structure},
  volume = {405}, number = {2}, pages = {442--451}, year = {1975}
}
"""
    url = "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.matthews_corrcoef.html"

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
        truth, guesses = base.integers(references, "references"), base.integers(predictions, "predictions")
        return {"matthews_correlation": float(matthews_corrcoef(truth, guesses, **options))}
