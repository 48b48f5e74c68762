"""Labels of any form as ids, names and indicators."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import datasets
import numpy as np

from ..._labels import IGNORED_LABEL
from ..local_files import other_separator

__all__ = [
    "are_indicators",
    "complete",
    "id_of",
    "indicators",
    "label_fields",
    "label_names",
    "require_columns",
    "require_texts",
    "require_training",
    "require_values",
]


def require_columns(split: datasets.Dataset, columns: Iterable[str], name: str) -> None:
    """Raise a `ValueError` that lists the existing columns, unless the split has all of `columns`."""
    missing = [column for column in columns if column not in split.column_names]
    if missing:
        raise ValueError(
            f"the {name} data has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, split.column_names))}.{other_separator(split.column_names)}"
        )


def require_training(train: datasets.Dataset, columns: Iterable[str]) -> None:
    """Raise a `ValueError` unless the training data has rows and all of `columns`."""
    require_columns(train, columns, "training")
    if len(train) == 0:
        raise ValueError("the training data has no rows; give at least two, which differ in their labels.")


def require_values(split: datasets.Dataset, columns: Iterable[str], name: str, what: str) -> None:
    """Raise a `ValueError` that counts the rows in which one of `columns` is missing, `what` it holds."""
    for column in columns:
        batches = split.select_columns([column]).with_format("arrow").iter(batch_size=1000)
        missing = sum(batch[column].null_count for batch in batches)
        if missing:
            raise ValueError(
                f"{missing} rows of the {name} data have no {what} in column {column!r}; leave these rows out."
            )


def require_texts(split: datasets.Dataset, columns: Iterable[str], name: str) -> None:
    """Raise a `ValueError` unless each row has a text in each of `columns`; a column of JSON can mix types."""
    for column in columns:
        require_values(split, [column], name, "text")
        for row, value in enumerate(split[column]):
            if not isinstance(value, str):
                raise ValueError(
                    f"the column {column!r} of the {name} data holds {type(value).__name__}, not text, in row {row};"
                    " give text in each row."
                )


def complete(labels: Any, column: str, name: str) -> list[Any]:
    """Return the labels as a list; a missing label is a `ValueError`."""
    labels = list(labels)
    missing = [index for index, label in enumerate(labels) if label is None or label == ""]
    if missing:
        raise ValueError(
            f"{len(missing)} rows of the {name} data have no label in column {column!r}, the first is row"
            f" {missing[0]}."
        )
    return labels


def label_names(feature: Any, labels: Sequence[Any], problem_type: str) -> tuple[str, ...]:
    """Return the names of the classes: those that the data set declares, or the sorted labels that occur."""
    if problem_type == "multi_label_classification":
        if not isinstance(labels[0], list):
            raise ValueError(
                "a multi-label task needs lists of labels or several label columns; the labels are like"
                f" {labels[0]!r}."
            )
        if are_indicators(feature, labels):
            return tuple(str(index) for index in range(len(labels[0])))
        feature = getattr(feature, "feature", None)
        labels = [label for row in labels for label in row]
    if isinstance(feature, datasets.ClassLabel):
        return tuple(feature.names)
    if IGNORED_LABEL in labels:
        raise ValueError(
            f"the label {IGNORED_LABEL} says that a label is to be ignored, and is no class; leave these rows out, or "
            "name the class by a word."
        )
    odd = [label for label in labels if not _is_name(label)]
    if odd:
        raise ValueError(f"labels must be numbers or words; given {odd[0]!r}.")
    values = set(labels)
    if not values:
        raise ValueError("the training data has no label at all.")
    numeric = all(isinstance(value, (int, float)) for value in values)
    return tuple(_name(value) for value in (sorted(values) if numeric else sorted(values, key=str)))


def label_fields(names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a model configuration that describe the classes."""
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


def _is_name(label: Any) -> bool:
    """Return whether a label can name a class, as lists, NaN and infinity cannot, nor nothing at all."""
    if label is None or label == "":
        return False
    return math.isfinite(label) if isinstance(label, float) else not isinstance(label, (list, dict))


def _name(label: Any) -> str:
    """Return the name of a label; 1, 1.0 and True are one label."""
    whole = isinstance(label, bool) or (isinstance(label, float) and label.is_integer())
    return str(int(label)) if whole else str(label)


def id_of(label: Any, ids: dict[str, int], name: str) -> int:
    """Return the id of a label of the data; a label that training did not have is a `ValueError`."""
    found = ids.get(_name(label))
    if found is None:
        raise ValueError(
            f"the {name} data has the label {label!r}, which the training data has not; its labels are"
            f" {', '.join(ids)}."
        )
    return found


def are_indicators(feature: Any, labels: Sequence[Any]) -> bool:
    """Return whether lists of labels are zeros and ones, one a class: then some value occurs twice in a list.

    Of two classes, lists of a few rows may have no such value: ask the training data, and no other.
    """
    if isinstance(getattr(feature, "feature", None), datasets.ClassLabel):
        return False
    return any(isinstance(row, list) and len(set(row)) < len(row) for row in labels)


def indicators(rows: Sequence[Sequence[Any]], name: str, count: int | None = None) -> np.ndarray:
    """Return zeros and ones (examples, classes); other values, and other than `count` classes, are a `ValueError`."""
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"lists of zeros and ones must be equally long; those of the {name} data are not.")
    if count is not None and rows and len(rows[0]) != count:
        raise ValueError(
            f"the lists of zeros and ones of the {name} data have {len(rows[0])} entries, but the training data has "
            f"{count} labels."
        )
    try:
        values = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"label columns must hold zeros and ones; those of the {name} data do not: {error}."
        ) from error
    if not np.isin(values, (0, 1)).all():
        raise ValueError(f"label columns must hold zeros and ones; those of the {name} data hold others.")
    return values.astype(np.int64)
