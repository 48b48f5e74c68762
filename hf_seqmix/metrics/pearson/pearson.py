"""Pearson correlation of two series of numbers."""

from typing import Any

import numpy as np
from scipy.stats import pearsonr

from hf_seqmix.metrics import base


class Pearson(base.BaseMetric):
    """Pearson correlation = covariance(x, y) / (std(x) std(y)), by scipy: how well a line relates two series.

    Args:
        predictions (list of float): predicted numbers.
        references (list of float): true numbers.
        return_pvalue (bool): also return the two-sided p-value of no correlation.

    Returns:
        pearsonr (float): between -1 and 1; NaN where either side is constant, since no correlation is defined there.
        p-value (float): if `return_pvalue`.

    Raises:
        ValueError: fewer than two predictions, lists of different lengths, or numbers that are not finite.
    """

    citation = base.SCIPY
    url = "https://docs.scipy.org/doc/scipy/reference/generated/scipy.stats.pearsonr.html"

    def _compute(self, predictions: Any, references: Any, return_pvalue: bool = False) -> dict[str, float]:
        x, y = base.finite(predictions, "predictions", 2), base.finite(references, "references", 2)
        constant = np.ptp(x) == 0 or np.ptp(y) == 0
        value, p_value = (np.nan, np.nan) if constant else map(float, pearsonr(x, y))
        return {"pearsonr": value} | ({"p-value": p_value} if return_pvalue else {})
