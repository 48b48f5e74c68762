"""What the metrics share: one base class of `evaluate` modules, and checks of their inputs.

A metric is a class with a docstring, the names and types of its columns, and `_compute`. The docstring is also what
`evaluate` shows: the text before "Args:" as the description, the rest as the description of the inputs.

`accuracy_by_length` and `recall_accuracy`, which no other library has, do not import this module: `evaluate.load`
opens their folders where the package is not installed.
"""

import inspect
import math
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

__all__ = ["SCIKIT_LEARN", "SCIPY", "BaseMetric", "counted", "exponential", "finite", "integers", "not_negative"]

SCIKIT_LEARN = """
@article{scikit-learn,
  title = {Scikit-learn: Machine Learning in {P}ython},
  author = {Pedregosa, F. and others},
  journal = {Journal of Machine Learning Research},
  volume = {12}, pages = {2825--2830}, year = {2011}
}
"""

SCIPY = """
@article{2020SciPy-NMeth,
  title = {{SciPy} 1.0: Fundamental Algorithms for Scientific Computing in {P}ython},
  author = {Virtanen, Pauli and others},
  journal = {Nature Methods},
  volume = {17}, pages = {261--272}, year = {2020}
}
"""

# "number" for labels, too: an integer type would silently truncate probabilities.
_FEATURES: dict[str, Any] = {
    "number": datasets.Value("float64"),
    "numbers": datasets.Sequence(datasets.Value("float64")),
    "text": datasets.Value("string"),
    "texts": datasets.Sequence(datasets.Value("string")),
}


class BaseMetric(evaluate.Metric):
    """A metric that is described by its docstring.

    Attributes:
        configurations: names of configurations beside the default.
        columns: name of an input with an entry for each example -> "number", "numbers", "text" or "texts".
        citation: BibTeX of the source.
        url: of the documentation of the source.
    """

    configurations: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[dict[str, str]] = {"predictions": "number", "references": "number"}
    citation: ClassVar[str] = ""
    url: ClassVar[str] = ""

    def _info(self) -> evaluate.MetricInfo:
        description, _, inputs = (inspect.getdoc(type(self)) or "").partition("\nArgs:\n")
        known = ("default", *self.configurations)
        if self.config_name not in known:
            raise ValueError(f"config_name is {self.config_name!r}; it must be one of {', '.join(map(repr, known))}.")
        kinds = dict(self.columns)
        if self.config_name == "multilabel":
            kinds = {name: f"{kind}s" for name, kind in kinds.items()}
        return evaluate.MetricInfo(
            description=description,
            citation=type(self).citation,
            inputs_description=f"Args:\n{inputs}",
            features=datasets.Features({name: _FEATURES[kind] for name, kind in kinds.items()}),
            reference_urls=[type(self).url] if type(self).url else [],
        )


def finite(values: Any, name: str, least: int = 1) -> np.ndarray:
    """Return an array of at least `least` finite numbers.

    Raises:
        ValueError: if there are fewer, or a number is NaN, infinite or missing.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size < least:
        many = f"has {array.size} numbers; give at least two" if least == 2 else "is empty; give at least one number"
        raise ValueError(f"{name} {many}.")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} has NaN, infinite or missing numbers; drop or repair the numbers first.")
    return array


def integers(values: Any, name: str, kind: str = "labels") -> np.ndarray:
    """Return an array of whole numbers.

    Raises:
        ValueError: if there is none, or one is not a whole number.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty; give at least one number.")
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(
            f"{name} must be integer {kind}, without missing values; apply an argmax to scores before the call."
        )
    return array.astype(np.int64)


def not_negative(values: Any, name: str) -> np.ndarray:
    """Return an array of finite numbers from 0 on: negative log-likelihoods, counts or positions.

    Raises:
        ValueError: if there is none, or one is negative or not finite.
    """
    array = finite(values, name)
    if np.any(array < 0):
        raise ValueError(f"{name} has a negative number, {array.min()}; give numbers from 0 on.")
    return array


def counted(values: Any, name: str, unit: str) -> float:
    """Return the sum of counts.

    Raises:
        ValueError: if a count is negative or not a whole number, or the sum is zero.
    """
    counts = not_negative(np.atleast_1d(values), name)
    if np.any(counts != np.floor(counts)):
        raise ValueError(f"{name} must be whole numbers of {unit}s.")
    if counts.sum() <= 0:
        raise ValueError(f"{name} adds up to {counts.sum():.0f}; give at least one {unit}.")
    return float(counts.sum())


def exponential(value: float) -> float:
    """Return e to the power of a number, infinity where that overflows."""
    return math.exp(value) if value < 700 else math.inf
