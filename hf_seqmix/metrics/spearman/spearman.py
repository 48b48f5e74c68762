"""Spearman correlation of two series of numbers."""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from hf_seqmix.metrics import base


class Spearman(base.BaseMetric):
    """Spearman correlation: the Pearson correlation of the ranks, where ties share their mean rank, by scipy.

    Args:
        predictions (list of float): predicted numbers.
        references (list of float): true numbers.
        return_pvalue (bool): also return the two-sided p-value of no correlation.

    Returns:
        spearmanr (float): between -1 and 1; NaN where either side is constant, since no correlation is defined there.
        p-value (float): if `return_pvalue`.

    Raises:
        ValueError: fewer than two predictions, lists of different lengths, or numbers that are not finite.
    """

    citation = base.SCIPY
    url = "https://docs.scipy.org/doc/scipy/reference/generated/scipy.stats.spearmanr.html"

    def _compute(self, predictions: Any, references: Any, return_pvalue: bool = False) -> dict[str, float]:
        x, y = base.finite(predictions, "predictions", 2), base.finite(references, "references", 2)
        constant = np.ptp(x) == 0 or np.ptp(y) == 0
        value, p_value = (np.nan, np.nan) if constant else map(float, spearmanr(x, y))
        return {"spearmanr": value} | ({"p-value": p_value} if return_pvalue else {})
