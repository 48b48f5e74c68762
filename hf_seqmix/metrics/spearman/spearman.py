"""Spearman correlation of two series of numbers."""

from typing import Any

import datasets
import evaluate
import numpy as np
from scipy.stats import spearmanr

_DESCRIPTION = """
Spearman correlation: the Pearson correlation of the ranks, ties sharing their mean rank: how well any monotone curve
relates the two series.
"""

_INPUTS = """
Args:
    predictions (list of float): predicted numbers.
    references (list of float): true numbers.
    return_pvalue (bool): also return the two-sided p-value of no correlation.
Returns:
    spearmanr (float): between -1 and 1; NaN where either side is constant, since a correlation is not defined there.
    p-value (float): if `return_pvalue`.
Raises:
    ValueError: fewer than two predictions, lists of different lengths, or numbers that are not finite.
"""

_CITATION = """
@article{2020SciPy-NMeth,
  title = {{SciPy} 1.0: Fundamental Algorithms for Scientific Computing in {P}ython},
  author = {Virtanen, Pauli and others},
  journal = {Nature Methods},
  volume = {17}, pages = {261--272}, year = {2020}
}
"""


class Spearman(evaluate.Metric):
    """Spearman correlation by scipy's `spearmanr`."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": number, "references": number}),
            reference_urls=["https://docs.scipy.org/doc/scipy/reference/generated/scipy.stats.spearmanr.html"],
        )

    def _compute(self, predictions: Any, references: Any, return_pvalue: bool = False) -> dict[str, float]:
        x, y = _numbers(predictions, "predictions"), _numbers(references, "references")
        if np.ptp(x) == 0 or np.ptp(y) == 0:
            value = p_value = float("nan")
        else:
            value, p_value = map(float, spearmanr(x, y))
        return {"spearmanr": value, "p-value": p_value} if return_pvalue else {"spearmanr": value}


def _numbers(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size < 2:
        raise ValueError(f"{name} has {array.size} numbers; a correlation needs at least two.")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} has NaN, infinite or missing numbers; drop or repair them first.")
    return array
