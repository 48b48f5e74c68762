"""Labels of whole inputs: what classifications and regressions of texts and images share."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import datasets
import numpy as np

from .labels import (
    are_indicators,
    complete,
    id_of,
    indicators,
    label_fields,
    label_names,
    require_columns,
    require_training,
)

__all__ = ["Classification"]

logger = logging.getLogger(__name__)

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


@dataclass(frozen=True, kw_only=True)
class Classification:
    """One label, several labels or a number for each input.

    Attributes:
        label_columns: one column; or several columns of zeros and ones, each a label of its own.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        label_names: names of the classes in the order of their ids; none for a regression.
        has_indicators: whether lists of labels are zeros and ones, one a class, and not sets of classes.
    """

    label_columns: tuple[str, ...]
    problem_type: str
    label_names: tuple[str, ...] = ()
    has_indicators: bool = False

    @classmethod
    def read_labels(
        cls, train: datasets.Dataset, label_columns: Sequence[str], problem_type: str | None = None
    ) -> dict[str, Any]:
        """Return the attributes of this class, as read from the training split.

        Without `problem_type` the kind follows from the values. Integers, truth values and strings are classes. Floats
        are a regression, as in the examples of transformers, and floats that are all whole are warned of. Lists are
        sets of classes; lists in which a value occurs twice are zeros and ones, one a class. Several label columns are
        several labels.

        Raises:
            ValueError: there are no rows, a column is missing, or the labels make no such task.
        """
        require_training(train, label_columns)
        if problem_type not in (None, *PROBLEM_TYPES):
            raise ValueError(f"problem_type is {problem_type!r}; allowed are {', '.join(PROBLEM_TYPES)} and None.")
        has_indicators = False
        if len(label_columns) > 1:
            if problem_type not in (None, "multi_label_classification"):
                raise ValueError(f"several label columns make a multi-label task; asked for is {problem_type!r}.")
            problem_type, names = "multi_label_classification", tuple(label_columns)
        else:
            labels = complete(train[label_columns[0]], label_columns[0], "training")
            if problem_type is None:
                problem_type = _problem_type(labels)
                if problem_type == "regression" and all(isinstance(n, (int, float)) and n % 1 == 0 for n in labels):
                    logger.warning(
                        f"the labels in column {label_columns[0]!r} are whole numbers and floats, which make a "
                        "regression: for classes give problem_type (--problem-type) single_label_classification."
                    )
            names = ()
            if problem_type != "regression":
                feature = train.features[label_columns[0]]
                has_indicators = problem_type == "multi_label_classification" and are_indicators(feature, labels)
                names = label_names(feature, labels, problem_type)
                if len(names) < 2:
                    raise ValueError(
                        f"the training data has the one label {names[0]!r}; there is nothing to tell apart."
                    )
        fields: dict[str, Any] = {
            "label_columns": tuple(label_columns),
            "problem_type": problem_type,
            "label_names": names,
            "has_indicators": has_indicators,
        }
        references = Classification(**fields).references(train, "training")
        if problem_type == "multi_label_classification" and not has_indicators and (references == references[0]).all():
            raise ValueError(
                "every row of the training data has the same labels; there is nothing to tell apart. Give zeros and "
                "ones as one column a label."
            )
        return fields

    def config_fields(self) -> dict[str, Any]:
        """Return the fields that the configuration of the model needs."""
        if self.problem_type == "regression":
            return {"num_labels": 1, "problem_type": "regression"}
        return {"problem_type": self.problem_type, **label_fields(self.label_names)}

    def has_labels(self, split: datasets.Dataset) -> bool:
        """Return whether the split can be scored: hidden labels are no column, empty, or -1 that is no label."""
        if any(column not in split.column_names for column in self.label_columns):
            return False
        hidden = [None, ""] if "-1" in self.label_names else [None, "", -1]
        return any(label not in hidden for label in split[self.label_columns[0]])

    def untrained(self, train: datasets.Dataset, split: datasets.Dataset) -> list[str]:
        """Return the classes that a data set declares, that rows of a split have, and no row of the training data."""
        if len(self.label_columns) > 1:
            return []
        trained, found = (_declared_classes(rows, self.label_columns[0]) for rows in (train, split))
        return sorted(found - trained)

    def add_labels(self, encoded: datasets.Dataset, split: datasets.Dataset, name: str) -> datasets.Dataset:
        """Return the encoded split with a column `labels`, if `split` has labels."""
        if not self.has_labels(split):
            return encoded
        references = self.references(split, name)
        if self.problem_type != "single_label_classification":
            references = references.astype(np.float32)
        return encoded.add_column("labels", references.tolist())

    def references(self, split: datasets.Dataset, name: str) -> np.ndarray:
        """Return the true labels: ids (examples,), zeros and ones (examples, labels), or numbers (examples,).

        Raises:
            ValueError: a label is missing, unknown, or not a number in a regression.
        """
        require_columns(split, self.label_columns, name)
        if len(self.label_columns) > 1:
            columns = [complete(split[column], column, name) for column in self.label_columns]
            return indicators(list(zip(*columns, strict=True)), name)
        column = self.label_columns[0]
        labels = list(split[column])
        if isinstance(split.features[column], datasets.ClassLabel):
            labels = [None if label == -1 else label for label in labels]  # as data sets say that there is none
        labels = complete(labels, column, name)
        if self.problem_type == "regression":
            try:
                numbers = np.asarray([float(label) for label in labels])
            except (TypeError, ValueError) as error:
                raise ValueError(f"the column {column!r} of the {name} data holds no numbers: {error}.") from error
            if not np.isfinite(numbers).all():
                raise ValueError(f"the column {column!r} of the {name} data has NaN or infinite numbers.")
            return numbers
        if isinstance(split.features[column], datasets.ClassLabel):
            labels = [split.features[column].int2str(label) for label in labels]
        ids = {label: index for index, label in enumerate(self.label_names)}
        if self.problem_type == "multi_label_classification":
            if self.has_indicators:
                return indicators(labels, name, len(ids))
            inner = getattr(split.features[column], "feature", None)
            rows = np.zeros((len(labels), len(ids)), dtype=np.int64)
            for row, names in zip(rows, labels, strict=True):
                for label in names:
                    row[
                        id_of(inner.int2str(label) if isinstance(inner, datasets.ClassLabel) else label, ids, name)
                    ] = 1
            return rows
        return np.asarray([id_of(label, ids, name) for label in labels])

    def predictions(self, output: Any) -> np.ndarray:
        """Return predicted labels in the form of `references`, from logits (examples, labels).

        Of several labels, those with a probability above one half are predicted.
        """
        logits = np.asarray(output)
        if self.problem_type == "regression":
            return logits.reshape(len(logits)).astype(np.float64)
        if self.problem_type == "multi_label_classification":
            return (logits > 0).astype(np.int64)
        return logits.argmax(axis=-1)

    def readable(self, predictions: np.ndarray) -> list[Any]:
        """Return predictions as names of labels, lists of names, or numbers."""
        if self.problem_type == "regression":
            return predictions.tolist()
        names = np.asarray(self.label_names)
        if self.problem_type == "multi_label_classification":
            return [names[row == 1].tolist() for row in predictions]
        return names[predictions].tolist()


def _declared_classes(rows: datasets.Dataset, column: str) -> set[str]:
    """Return the names of the classes of rows, alone or in lists; none where the column declares none."""
    feature = rows.features.get(column)
    named = getattr(feature, "feature", feature)
    if not isinstance(named, datasets.ClassLabel):
        return set()
    labels = rows[column]
    held = set(labels if named is feature else chain.from_iterable(row or () for row in labels))
    return set(named.int2str(sorted(held - {None, -1})))


def _problem_type(labels: Sequence[Any]) -> str:
    if isinstance(labels[0], list):
        return "multi_label_classification"
    if any(isinstance(label, float) for label in labels):
        return "regression"
    return "single_label_classification"
